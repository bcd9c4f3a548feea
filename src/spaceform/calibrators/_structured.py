"""The fit of structured scaling: models of growing size, cross-validated, joined and shrunk.

Every model is f = (1 + a + b·u) X + w ∘ X + M X + c, linear in its coefficients: its loss is convex, and a
mean of models is again such a model.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from spaceform.calibrators._descent import PastMoves, descend
from spaceform.calibrators._fit import Curved, minimise
from spaceform.calibrators._objective import (
    DesignRows,
    Objective,
    PriorSpreads,
    ScalingCoefficients,
    stacked,
)

_FOLDS, _FOLDS_OF_MANY_CLASSES = 5, 3
_FEW, _MOST_FOR_MATRIX = 32, 128
"""Numbers of classes: up to the first, a matrix has a wider prior; past the second, there is no matrix."""
_STEPS, _STEPS_OF_FOLDS = 40, 8
"""The most steps of a descent. On a fold it begins at the result for all rows."""
_LAST, _LAST_OF_MANY_CLASSES = 1e-6, 1e-5
"""A descent ends with a step that gains a smaller share of the loss than this. Many classes are fitted in
single precision: on outputs of five heads for 39 to 150 classes, that changes the test NLL by less than 1e-4.
"""


def sizes(classes: int) -> list[PriorSpreads]:
    """The priors of all models, from one temperature to a matrix. As in Berta et al. 2026, those of w and c
    become narrower with more classes.
    """
    r, K = classes**-0.5, classes
    small = [PriorSpreads(0.0, 0.0), PriorSpreads(0.7 * r, 0.0)]
    if classes > _MOST_FOR_MATRIX:
        return [*small, PriorSpreads(1.4 * r, 0.0)]
    if classes > _FEW:
        return [*small, PriorSpreads(0.7 * r, 0.6 / K)]
    return [*small, PriorSpreads(0.7 * r, 0.7 / K), PriorSpreads(1.4 * r, 2 / K)]


class JoinedModels(NamedTuple):
    """The models that were fitted to all rows, with their shares; the rest is the model as trained."""

    models: list[ScalingCoefficients]
    shares: Float[Tensor, " models"]


def fit_joined(rows: DesignRows, plain: Float[Tensor, "n classes"]) -> JoinedModels:
    """Shares by cross-validated loss; `plain` are log-probabilities as trained.

    A fit begins where the fit of the next smaller model ended. With more than 32 classes, if a model gains
    nothing on the folds, no larger model is tried.
    """
    K = rows.X.shape[1]
    fold = _fold_of(rows, plain, _FOLDS if K <= _FEW else _FOLDS_OF_MANY_CLASSES)
    if int(fold.max()) == 0:  # all rows are equal
        return JoinedModels([_nothing(plain)], plain.new_zeros(1))
    spreads = sizes(K)
    last, seen = (_LAST, rows) if K <= _FEW else (_LAST_OF_MANY_CLASSES, rows.single)
    whole = stacked(seen, torch.ones_like(fold)[None] > 0, spreads[-1])
    kept = stacked(seen, fold != torch.arange(int(fold.max()) + 1).to(fold)[:, None], spreads[-1])
    models: list[ScalingCoefficients] = []
    steps: list[Tensor] = []
    θ = plain.new_zeros(1, 0)
    for spread in spreads:
        objective = Objective(whole, spread)
        t, curvature = descend(objective, objective.start(θ), _STEPS, last=last)
        θ = t * objective.spread
        models.append(objective.coefficients(t[0]))
        steps.append(_of_folds(Objective(kept, spread), t, curvature, rows, fold, last) - plain)
        if K > _FEW and float(rows.weight @ steps[-1].gather(1, rows.y[:, None])[:, 0]) <= 0:
            break
    D = torch.stack(steps)
    del whole, kept, objective, steps  # each as large as D, or several times
    shares = _shares(plain, D, rows)
    return JoinedModels(models, shares * _support(plain, torch.einsum("m,mnk->nk", shares, D), rows))


def _nothing(plain: Float[Tensor, "n classes"]) -> ScalingCoefficients:
    zeros = plain.new_zeros(plain.shape[1])
    return ScalingCoefficients(plain.new_tensor([1.0, 0, 0]), zeros, zeros, None)


def _of_folds(
    objective: Objective,
    start: Float[Tensor, "1 p"],
    curvature: PastMoves,
    rows: DesignRows,
    fold: Int[Tensor, " n"],
    last: float,
) -> Float[Tensor, "n classes"]:
    """The log-probabilities of each row by a model that has not seen it."""
    folds = int(fold.max()) + 1
    t, _ = descend(objective, start.expand(folds, -1), _STEPS_OF_FOLDS, curvature, last=last)
    found = torch.empty_like(rows.X)
    for k in range(folds):
        out = fold == k
        found[out] = torch.log_softmax(objective.coefficients(t[k])(rows.X[out], rows.u[out]), -1)
    return found


def _fold_of(rows: DesignRows, plain: Float[Tensor, "n classes"], folds: int) -> Int[Tensor, " n"]:
    """The fold of each row. Rows go to the folds in the order of their losses: every fold has equally many
    hard rows, and equal rows are in one fold.
    """
    losses = plain.gather(1, rows.y[:, None])[:, 0].round(decimals=9)  # equal up to rounding is equal
    return losses.unique(return_inverse=True)[1] % folds


def _shares(
    plain: Float[Tensor, "n classes"], steps: Float[Tensor, "models n classes"], rows: DesignRows
) -> Float[Tensor, " models"]:
    """The shares of least loss, each between 0 and 1, with a ridge as strong as one row."""
    y, w = rows.y[:, None], rows.weight / rows.weight.sum()
    N, M = float(rows.weight.sum()), len(steps)
    of_y = steps.gather(2, y.expand(M, -1, 1))[..., 0]

    def evaluate(v: Tensor) -> Curved:
        logp = torch.log_softmax(plain + torch.einsum("m,mnk->nk", v, steps), -1)
        value = -(w @ logp.gather(1, y)[:, 0].double())
        of_p = steps * logp.exp_()
        mean = of_p.sum(-1)
        square = of_p.mul_(w[:, None]).flatten(1) @ steps.flatten(1).T
        return Curved(
            float(value) + float(v.square().sum()) / (2 * N),
            (mean - of_y) @ w + v / N,
            square - (mean * w) @ mean.T + torch.eye(M).to(v) / N,
        )

    start = torch.full((M,), 1 / M).to(plain)
    return minimise(evaluate, start, torch.zeros_like(start), torch.ones_like(start), last=1e-6, steps=20)[0]


def _support(plain: Float[Tensor, "n classes"], step: Float[Tensor, "n classes"], rows: DesignRows) -> float:
    """How much of a step to take: 1 − (s/m)² for its mean gain m with the standard error s.

    The loss is convex: if the whole step is a loss on new items, a part of the step loses at most that part.
    """
    total = rows.weight.sum()
    w = rows.weight / total
    gain = (torch.log_softmax(plain + step, -1) - plain).gather(1, rows.y[:, None])[:, 0]
    mean = float(w @ gain)
    error = float((w @ (gain - mean).square() / total).sqrt())
    return max(0.0, 1 - (error / mean) ** 2) if mean > 0 else 0.0
