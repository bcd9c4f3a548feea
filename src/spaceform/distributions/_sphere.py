"""Unit vectors from an angle to a mean direction and a uniform tangent direction."""

from math import prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform.distributions._inversion import fold_rows, unfold_rows
from spaceform.special._autograd import first_order
from spaceform.special._precision import no_autocast

# Below this dimension |g|² − (g·μ)² loses the norm of the tangent part, and it is formed explicitly.
_EXPLICIT = 16


def _dot(g: Float[Tensor, "draws rows dim"], loc: Float[Tensor, "rows dim"]) -> Float[Tensor, "draws rows"]:
    """g·μ as a batched product: no temporary of the size of g."""
    return torch.matmul(loc[:, None], g.permute(1, 2, 0))[:, 0].T


def _tangent(
    g: Float[Tensor, "draws rows dim"], loc: Float[Tensor, "rows dim"]
) -> tuple[Float[Tensor, "draws rows dim"], Float[Tensor, "draws rows"]]:
    """The unit tangent v of g at μ, and g·μ over the length of the tangent part."""
    if loc.shape[-1] == 2:
        # the tangent line has two unit vectors; no length is divided by, since a Gaussian can be exactly 0
        across = torch.stack([-loc[:, 1], loc[:, 0]], -1)
        return torch.where(g[..., :1] < 0, -across, across), torch.zeros_like(g[..., 0])
    a = _dot(g, loc)
    v = g - a[..., None] * loc
    r = torch.linalg.vector_norm(v, dim=-1)
    v = v / r[..., None]
    v = v - _dot(v, loc)[..., None] * loc
    return v / torch.linalg.vector_norm(v, dim=-1, keepdim=True), a / r


class _Place(torch.autograd.Function):
    """z = cos θ μ + sin θ v, v the tangent part at μ of a standard Gaussian, normalised.

    The Gaussian lives in the output's memory: two passes over it, and nothing of its size beside it.
    The gradient is that of μ ↦ z(μ/‖μ‖), tangent to the sphere at μ.
    """

    @staticmethod
    def forward(
        loc: Tensor, cos: Tensor, sin: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        g = torch.randn(*cos.shape, loc.shape[-1], dtype=loc.dtype, device=loc.device, generator=generator)
        if loc.shape[-1] < _EXPLICIT:
            v, slope = _tangent(g, loc)
            return cos[..., None] * loc + sin[..., None] * v, slope
        a = _dot(g, loc)
        r = (torch.linalg.vector_norm(g, dim=-1).square() - a * a).sqrt()
        slope = a / r
        z = g.mul_((sin / r)[..., None]).addcmul_((cos - sin * slope)[..., None], loc)
        return z, slope

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        loc, cos, sin, _ = inputs
        z, slope = output
        ctx.mark_non_differentiable(slope)
        ctx.save_for_backward(loc, cos, sin, z, slope)

    @staticmethod
    @first_order
    def backward(
        ctx: Any, grad: Tensor, _: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        loc, cos, sin, z, slope = ctx.saved_tensors
        normal = _dot(grad, loc)
        tangent = torch.linalg.vecdot(grad, z) - cos * normal  # sin θ (G·v)
        along = tangent / sin.clamp(min=torch.finfo(sin.dtype).tiny)
        grad_loc = None
        if ctx.needs_input_grad[0]:
            # dv = −((v·dμ) μ + slope (dμ − (v·dμ) v)) for dμ tangent at μ; sin θ v = z − cos θ μ
            grad_loc = torch.einsum("sbn,sb->bn", grad, cos - sin * slope)
            grad_loc = grad_loc + torch.einsum("sbn,sb->bn", z, slope * along - normal)
            grad_loc = grad_loc - torch.linalg.vecdot(grad_loc, loc)[:, None] * loc
        return grad_loc, normal, along, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        loc: Tensor,
        cos: Tensor,
        sin: Tensor,
        generator: torch.Generator | None,
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        size = info.batch_size
        if info.randomness != "different":
            raise RuntimeError(f'vmap of draws needs randomness="different", got {info.randomness!r}')
        out = _Place.apply(
            fold_rows(loc, in_dims[0], size, 0),
            fold_rows(cos, in_dims[1], size, 1),
            fold_rows(sin, in_dims[2], size, 1),
            generator,
        )
        return (unfold_rows(out[0], size, 1), unfold_rows(out[1], size, 1)), (1, 1)


def place(
    loc: Float[Tensor, "*batch dim"],
    cos: Float[Tensor, "*draws"],
    sin: Float[Tensor, "*draws"],
    *,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*draws dim"]:
    """Unit vectors at the angles (cos θ, sin θ) from `loc`, in uniform tangent directions."""
    batch, dim = loc.shape[:-1], loc.shape[-1]
    shape = (prod(cos.shape[: cos.ndim - len(batch)]), prod(batch))
    with no_autocast(loc):  # a product in half precision would lose the unit length
        z, _ = _Place.apply(loc.reshape(-1, dim), cos.reshape(shape), sin.reshape(shape), generator)
    return z.reshape(*cos.shape, dim)


def uniform_direction(
    shape: tuple[int, ...],
    dim: int,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*shape dim"]:
    """Unit vectors uniform on the sphere in `dim` dimensions."""
    g = torch.randn(*shape, dim, dtype=dtype, device=device, generator=generator)
    r = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
    # a Gaussian of length 0 has no direction: then the first axis is taken
    g[..., :1] += (r == 0).to(g.dtype)
    return g.div_(torch.linalg.vector_norm(g, dim=-1, keepdim=True))


def versine(
    loc: Float[Tensor, "*#batch dim"], value: Float[Tensor, "*#batch dim"]
) -> Float[Tensor, "*#batch"]:
    """1 − μ·z for unit vectors, as ‖z − μ‖²/2: no cancellation where the two are close."""
    apart = value - loc
    return torch.linalg.vecdot(apart, apart) / 2


def variance(
    loc: Float[Tensor, "*batch dim"], normal: Float[Tensor, "*batch"], tangent: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch dim"]:
    """The variance of each coordinate, if z has the variance `normal` along μ and `tangent` across it."""
    square = loc * loc
    return normal[..., None] * square + tangent[..., None] * (1 - square)


def covariance(
    loc: Float[Tensor, "*batch dim"], normal: Float[Tensor, "*batch"], tangent: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch dim dim"]:
    """Σ = normal μμᵀ + tangent (I − μμᵀ)."""
    eye = torch.eye(loc.shape[-1], dtype=loc.dtype, device=loc.device)
    outer = loc[..., :, None] * loc[..., None, :]
    return (normal - tangent)[..., None, None] * outer + tangent[..., None, None] * eye
