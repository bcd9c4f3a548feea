"""The negative log-likelihood of scaled logits with its derivatives, and its minimum by Newton's method."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

_BLOCK = 1 << 17  # logits worked on at a time: they stay in cache


class Losses(NamedTuple):
    """Mean loss; per-example derivatives in β."""

    value: float
    slope: Float[Tensor, " batch"]
    curvature: Float[Tensor, " batch"]


class Value(NamedTuple):
    value: float
    slope: Float[Tensor, " p"]
    curvature: Float[Tensor, "p p"]


def with_finite_squares(L: Float[Tensor, "draws batch classes"]) -> Float[Tensor, "draws batch classes"]:
    """Huge logits in double precision, which the curvature of their loss needs."""
    largest = float(L.abs().max())
    if largest > 1e100:
        raise ValueError(f"logits reach {largest:.0e}: the model has diverged; train it at a lower rate")
    return L.double() if largest > 1e15 else L


def loss(
    L: Float[Tensor, "draws batch classes"], y: Int[Tensor, " batch"], β: Float[Tensor, " batch"]
) -> Losses:
    """φ(β) = −log (1/S) Σₛ softmax(β ℓₛ)_y of every example and its two derivatives.

    With δ = ℓ − max ℓ and m = max ℓ − ℓ_y, one draw has −log p = β m + log Σ exp βδ, slope m + E[δ],
    curvature Var[δ]. Draws are joined by their posterior weights qₛ ∝ pₛ: slope Σ qₛ φₛ', curvature Σ qₛ
    φₛ'' − Var_q[φₛ'].
    """
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
    return Losses(out[0].mean().item(), out[1], out[2])


def vector_loss(
    L: Float[Tensor, "draws batch classes"], y: Int[Tensor, " batch"], β: float, θ: Float[Tensor, " p"]
) -> Value:
    """Loss of softmax(w ∘ βℓ + b), gradient and Hessian; draws are joined as in `loss`."""
    S, N, K = L.shape
    w, b = θ[:K], θ[K:]
    value, slope = 0.0, torch.zeros_like(θ)
    own, shared = θ.new_zeros(3, K), θ.new_zeros(2 * K, 2 * K)
    rows = max(256, _BLOCK // (S * K))
    for i in range(0, N, rows):
        X = L[:, i : i + rows].double() * β
        of_y = y[i : i + rows, None].expand(S, -1, 1)
        logp = torch.log_softmax(X * w + b, -1)
        logp_y = logp.gather(-1, of_y).squeeze(-1)
        value += float((float(np.log(S)) - torch.logsumexp(logp_y, 0)).sum())
        q = torch.softmax(logp_y, 0)[..., None]
        P = logp.exp_()
        qP, root = q * P, q.sqrt()
        own += torch.stack([(qP * X * X).sum((0, 1)), (qP * X).sum((0, 1)), qP.sum((0, 1))])
        U = (root * torch.cat([P * X, P], -1)).reshape(-1, 2 * K)
        shared.addmm_(U.T, U)
        G = P.scatter_add_(-1, of_y, -torch.ones_like(q))
        g = torch.cat([G * X, G], -1)  # gradient of each draw's loss
        joined = (q * g).sum(0)
        slope += joined.sum(0)
        if S > 1:  # the spread of the draws' gradients bends the loss down
            spread = (root * (g - joined)).reshape(-1, 2 * K)
            shared.addmm_(spread.T, spread)
    H = torch.cat(
        [
            torch.cat([torch.diag(own[0]), torch.diag(own[1])], 1),
            torch.cat([torch.diag(own[1]), torch.diag(own[2])], 1),
        ]
    )
    return Value(value / N, slope / N, (H - shared) / N)


def fit_inverse_temperature(L: Float[Tensor, "draws batch classes"], y: Int[Tensor, " batch"]) -> float:
    """The β > 0 of least loss: a scan of a part of the data finds the valley, Newton's method its floor.

    Where every example is right there is no floor, and Laplace's rule says how far down to go.
    """
    S, N, _ = L.shape
    few, labels = _part(L, y, 256)
    spread = float((few.double() - few.double().mean(-1, keepdim=True)).square().mean().sqrt())
    if spread == 0:
        return 1.0  # every temperature gives the same probabilities
    grid = torch.logspace(-3, 3, 13, dtype=torch.float64, device=L.device) / spread
    if all_right(few, labels) and all_right(L, y):
        return _most_supported(L, y, max(1.0, grid[-1].item()))
    scanned = [loss(few, labels, g.expand(len(labels))).value for g in grid]
    θ, value = grid[int(np.argmin(scanned))].reshape(1), 0.0
    for rows in (4096, N) if N > 8192 else (N,):
        part, labels = _part(L, y, rows)

        def evaluate(θ: Tensor, part: Tensor = part, labels: Tensor = labels) -> Value:
            v = loss(part, labels, θ.expand(len(labels)))
            return Value(v.value, v.slope.mean().reshape(1), v.curvature.mean().reshape(1, 1))

        θ, value = minimise(evaluate, θ, grid[:1], grid[-1:], last=last_decrease(L))
    one = torch.ones_like(θ)
    if S > 1 and evaluate(one).value < value:  # several valleys: at least never worse than T = 1
        θ, _ = minimise(evaluate, one, grid[:1], grid[-1:], last=last_decrease(L))
    return θ.item()


def all_right(L: Float[Tensor, "draws batch classes"], y: Int[Tensor, " batch"]) -> bool:
    """Whether no class exceeds the right one, in any draw: the loss then falls for ever as β → ∞."""
    of_y = L.gather(-1, y[:, None].expand(len(L), -1, 1)).squeeze(-1)
    return bool((of_y == L.amax(-1)).all())


def _most_supported(L: Float[Tensor, "draws batch classes"], y: Int[Tensor, " batch"], upper: float) -> float:
    """The β in [1, upper] up to which N right answers of N support more confidence.

    Laplace's rule of succession gives the next answer the probability (N + 1)/(N + 2) of being right: β
    raises the mean probability of the right class no higher. It increases with β, so bisection finds it.
    """
    N = len(y)

    def doubt(β: float) -> float:
        """The mean probability of a wrong class."""
        total, rows = 0.0, max(1, _BLOCK // L[:, 0].numel())
        for i in range(0, N, rows):
            p = torch.softmax(L[:, i : i + rows].double() * β, -1).mean(0)
            total += float((1 - p.gather(-1, y[i : i + rows, None])).sum())
        return total / N

    low, high, least = 1.0, upper, 1 / (N + 2)
    if doubt(low) <= least:
        return low
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if doubt(middle) <= least else (middle, high)
    return low


def _part(
    L: Float[Tensor, "draws batch classes"], y: Int[Tensor, " batch"], rows: int
) -> tuple[Float[Tensor, "draws part classes"], Int[Tensor, " part"]]:
    """At most so many examples, evenly spread."""
    step = -(-len(y) // rows)
    return (L, y) if step == 1 else (L[:, ::step].contiguous(), y[::step].contiguous())


def minimise(
    evaluate: Callable[[Tensor], Value],
    start: Float[Tensor, " p"],
    lower: Float[Tensor, " p"],
    upper: Float[Tensor, " p"] | None = None,
    *,
    last: float = 1e-10,
    steps: int = 100,
) -> tuple[Float[Tensor, " p"], float]:
    """Newton's method within bounds: what presses against a bound is held, every step decreases the value.

    A step that promises a relative decrease below `last` is the last one, and needs no evaluation:
    convergence is quadratic.
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
        if promise <= last * abs(at.value):
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


def last_decrease(L: Float[Tensor, "draws batch classes"]) -> float:
    """Decreases below this drown in the rounding of the logits' dtype."""
    return 1e-10 if L.dtype == torch.float64 else 1e-7


def _solve(H: Float[Tensor, "p p"], g: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
    """H⁻¹ g, with as much added to H's diagonal as makes it positive definite: −H⁻¹ g then points
    downhill.
    """
    scale = H.diagonal().abs().max().clamp_min(1e-300)
    extra = 0.0
    while True:
        factor, failed = torch.linalg.cholesky_ex(H + extra * scale * torch.eye(len(g)).to(H))
        if int(failed) == 0:
            return torch.cholesky_solve(g[:, None], factor).squeeze(-1)
        extra = max(1e-14, 10 * extra)


def ramps(κ: Float[Tensor, " batch"], at: Float[Tensor, " knots"]) -> Float[Tensor, "batch gaps"]:
    """How far log κ has come from each knot to the next, in [0, 1]."""
    x = κ.log().clamp(at[0], at[-1])
    return ((x[:, None] - at[:-1]) / at.diff()).clamp(0, 1)


def monotone(
    κ: Float[Tensor, " batch"], at: Float[Tensor, " knots"], rises: bool
) -> Float[Tensor, "batch knots"]:
    """Functions of κ whose sums with coefficients of at least 0 rise, or fall, between the knots."""
    way = ramps(κ, at)
    return torch.cat([torch.ones_like(way[:, :1]), way if rises else 1 - way], -1)
