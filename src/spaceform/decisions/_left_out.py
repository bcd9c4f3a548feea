"""What classes that are left out say of answers: how much each of them should count."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from spaceform.decisions._relative import Discriminant, relative_among
from spaceform.decisions.unknown_distance import nearest_squared, whitening

_FOLDS = 5
_FEWEST_ITEMS = 20
_MOST_CLASSES = 512
_MOST = (30.0, 3.0, 3.0, 3.0)
"""The most spreads of the median unknown item that count, for each answer."""
_TRUST = (1.0, 1.0, 0.5, 0.5)
"""The net has seen the classes that are left out and keeps them apart, which flatters the last two."""


class AnswerScale(NamedTuple):
    """Where answers to known items lie, and how far they spread downwards."""

    centre: Float[Tensor, " answers"]
    spread: Float[Tensor, " answers"]

    @staticmethod
    def of(answers: Float[Tensor, "n answers"]) -> "AnswerScale":
        """Their median, and its distance from their 5 % quantile in units of a normal law's.

        A few far answers do not move it, and the spread upwards says nothing of unknown items.
        """
        a = answers.double()
        centre, low = a.quantile(torch.tensor([0.5, 0.05]).to(a), dim=0)
        spread = (centre - low) / 1.645
        if len(a) > 1:
            spread = torch.where(spread > 0, spread, a.std(0))
        return AnswerScale(centre, torch.where(spread > 0, spread, 1.0))

    def __call__(self, answers: Float[Tensor, "n answers"]) -> Float[Tensor, "n answers"]:
        return (answers - self.centre.to(answers)) / self.spread.to(answers)


class TrainingItems(NamedTuple):
    """What is left out in turn."""

    y: Int[Tensor, " n"]
    inside: Float[Tensor, "n kept"]
    """The items, along the principal directions."""
    rest: Float[Tensor, ""]
    """The mean variance along the others."""
    means: Float[Tensor, "classes kept"]
    """The means of the classes, along the principal directions."""
    labels: Int[Tensor, " classes"]
    share: Float[Tensor, " classes"]


class HeldOutItems(NamedTuple):
    """What weights are found by."""

    y: Int[Tensor, " n"]
    inside: Float[Tensor, "n kept"]
    """The items, along the principal directions."""
    outside: Float[Tensor, " n"]
    """The squared length of the rest."""
    products: Float[Tensor, "n classes"]
    """Their products with Σ⁻¹ μ_c."""
    log_p: Float[Tensor, "n logits"]

    def part(self, rows: Bool[Tensor, " n"]) -> "HeldOutItems":
        """The items where the mask is true."""
        return HeldOutItems(*(x[rows] for x in self))


def weights(held: HeldOutItems, train: TrainingItems, classes: Discriminant) -> Float[Tensor, " answers"]:
    """Of the answers (near, nearer to a class, sure, near a class), with the sum 3.

    Each fifth of the classes in turn is made unknown, as if there had been no training item of it. The weight
    of an answer is by how many spreads it tells the median item of these from known ones.
    """
    equal = torch.ones(len(_TRUST)).to(held.products) * 3 / len(_TRUST)
    labels = train.labels
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:_MOST_CLASSES]
    chosen = order.to(labels.device)
    fold = torch.arange(len(chosen), device=labels.device) % _FOLDS
    held = held.part(torch.isin(held.y, labels[chosen]))
    if len(held.y) < _FEWEST_ITEMS or len(labels) < 3:
        return equal
    found = []
    for k in range(min(_FOLDS, len(chosen))):
        foreign = torch.isin(held.y, labels[chosen[fold == k]])
        if bool(foreign.any()) and not bool(foreign.all()):
            answers = _answers_without(held, train, classes, chosen[fold != k])
            found.append(AnswerScale.of(answers[~foreign])(answers[foreign]))
    if not found:
        return equal
    told = torch.cat(found).quantile(0.5, dim=0).neg().clamp_min(0)
    told = torch.minimum(told, torch.tensor(_MOST).to(told)) * torch.tensor(_TRUST).to(told)
    return 3 * told / told.sum() if bool(told.sum() > 0) else equal


def _answers_without(
    held: HeldOutItems, train: TrainingItems, classes: Discriminant, known: Int[Tensor, " known"]
) -> Float[Tensor, "n answers"]:
    """The answers where nothing is known of any other class."""
    labels, share = train.labels[known], train.share[known]
    seen = train.inside[torch.isin(train.y, labels)]
    mean = seen.mean(0)
    apart = ((held.inside - mean) @ whitening(seen - mean)).square().sum(-1)
    nearer = relative_among(held.products[:, known], classes.gram[known][:, known], share)
    log_p = torch.log_softmax(held.log_p[:, labels], -1)
    to_class = nearest_squared(held.inside, train.means[known])
    return torch.stack(
        [
            -apart - held.outside / train.rest,
            nearer,
            (log_p.exp() * log_p).sum(-1),
            -to_class - held.outside,
        ],
        -1,
    )
