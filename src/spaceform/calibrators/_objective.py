"""The models of structured scaling, and their loss with its gradient, for several sets of rows at a time."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_SPREADS_OF_LINE = (0.3, 0.2, 0.1)
"""The spreads of the priors of a and b."""


class DesignRows(NamedTuple):
    """The rows that the models are fitted to. Every weight is positive."""

    X: Float[Tensor, "n classes"]
    """Logarithms of probabilities."""
    u: Float[Tensor, "n 2"]
    """Functions of the norm or concentration."""
    y: Int[Tensor, " n"]
    weight: Float[Tensor, " n"]

    def part(self, rows: Tensor) -> "DesignRows":
        """Some of the rows, by a mask."""
        return DesignRows(*(x[rows] for x in self))

    @property
    def single(self) -> "DesignRows":
        """In single precision."""
        return DesignRows(self.X.float(), self.u.float(), self.y, self.weight.float())


class PriorSpreads(NamedTuple):
    """The spreads of the priors of w and c, and of M; 0 leaves these coefficients out."""

    vector: float
    matrix: float


class ScalingCoefficients(NamedTuple):
    """The coefficients of one model."""

    line: Float[Tensor, "3"]
    """1 + a and b."""
    scale: Float[Tensor, " classes"]
    offset: Float[Tensor, " classes"]
    matrix: Float[Tensor, "classes classes"] | None

    def __call__(self, X: Float[Tensor, "n classes"], u: Float[Tensor, "n 2"]) -> Float[Tensor, "n classes"]:
        f = (self.line[0] + u @ self.line[1:])[:, None] * X + self.scale * X + self.offset
        return f if self.matrix is None else f + X @ self.matrix.T


class Stack(NamedTuple):
    """Sets of rows, filled up with rows of weight 0. The numbers of a class lie side by side in memory."""

    X: Float[Tensor, "b classes n"]
    u: Float[Tensor, "b 3 n"]
    """1 and u."""
    w: Float[Tensor, "b n"]
    """Weights, with the sum 1."""
    total: Float[Tensor, " b"]
    """The sum of the weights as given."""
    of_y: Float[Tensor, "b p"]
    """Σ w ∂f_y of all coefficients."""


def stacked(rows: DesignRows, kept: Bool[Tensor, "b n"], largest: PriorSpreads) -> Stack:
    """Some of the rows for each set; `largest` says which coefficients there will be."""
    counts = kept.sum(1)
    order = kept.int().argsort(dim=1, descending=True, stable=True)[:, : int(counts.max())]
    X, u, y, weight = (x[order] for x in rows)
    weight = torch.where(torch.arange(order.shape[1]).to(counts) < counts[:, None], weight, 0)
    total = weight.sum(1)
    w = weight / total[:, None]
    lines = X.transpose(1, 2).contiguous()
    of_line = torch.cat([torch.ones_like(u[..., :1]), u], -1).transpose(1, 2)
    of_y = torch.zeros_like(lines).scatter_(1, y[:, None], w[:, None])
    return Stack(lines, of_line, w, total, _sums(of_y, lines, of_line, largest))


def _sums(
    P: Float[Tensor, "b classes n"],
    X: Float[Tensor, "b classes n"],
    u: Float[Tensor, "b 3 n"],
    spreads: PriorSpreads,
) -> Float[Tensor, "b p"]:
    """Σ P ∂f of all coefficients."""
    PX = P * X
    parts = [(u @ PX.sum(1)[..., None])[..., 0]]
    parts += [PX.sum(2), P.sum(2)] if spreads.vector else []
    parts += [(P @ X.mT).flatten(1)] if spreads.matrix else []
    return torch.cat(parts, 1)


class Objective:
    """Mean loss with its prior and its gradient, of coefficients in units of their priors' spreads.

    The loss is Σ w (log Z − f_y), and f is linear in the coefficients: Σ w f_y is a product with numbers that
    are summed once.
    """

    def __init__(self, stack: Stack, spreads: PriorSpreads) -> None:
        self.stack, self.spreads = stack, spreads
        K = stack.X.shape[1]
        vector, matrix = K * bool(spreads.vector), K * K * bool(spreads.matrix)
        self.counts = [3, vector, vector, matrix]
        self.spread = torch.full((3 + 2 * vector + matrix,), spreads.vector).to(stack.w)
        self.spread[:3] = torch.tensor(_SPREADS_OF_LINE)
        if matrix:
            self.spread[-matrix:] = spreads.matrix
            self.spread[-matrix:].view(K, K).fill_diagonal_(0)  # the diagonal belongs to w
        self.of_y = stack.of_y[:, : len(self.spread)]

    def __call__(self, t: Float[Tensor, "b p"]) -> tuple[Float[Tensor, " b"], Float[Tensor, "b p"]]:
        X, u, w, total, _ = self.stack
        θ = t * self.spread
        line, scale, offset, matrix = θ.split(self.counts, 1)
        r = line[:, None] @ u + 1
        if self.spreads.matrix:
            M = matrix.unflatten(1, scale.shape[1:] * 2) + torch.diag_embed(scale)
            f = (M @ X).addcmul_(X, r).add_(offset[..., None])
        elif self.spreads.vector:
            f = (r + scale[..., None]).mul_(X).add_(offset[..., None])
        else:
            f = X * r
        e = f.exp_()
        Z = e.sum(1)
        of_y = self.of_y[:, 0] + torch.linalg.vecdot(self.of_y, θ)
        value = torch.linalg.vecdot(w, Z.log()) - of_y + torch.linalg.vecdot(t, t) / (2 * total)
        slope = _sums(e.mul_((w / Z)[:, None]), X, u, self.spreads) - self.of_y
        return value, slope.mul_(self.spread).addcdiv_(t, total[:, None])

    def start(self, θ: Float[Tensor, "b q"]) -> Float[Tensor, "b p"]:
        """Where the fit begins, given the coefficients of a smaller model."""
        t = self.spread.new_zeros(len(θ), len(self.spread))
        t[:, : θ.shape[1]] = θ / self.spread[: θ.shape[1]].clamp_min(1e-30)
        return t

    def coefficients(self, t: Float[Tensor, " p"]) -> ScalingCoefficients:
        """The coefficients of the model itself."""
        θ = (t * self.spread).double()
        line, scale, offset, matrix = θ.split(self.counts)
        K = self.stack.X.shape[1]
        nothing = θ.new_zeros(K)
        return ScalingCoefficients(
            line + θ.new_tensor([1.0, 0.0, 0.0]),
            scale if len(scale) else nothing,
            offset if len(offset) else nothing,
            matrix.view(K, K) if len(matrix) else None,
        )
