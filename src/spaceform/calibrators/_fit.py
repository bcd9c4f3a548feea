"""The negative log-likelihood of scaled logits, its derivatives, and its minimum by Newton's method."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

_BLOCK = 1 << 17  # logits worked on at a time: they stay in cache


class Examples(NamedTuple):
    """What a calibrator is fitted to. Every weight is positive; a weight of 2 is an example given twice."""

    logits: Float[Tensor, "draws batch classes"]
    y: Int[Tensor, " batch"]
    weight: Float[Tensor, " batch"]

    @property
    def total(self) -> float:
        """The number of examples, as their weights count it."""
        return float(self.weight.sum())

    def part(self, rows: Tensor) -> "Examples":
        """Some of the examples, by a mask."""
        return Examples(self.logits[:, rows], self.y[rows], self.weight[rows])

    def few(self, most: int) -> "Examples":
        """At most `most` examples, evenly spread."""
        step = -(-len(self.y) // most)
        return self if step == 1 else Examples(*(x.contiguous() for x in self._every(step)))

    def _every(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.logits[:, ::step], self.y[::step], self.weight[::step]


class Losses(NamedTuple):
    """The weighted mean loss; and for every example the derivatives of its loss in β, times its weight."""

    value: float
    slope: Float[Tensor, " batch"]
    curvature: Float[Tensor, " batch"]


class Curved(NamedTuple):
    value: float
    slope: Float[Tensor, " p"]
    curvature: Float[Tensor, "p p"]


def loss(examples: Examples, β: Float[Tensor, " batch"]) -> Losses:
    """φ(β) = −log (1/S) Σₛ softmax(β ℓₛ)_y of every example and its two derivatives.

    With δ = ℓ − max ℓ and m = max ℓ − ℓ_y, one draw has −log p = β m + log Σ exp βδ, slope m + E[δ],
    curvature Var[δ]. Draws are joined by their posterior weights qₛ ∝ pₛ: slope Σ qₛ φₛ', curvature Σ qₛ
    φₛ'' − Var_q[φₛ'].
    """
    L, y, weight = examples
    S, N, K = L.shape
    out = torch.empty(3, N, dtype=torch.float64, device=L.device)
    rows = max(1, _BLOCK // (S * K))
    for i in range(0, N, rows):
        block = L[:, i : i + rows]
        top = block.amax(-1, keepdim=True)
        m = (top - block.gather(-1, y[i : i + rows, None].expand(S, -1, 1))).squeeze(-1).double()
        δ, b = block - top, β[i : i + rows, None]
        e = (δ * b.to(δ.dtype)).exp_()
        Z = e.sum(-1).double()
        mean = e.mul_(δ).sum(-1).double() / Z
        var = (e.mul_(δ).sum(-1).double() / Z - mean.square()).clamp_min_(0)
        φ, slope = b.squeeze(-1) * m + Z.log(), m + mean
        if S == 1:
            out[:, i : i + rows] = torch.stack([φ[0], slope[0], var[0]])
            continue
        q = torch.softmax(-φ, 0)
        joined = (q * slope).sum(0)
        out[0, i : i + rows] = float(np.log(S)) - torch.logsumexp(-φ, 0)
        out[1, i : i + rows] = joined
        out[2, i : i + rows] = (q * (var - (slope - joined).square())).sum(0)
    out *= weight
    return Losses(out[0].sum().item() / examples.total, out[1], out[2])


def losses(examples: Examples, βs: Float[Tensor, " grid"]) -> Float[Tensor, " grid"]:
    """The value of `loss` at several β, in one go: without derivatives, which a scan does not need."""
    L, y, weight = examples
    S, N, K = L.shape
    δ = L - L.amax(-1, keepdim=True)
    m = -δ.gather(-1, y[:, None].expand(S, -1, 1)).squeeze(-1).double()
    found: list[Tensor] = []
    for block in βs.split(max(1, _BLOCK // (S * N * K))):
        b = block[:, None, None]
        φ = b * m + (δ * b.to(δ.dtype)[..., None]).exp_().sum(-1).double().log()
        found.append((float(np.log(S)) - torch.logsumexp(-φ, 1)) @ weight / examples.total)
    return torch.cat(found)


def vector_loss(
    examples: Examples, β: float, θ: Float[Tensor, " p"]
) -> tuple[Float[Tensor, ""], Float[Tensor, " p"]]:
    """Weighted mean loss of softmax(w ∘ βℓ + b) and its gradient; draws are joined as in `loss`."""
    L, y, weight = examples
    S, N, K = L.shape
    w, b = (θ[:K] * β).to(L.dtype), θ[K:].to(L.dtype)
    value, slope = θ.new_zeros(()), torch.zeros_like(θ)
    rows = max(1, _BLOCK // (S * K))
    for i in range(0, N, rows):
        X, counts = L[:, i : i + rows], weight[i : i + rows]
        of_y = y[i : i + rows, None].expand(S, -1, 1)
        f = X * w + b
        f -= f.amax(-1, keepdim=True)
        f_y = f.gather(-1, of_y).squeeze(-1).double()
        e = f.exp_()
        Z = e.sum(-1).double()
        logp_y = f_y - Z.log()
        value = value + counts @ (float(np.log(S)) - torch.logsumexp(logp_y, 0))
        q = torch.softmax(logp_y, 0) * counts
        G = e.mul_((q / Z).to(e.dtype)[..., None]).scatter_add_(-1, of_y, -q.to(e.dtype)[..., None])
        slope[K:] += G.sum((0, 1))
        slope[:K] += G.mul_(X).sum((0, 1)) * β
    return value / examples.total, slope / examples.total


def vector_curvature(examples: Examples, β: float) -> Float[Tensor, "p p"]:
    """The second derivatives of `vector_loss` at w = 1, b = 0; of several draws, as if they were their mean.

    That costs what one draw costs, and is positive semidefinite.
    """
    L, _, weight = examples
    S, N, K = L.shape
    own, shared = weight.new_zeros(3, K), weight.new_zeros(2 * K, 2 * K)
    rows = max(256, _BLOCK // (S * K))
    for i in range(0, N, rows):
        X = L[:, i : i + rows].double() * β
        P, X = torch.softmax(X, -1).mean(0), X.mean(0)
        counts = weight[i : i + rows]
        own += torch.stack([counts @ (P * X * X), counts @ (P * X), counts @ P])
        U = counts.sqrt()[:, None] * torch.cat([P * X, P], -1)
        shared.addmm_(U.T, U)
    H = torch.cat(
        [
            torch.cat([torch.diag(own[0]), torch.diag(own[1])], 1),
            torch.cat([torch.diag(own[1]), torch.diag(own[2])], 1),
        ]
    )
    return (H - shared) / examples.total


def fit_inverse_temperature(examples: Examples, prior_spread: float | None = None) -> float:
    """The β > 0 of least loss: a scan on a part of the data finds the valley, Newton's method its minimum.

    If every example is right there is no minimum, and Laplace's rule says how far to go. With a prior log β ~
    N(0, prior_spread²) there is always a minimum.
    """
    N, sample = len(examples.y), examples.few(256)
    spread = float((L := sample.logits.double()).sub(L.mean(-1, keepdim=True)).square().mean().sqrt())
    if spread == 0:
        return 1.0  # every temperature gives the same probabilities
    grid = torch.logspace(-3, 3, 13, dtype=torch.float64, device=L.device) / spread
    if prior_spread is None and all_right(sample) and all_right(examples):
        return _most_supported(examples, max(1.0, grid[-1].item()))
    if prior_spread is not None:
        grid = (
            grid.log()
        )  # in log β the prior is a parabola; in β it is not convex, and steps would be halved without end

    def objective(part: Examples) -> Callable[[Tensor], Curved]:
        if prior_spread is None:
            return lambda θ: _at_one_temperature(part, θ)
        return lambda u: _with_prior(_at_one_temperature(part, u.exp()), u, examples.total, prior_spread)

    scan = losses(sample, grid if prior_spread is None else grid.exp())
    if prior_spread is not None:
        scan += grid.square() / (2 * examples.total * prior_spread**2)
    θ = grid[int(scan.argmin())].reshape(1)
    floor = last_decrease(examples)
    for rows in (4096, N) if N > 8192 else (N,):
        θ, value = minimise(objective(examples.few(rows)), θ, grid[:1], grid[-1:], last=floor)
    several_valleys = len(examples.logits) > 1 or prior_spread is not None
    one = torch.ones_like(θ) if prior_spread is None else torch.zeros_like(θ)
    if several_valleys and objective(examples)(one).value < value:  # so the result is never worse than T = 1
        θ, _ = minimise(objective(examples), one, grid[:1], grid[-1:], last=floor)
    return θ.item() if prior_spread is None else θ.exp().item()


def _at_one_temperature(examples: Examples, θ: Float[Tensor, "1"]) -> Curved:
    v = loss(examples, θ.expand(len(examples.y)))
    N = examples.total
    return Curved(v.value, v.slope.sum().reshape(1) / N, v.curvature.sum().reshape(1, 1) / N)


def _with_prior(at: Curved, u: Float[Tensor, "1"], total: float, spread: float) -> Curved:
    """The loss as a function of u = log β, plus u²/2s² for all examples together."""
    β, N = u.exp(), total * spread**2
    slope = β * at.slope
    return Curved(
        at.value + float(u.square()) / (2 * N),
        slope + u / N,
        β.square() * at.curvature + (slope + 1 / N).reshape(1, 1),
    )


def all_right(examples: Examples) -> bool:
    """Whether no class exceeds the right one, in any draw: the loss then falls for ever as β → ∞."""
    L = examples.logits
    of_y = L.gather(-1, examples.y[:, None].expand(len(L), -1, 1)).squeeze(-1)
    return bool((of_y == L.amax(-1)).all())


def _most_supported(examples: Examples, upper: float) -> float:
    """The largest β in [1, upper] that N right answers out of N support.

    Laplace's rule of succession gives the next answer the probability (N + 1)/(N + 2) of being right: β
    raises the mean probability of the right class no higher. It increases with β, so bisection finds it.
    """
    L, y, weight = examples

    def doubt(β: float) -> float:
        """The mean probability of a wrong class."""
        total, rows = 0.0, max(1, _BLOCK // L[:, 0].numel())
        for i in range(0, len(y), rows):
            p = torch.softmax(L[:, i : i + rows].double() * β, -1).mean(0)
            total += float(weight[i : i + rows] @ (1 - p.gather(-1, y[i : i + rows, None]))[:, 0])
        return total / examples.total

    low, high, least = 1.0, upper, 1 / (examples.total + 2)
    if doubt(low) <= least:
        return low
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if doubt(middle) <= least else (middle, high)
    return low


def minimise(
    evaluate: Callable[[Tensor], Curved],
    start: Float[Tensor, " p"],
    lower: Float[Tensor, " p"],
    upper: Float[Tensor, " p"] | None = None,
    *,
    last: float = 1e-10,
    steps: int = 100,
) -> tuple[Float[Tensor, " p"], float]:
    """Newton's method within bounds: a parameter at a bound is held, and every step decreases the value.

    A step that promises a decrease below `last`, relative to the value or to a tenth, is the last one,
    and needs no evaluation: convergence is quadratic.
    """
    upper = torch.full_like(start, torch.inf) if upper is None else upper
    θ = torch.minimum(torch.maximum(start, lower), upper)
    at = evaluate(θ)
    for _ in range(steps):
        held = ((θ <= lower) & (at.slope > 0)) | ((θ >= upper) & (at.slope < 0))
        free = (~held).nonzero().squeeze(-1)
        if len(free) == 0:
            break
        step = torch.zeros_like(θ)
        step[free] = -_solve(at.curvature[free][:, free], at.slope[free])
        promise = -float(step @ at.slope)
        if promise <= last * max(abs(at.value), 0.1):  # rounding hides changes of a loss near 0
            θ = torch.minimum(torch.maximum(θ + step, lower), upper)
            break
        for halvings in range(40):
            candidate = torch.minimum(torch.maximum(θ + step * 0.5**halvings, lower), upper)
            there = evaluate(candidate)
            if there.value <= at.value + 1e-4 * float((candidate - θ) @ at.slope):
                break
        else:
            break
        θ, at = candidate, there
    return θ, at.value


def last_decrease(examples: Examples) -> float:
    """The least decrease that the rounding of the logits' dtype does not hide."""
    return 1e-10 if examples.logits.dtype == torch.float64 else 1e-7


def _solve(H: Float[Tensor, "p p"], g: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
    """H⁻¹ g, with as much added to H's diagonal as makes it positive definite: −H⁻¹ g then points
    downhill.
    """
    if len(g) == 1:  # as far as with a curvature of the opposite sign
        return g / H[0].abs().clamp_min(1e-300)
    scale = H.diagonal().abs().max().clamp_min(1e-300)
    extra = 0.0
    while True:
        factor, failed = torch.linalg.cholesky_ex(H + extra * scale * torch.eye(len(g)).to(H))
        if int(failed) == 0:
            return torch.cholesky_solve(g[:, None], factor).squeeze(-1)
        extra = max(1e-14, 10 * extra)
