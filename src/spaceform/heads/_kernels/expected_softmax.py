"""Eq. 8 as one autograd function: E_z[log Σ_j C(‖w̃_j‖)/C(‖w̃_j + βz‖)] − β E[w_y]·E[z] for draws of z.

A draw is z_s = cos_s μ ± sin_s v_p, the v in pairs. So w̃_j·z_s = cos_s (μ·w̃_j) ± sin_s (v_p·w̃_j): one product
of the weights with the rows (μ, v_1 .. v_P) and small mixtures M of its results, never a product per draw.
With q_sj = softmax_j / S · A(k)/k at k = ‖w̃_j + βz_s‖, all gradients are mixtures again: K = Mᵀq gives

    dW = β Kᵀ rows + (Σ q − A(‖w̃‖)/‖w̃‖ Σ softmax) w̃,    dμ = β K_μ W − β Σ_s ± sin_s (q_s·Wμ) v_s,

where dμ has its second term because v moves with μ by parallel transport, which keeps its law. K overwrites
the products, one block of examples after the other while it is in the cache; examples may have any weight in
the end. If the class axis is streamed, K is computed in the backward pass.
"""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Integer
from torch import Generator, Tensor

from spaceform.heads._kernels.class_shard import ClassShard, located
from spaceform.heads._kernels.class_terms import Normalizer
from spaceform.special._autograd import first_order
from spaceform.special._precision import no_autocast

# Numbers in a block of examples (its draws times its classes): the cache of a core holds a few such blocks.
_BLOCK = 2**16
# From this dimension on, vectors of one example share one Gaussian draw, if their shifts are this far apart.
_SPREAD_FROM, _SHIFT = 64, 8
# Up to 128 MiB (float32) of mixtures are kept for the backward pass; with more, the class axis is streamed.
_KEPT = 2**25
_CHUNK = 2**22


def spread_signs(pairs: int, dim: int) -> Float[Tensor, "pairs dim"]:
    """The fixed signs by which `tangents` makes several vectors from one draw; None for too many vectors."""
    if dim < _SPREAD_FROM or not 1 < pairs <= dim // _SHIFT:
        return torch.zeros(0, dim)
    return torch.randint(2, (pairs, dim), generator=torch.Generator().manual_seed(0)) * 2.0 - 1


def tangents(
    mu: Float[Tensor, "batch dim"],
    pairs: int,
    generator: Generator | None,
    signs: Float[Tensor, "spread dim"] | None = None,
) -> Float[Tensor, "batch pairs dim"]:
    """Uniform unit vectors orthogonal to μ, independent over examples.

    With `signs`, vectors of one example share one Gaussian draw: it is shifted, and its signs are changed.
    Each vector has the right law, and the correlation of two of them is about 1/√n. So a normal number, which
    costs more than everything that is done with it, is drawn once and not for every pair.
    """
    batch, dim = mu.shape
    # Not torch.randn, which a compiler cannot trace with a generator argument and a batch of any size.
    if signs is not None and len(signs) == pairs:
        one = mu.new_empty(batch, dim).normal_(generator=generator)
        g = torch.cat([one, one], 1).unfold(1, dim, dim // pairs)[:, :pairs] * signs.to(mu.dtype)
    else:
        g = mu.new_empty(batch, pairs, dim).normal_(generator=generator)
    if dim == 2:
        # In two dimensions there are only two such unit vectors.
        across = torch.stack([-mu[:, 1], mu[:, 0]], -1)[:, None]
        return torch.where(g[..., :1] < 0, -across, across)
    # Below 16 dimensions the tangent part may be short, and one projection leaves an error.
    for _ in range(2 if dim < 16 else 1):
        g = g.addcmul_((mu[:, None] @ g.mT).mT, mu[:, None], value=-1)
        g = g.div_(torch.linalg.vector_norm(g, dim=-1, keepdim=True))
    return g


def expected_objective(
    mu: Float[Tensor, "batch dim"],
    cos: Float[Tensor, "batch draws"],
    sin: Float[Tensor, "batch draws"],
    length: Float[Tensor, " batch"],
    v: Float[Tensor, "batch pairs dim"],
    weight: Float[Tensor, "classes dim"],
    beta: Float[Tensor, ""],
    y: Integer[Tensor, " batch"],
    normalizer: Normalizer,
    class_chunk: int | None,
    shard: ClassShard | None = None,
) -> Float[Tensor, " batch"]:
    """The objective of each example; E[z] = length · μ; `normalizer` says how C and A are evaluated.

    Draw s lies on the side of v_s for s < pairs, and of −v_{s − pairs} for the others. With a `shard` the
    weights are those of this rank's classes, the objective is that of all classes, and gradients are the part
    of these.
    """
    batch, draws = cos.shape
    if shard is not None:
        weight, y = shard.classes(weight, y)
    chunk = class_chunk
    rows = 1 + v.shape[1]
    if chunk is None and batch * rows * len(weight) > _KEPT:
        chunk = max(1, _CHUNK // (batch * max(draws, rows)))
    if shard is None and (chunk is None or chunk >= len(weight)):
        return _Kept.apply(mu, cos, sin, length, weight, beta, v, y, normalizer)
    return _Chunked.apply(mu, cos, sin, length, weight, beta, v, y, normalizer, chunk or len(weight), shard)


def _sides(draws: int, pairs: int, like: Tensor) -> Float[Tensor, "draws pairs"]:
    """+1 where the draw is on the side of v_p, −1 where it is on the other."""
    one = torch.eye(pairs, dtype=like.dtype, device=like.device)
    return torch.cat([one, -one])[:draws]


def _mixtures(cos: Tensor, sin: Tensor, pairs: int) -> Float[Tensor, "batch draws rows"]:
    """M with z_s = Σ_r M_sr rows_r."""
    return torch.cat([cos[..., None], sin[..., None] * _sides(cos.shape[1], pairs, cos)], 2)


def _blocks(batch: int, numbers: int) -> list[slice]:
    """Slices of examples; one slice when compiling, where a loop would fix the batch size."""
    if torch.compiler.is_compiling():
        return [slice(None)]
    size = max(1, _BLOCK // numbers)
    return [slice(a, min(a + size, batch)) for a in range(0, max(batch, 1), size)]


def _shift(mixed: Tensor, products: Tensor, beta: Tensor) -> Float[Tensor, "batch draws classes"]:
    """The k² − ‖w̃‖² = 2β w̃·z + β² of all draws."""
    return torch.baddbmm(beta * beta, mixed * (2 * beta), products)


def _logsumexp(x: Tensor) -> Tensor:
    """The logsumexp over the last axis, in place."""
    top = x.amax(-1, keepdim=True)
    return x.sub_(top).exp_().sum(-1).log_().add_(top[..., 0])


def _mix_back(
    p: Float[Tensor, "batch draws classes"], A: Tensor, A_w: Tensor, mixed: Tensor, products: Tensor
) -> tuple[Float[Tensor, "batch draws rows"], Float[Tensor, " batch"], Float[Tensor, "batch classes"]]:
    """From p = softmax / S: q·products, Σ q over draws and classes, and Σ_s q − A(‖w̃‖)/‖w̃‖ p of each class.

    Overwrites p by q = p A(k)/k and the products by K = Mᵀq. `A_w` is a number per class or one per term.
    """
    share = p.sum(1).mul_(A_w) if A_w.ndim == 1 else (p * A_w).sum(1)
    q = p.mul_(A)
    q_rows, mass = torch.bmm(q, products.mT), q.sum(1)
    q_sum, own = mass.sum(1), mass.sub_(share)
    torch.bmm(mixed.mT, q, out=products)
    return q_rows, q_sum, own


class _Target(NamedTuple):
    """The term −β E[w_y]·E[z] = −β A(‖w̃‖)/‖w̃‖ · length · w̃_y·μ."""

    length: Tensor
    norm: Tensor
    dot: Tensor
    ratio: Tensor

    @property
    def pull(self) -> Tensor:
        """A(‖w̃‖)/‖w̃‖ · length: the factor of w̃_y in dμ, and of μ in dw̃_y."""
        return self.ratio * self.length

    @property
    def value(self) -> Tensor:
        return self.pull * self.dot

    def along(self, normalizer: Normalizer, order: float) -> Tensor:
        """The rest of d(A(‖w̃‖) ŵ·μ)/dw̃ = A/‖w̃‖ μ + (A′ − A/‖w̃‖)(ŵ·μ) ŵ, times the length: of w̃_y."""
        inverse = 1 / self.norm.clamp_min(torch.finfo(self.norm.dtype).tiny ** 0.5)
        slope = normalizer.target_slope(self.norm, self.dot, order)
        return self.length * (slope - self.ratio) * self.dot * inverse * inverse


def _target(length: Tensor, norm: Tensor, dot: Tensor, normalizer: Normalizer, order: float) -> _Target:
    return _Target(length, norm, dot, normalizer.target_ratio(norm, dot, order))


def _target_of(
    weight: Tensor,
    y: Tensor,
    mu: Tensor,
    length: Tensor,
    normalizer: Normalizer,
    order: float,
    inside: Tensor | None,
) -> tuple[_Target, Tensor]:
    """The target's term and the w̃_y of each example; both are 0 if its class is on another rank."""
    w_y = weight[y] if inside is None else weight[y] * inside[:, None]
    norm, dot = torch.linalg.vector_norm(w_y, dim=1), torch.linalg.vecdot(w_y, mu)
    return _target(length, norm, dot, normalizer, order), w_y


def _finish(
    grad: Tensor,
    beta: Tensor,
    target: _Target,
    carried: Tensor,
    q_rows: Tensor,
    q_sum: Tensor,
    cos: Tensor,
    sin: Tensor,
    v: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of everything except the weights, from the q·W rows of each draw.

    `carried` is K_μ W less the target's pull on μ.
    """
    g, sides = grad[:, None], _sides(cos.shape[1], v.shape[1], cos)
    q_mu, q_v = q_rows[..., 0], (q_rows[..., 1:] * sides).sum(2)
    turned = (sin * q_mu) @ sides
    d_mu = carried - (turned[:, None] @ v)[:, 0]
    d_beta = (cos * q_mu + sin * q_v).sum(1) + beta * q_sum - target.value
    scaled = beta * g
    return (
        scaled * d_mu,
        scaled * q_mu,
        scaled * q_v,
        -beta * grad * target.ratio * target.dot,
        torch.dot(grad, d_beta),
    )


class _Kept(torch.autograd.Function):
    """All classes at once; the mixtures K are kept."""

    @staticmethod
    def forward(
        ctx: Any,
        mu: Tensor,
        cos: Tensor,
        sin: Tensor,
        length: Tensor,
        weight: Tensor,
        beta: Tensor,
        v: Tensor,
        y: Tensor,
        normalizer: Normalizer,
    ) -> Tensor:
        batch, draws = cos.shape
        pairs, dim = v.shape[1:]
        classes, order = len(weight), dim / 2 - 1
        differentiate = any(ctx.needs_input_grad)
        mixed = _mixtures(cos, sin, pairs)
        rows = torch.cat([mu[:, None], v], 1)
        products = (rows.view(-1, dim) @ weight.T).view(batch, 1 + pairs, classes)
        norm = torch.linalg.vector_norm(weight, dim=1)
        square = norm.square()
        dot = products[:, 0].gather(1, y[:, None])[:, 0]
        target = _target(length, norm[y], dot, normalizer, order)

        # Rows shorter than one or two vector registers are not worth a separate loop.
        evidence = normalizer.evidence(
            square.expand(draws, -1).contiguous() if classes < 64 else square, order
        )
        logs, parts = [], []
        for b in _blocks(batch, draws * classes):
            U = products[b]
            p, A, A_w = evidence(_shift(mixed[b], U, beta))
            top = p.amax(2, keepdim=True)
            p.sub_(top).exp_()
            total = p.sum(2, keepdim=True)
            logs.append((top + total.log()).mean((1, 2)))
            if differentiate:
                p.mul_((total * draws).reciprocal_())
                parts.append(_mix_back(p, A, A_w, mixed[b], U))
        if differentiate:
            q_rows, q_sum, own = (torch.cat(part) for part in zip(*parts, strict=True))
            # The target's pull on μ and on w̃_y is one more entry of K.
            products[:, 0].scatter_add_(1, y[:, None], -target.pull[:, None])
            ctx.save_for_backward(*(rows, products, q_rows, q_sum, own, cos, sin, weight, beta, y), *target)
            ctx.normalizer = normalizer
        return torch.cat(logs) - beta * target.value

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with no_autocast(grad):
            return _kept_backward(ctx, grad)


def _kept_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, K, q_rows, q_sum, own, cos, sin, weight, beta, y, *known = ctx.saved_tensors
    dim, target = rows.shape[2], _Target(*known)
    others = _finish(grad, beta, target, K[:, 0] @ weight, q_rows, q_sum, cos, sin, rows[:, 1:])
    d_weight = None
    if ctx.needs_input_grad[4]:
        scaled = beta * grad
        d_weight = (scaled[:, None, None] * K).view(-1, K.shape[2]).T @ rows.view(-1, dim)
        own_share = (grad @ own).index_add_(
            0, y, scaled * target.along(ctx.normalizer, dim / 2 - 1), alpha=-1
        )
        d_weight.addcmul_(own_share[:, None], weight)
    return *others[:4], d_weight, others[4], None, None, None


class _Chunked(torch.autograd.Function):
    """A chunk of classes at a time; only log Σ_j of each draw is kept, the rest is computed again."""

    @staticmethod
    def forward(
        ctx: Any,
        mu: Tensor,
        cos: Tensor,
        sin: Tensor,
        length: Tensor,
        weight: Tensor,
        beta: Tensor,
        v: Tensor,
        y: Tensor,
        normalizer: Normalizer,
        chunk: int,
        shard: ClassShard | None,
    ) -> Tensor:
        batch, draws = cos.shape
        y, inside = (y, None) if shard is None else located(y, len(weight))
        mixed = _mixtures(cos, sin, v.shape[1])
        rows = torch.cat([mu[:, None], v], 1)
        log_sum = cos.new_full((batch, draws), -torch.inf)
        for w in weight.split(chunk):
            log_sum = torch.logaddexp(log_sum, _log_sum(w, rows, mixed, beta, normalizer))
        order = mu.shape[1] / 2 - 1
        value = _target_of(weight, y, mu, length, normalizer, order, inside)[0].value[:, None]
        if shard is not None:
            log_sum, value = shard.reduced(log_sum, value)
        ctx.save_for_backward(rows, log_sum, cos, sin, length, weight, beta, y, inside)
        ctx.normalizer, ctx.chunk = normalizer, chunk
        return log_sum.mean(1) - beta * value[:, 0]

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with no_autocast(grad):
            return _streamed_backward(ctx, grad)


def _log_sum(
    w: Float[Tensor, "classes dim"], rows: Tensor, mixed: Tensor, beta: Tensor, normalizer: Normalizer
) -> Float[Tensor, "batch draws"]:
    """The log Σ_j C(‖w̃_j‖)/C(k) of each draw over these classes."""
    batch, draws, _ = mixed.shape
    dim = rows.shape[2]
    evidence = normalizer.evidence(torch.linalg.vector_norm(w, dim=1).square(), dim / 2 - 1)
    products = (rows.flatten(0, 1) @ w.T).view(batch, rows.shape[1], len(w))
    shifts = (_shift(mixed[b], products[b], beta) for b in _blocks(batch, draws * len(w)))
    return torch.cat([_logsumexp(evidence.log(shift)) for shift in shifts])


def _streamed_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, log_sum, cos, sin, length, weight, beta, y, inside = ctx.saved_tensors
    batch, draws = cos.shape
    dim, normalizer = rows.shape[2], ctx.normalizer
    order = dim / 2 - 1
    mu, mixed = rows[:, 0], _mixtures(cos, sin, rows.shape[1] - 1)
    target, w_y = _target_of(weight, y, mu, length, normalizer, order, inside)
    log_sum = log_sum + math.log(draws)
    scaled = beta * grad
    scaled_rows = (scaled[:, None, None] * rows).flatten(0, 1)
    d_weight = torch.empty_like(weight) if ctx.needs_input_grad[4] else None
    q_rows = torch.zeros_like(mixed)
    carried, q_sum = torch.zeros_like(mu), torch.zeros_like(grad)
    for start in range(0, len(weight), ctx.chunk):
        w = weight[start : start + ctx.chunk]
        square = torch.linalg.vector_norm(w, dim=1).square()
        evidence = normalizer.evidence(square, order)
        products = (rows.flatten(0, 1) @ w.T).view(batch, rows.shape[1], len(w))
        own = torch.zeros_like(square)
        for b in _blocks(batch, draws * len(w)):
            U = products[b]
            p, A, A_w = evidence(_shift(mixed[b], U, beta))
            p.sub_(log_sum[b][..., None]).exp_()
            in_block = _mix_back(p, A, A_w, mixed[b], U)
            q_rows[b] += in_block[0]
            q_sum[b] += in_block[1]
            own += grad[b] @ in_block[2]
        carried += products[:, 0] @ w
        if d_weight is not None:
            d_w = d_weight[start : start + ctx.chunk]
            torch.mm(products.flatten(0, 1).T, scaled_rows, out=d_w)
            d_w.addcmul_(own[:, None], w)
        del products, U  # to free the memory before the next are made
    if d_weight is not None:
        here = scaled if inside is None else scaled * inside
        along = target.along(normalizer, order)[:, None] * w_y
        pulled = torch.addcmul(along, target.pull[:, None], mu)
        d_weight.index_add_(0, y, here[:, None] * pulled, alpha=-1)
    carried -= target.pull[:, None] * w_y
    others = _finish(grad, beta, target, carried, q_rows, q_sum, cos, sin, rows[:, 1:])
    return *others[:4], d_weight, others[4], None, None, None, None, None
