"""The fit of structured scaling: models of growing size, cross-validated, joined and shrunk.

Every model is f = (1 + a + b·u) X + w ∘ X + M X + c, linear in its coefficients: its loss is convex, and a
mean of models is again such a model.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from spaceform.calibrators._descent import descend
from spaceform.calibrators._fit import Curved, minimise

_FOLDS, _FOLDS_OF_MANY_CLASSES = 5, 3
_FEW, _MOST_FOR_MATRIX = 32, 128
"""Classes: up to the first a matrix gets more room, past the second there is none."""
_STEPS, _STEPS_OF_FOLDS = 40, 8
"""Of descent; that of a fold begins where all rows ended."""
_SPREADS_OF_LINE = (0.3, 0.2, 0.1)
"""Of the priors of a and b."""


class DesignRows(NamedTuple):
    """What the models are fitted to. Every weight is positive."""

    X: Float[Tensor, "n classes"]
    """Logarithms of probabilities."""
    u: Float[Tensor, "n 2"]
    """Of the norm or concentration."""
    y: Int[Tensor, " n"]
    weight: Float[Tensor, " n"]

    def part(self, rows: Tensor) -> "DesignRows":
        """Some of them, by a mask."""
        return DesignRows(*(x[rows] for x in self))


class PriorSpreads(NamedTuple):
    """Of the priors of w and c, and of M; 0 leaves them out."""

    vector: float
    matrix: float


class ScalingCoefficients(NamedTuple):
    """Of one model."""

    line: Float[Tensor, "3"]
    """1 + a and b."""
    scale: Float[Tensor, " classes"]
    offset: Float[Tensor, " classes"]
    matrix: Float[Tensor, "classes classes"] | None

    def __call__(self, X: Float[Tensor, "n classes"], u: Float[Tensor, "n 2"]) -> Float[Tensor, "n classes"]:
        f = (self.line[0] + u @ self.line[1:])[:, None] * X + self.scale * X + self.offset
        return f if self.matrix is None else f + X @ self.matrix.T


def sizes(classes: int) -> list[PriorSpreads]:
    """From one temperature to a matrix. As in Berta et al. 2026, w and c have less room with more classes."""
    r, K = classes**-0.5, classes
    small = [PriorSpreads(0.0, 0.0), PriorSpreads(0.7 * r, 0.0)]
    if classes > _MOST_FOR_MATRIX:
        return [*small, PriorSpreads(1.4 * r, 0.0)]
    if classes > _FEW:
        return [*small, PriorSpreads(0.7 * r, 0.6 / K)]
    return [*small, PriorSpreads(0.7 * r, 0.7 / K), PriorSpreads(1.4 * r, 2 / K)]


class JoinedModels(NamedTuple):
    """The models that were fitted to all rows, and their shares; what is left is the model as trained."""

    models: list[ScalingCoefficients]
    shares: Float[Tensor, " models"]


def fit_joined(rows: DesignRows, plain: Float[Tensor, "n classes"]) -> JoinedModels:
    """Shares by cross-validated loss; `plain` are log-probabilities as trained."""
    folds = _FOLDS if rows.X.shape[1] <= _FEW else _FOLDS_OF_MANY_CLASSES
    fold = _fold_of(rows, plain, folds)
    models: list[ScalingCoefficients] = []
    steps: list[Tensor] = []
    for spreads in sizes(rows.X.shape[1]):
        whole, start = _fit(rows, spreads, None)
        models.append(whole)
        found = plain.clone()
        for out in (fold == k for k in range(int(fold.max()) + 1)):
            if not bool(out.all()):
                part, _ = _fit(rows.part(~out), spreads, start)
                found[out] = torch.log_softmax(part(rows.X[out], rows.u[out]), -1)
        steps.append(found - plain)
    D = torch.stack(steps)
    shares = _shares(plain, D, rows)
    return JoinedModels(models, shares * _support(plain, torch.einsum("m,mnk->nk", shares, D), rows))


def _fold_of(rows: DesignRows, plain: Float[Tensor, "n classes"], folds: int) -> Int[Tensor, " n"]:
    """Rows are dealt out in the order of their losses: every fold has as many hard ones, and equal rows share
    a fold.
    """
    losses = plain.gather(1, rows.y[:, None])[:, 0].round(decimals=9)  # equal up to rounding is equal
    return losses.unique(return_inverse=True)[1] % folds


def _shares(
    plain: Float[Tensor, "n classes"], steps: Float[Tensor, "models n classes"], rows: DesignRows
) -> Float[Tensor, " models"]:
    """Those of least loss, each between 0 and 1, with a ridge as strong as one row."""
    y, w = rows.y[:, None], rows.weight / rows.weight.sum()
    N, M = float(rows.weight.sum()), len(steps)
    of_y = steps.gather(2, y.expand(M, -1, 1))[..., 0]

    def evaluate(v: Tensor) -> Curved:
        logp = torch.log_softmax(plain + torch.einsum("m,mnk->nk", v, steps), -1)
        p = logp.exp()
        mean = (steps * p).sum(-1)
        spread = ((steps - mean[..., None]) * (p * w[:, None]).sqrt()).flatten(1)
        return Curved(
            float(-(w @ logp.gather(1, y)[:, 0])) + float(v.square().sum()) / (2 * N),
            (mean - of_y) @ w + v / N,
            spread @ spread.T + torch.eye(M).to(v) / N,
        )

    start = torch.full((M,), 1 / M).to(plain)
    return minimise(evaluate, start, torch.zeros_like(start), torch.ones_like(start), last=1e-6, steps=20)[0]


def _support(plain: Float[Tensor, "n classes"], step: Float[Tensor, "n classes"], rows: DesignRows) -> float:
    """How much of a step to take: 1 − (s/m)² with m the mean gain of all of it and s its standard error.

    The loss is convex: what the whole step would lose on new items, a part of it loses at most in part.
    """
    total = rows.weight.sum()
    w = rows.weight / total
    gain = (torch.log_softmax(plain + step, -1) - plain).gather(1, rows.y[:, None])[:, 0]
    mean = float(w @ gain)
    error = float((w @ (gain - mean).square() / total).sqrt())
    return max(0.0, 1 - (error / mean) ** 2) if mean > 0 else 0.0


def _fit(rows: DesignRows, spreads: PriorSpreads, start: Tensor | None) -> tuple[ScalingCoefficients, Tensor]:
    """The most probable coefficients, and where they are in units of their priors' spreads."""
    X, u, y, weight = rows
    K, total = X.shape[1], float(weight.sum())
    counts = [3, K if spreads.vector else 0, K if spreads.vector else 0, K * K if spreads.matrix else 0]
    spread = torch.cat(
        [
            torch.tensor(_SPREADS_OF_LINE).to(X),
            torch.full((2 * counts[1],), spreads.vector).to(X),
            torch.full((counts[3],), spreads.matrix).to(X),
        ]
    )
    diagonal = torch.eye(K, dtype=torch.bool, device=X.device)
    w = weight[:, None] / total

    def unpacked(t: Tensor) -> ScalingCoefficients:
        line, scale, offset, matrix = (t * spread).split(counts)
        nothing = X.new_zeros(K)
        return ScalingCoefficients(
            line + X.new_tensor([1.0, 0.0, 0.0]),
            scale if len(scale) else nothing,
            offset if len(offset) else nothing,
            matrix.view(K, K).masked_fill(diagonal, 0) if len(matrix) else None,
        )

    def evaluate(t: Tensor) -> tuple[float, Tensor]:
        f = unpacked(t)(X, u)
        top = f.amax(-1, keepdim=True)
        e = (f - top).exp_()
        Z = e.sum(-1, keepdim=True)
        of_y = f.gather(1, y[:, None])
        value = float(((Z.log() + top - of_y) * w).sum())
        G = e.div_(Z).scatter_add_(1, y[:, None], -torch.ones_like(of_y)).mul_(w)
        GX = G * X
        rowwise = GX.sum(1)
        parts = [rowwise.sum()[None], rowwise @ u]
        parts += [GX.sum(0), G.sum(0)] if counts[1] else []
        parts += [(G.T @ X).masked_fill_(diagonal, 0).flatten()] if counts[3] else []
        return value + float(t.square().sum()) / (2 * total), torch.cat(parts) * spread + t / total

    t = descend(
        evaluate,
        torch.zeros_like(spread) if start is None else start,
        _STEPS if start is None else _STEPS_OF_FOLDS,
    )
    return unpacked(t), t
