"""The Poincaré ball as it is written on paper: slow, obvious, in float64 tensors or mpmath numbers."""

import mpmath
import torch
from torch import Tensor


def mobius_add(x: Tensor, y: Tensor, c: float) -> Tensor:
    """The textbook formula, broadcasting over leading axes."""
    xy = (x * y).sum(-1, keepdim=True)
    x2 = (x * x).sum(-1, keepdim=True)
    y2 = (y * y).sum(-1, keepdim=True)
    return ((1 + 2 * c * xy + c * y2) * x + (1 - c * x2) * y) / (1 + 2 * c * xy + c**2 * x2 * y2)


def eq2_logits(z: Tensor, p: Tensor, a: Tensor, c: float) -> Tensor:
    """Eq. 2 letter by letter, through a tensor of shape (batch, classes, dim)."""
    w = mobius_add(-p[None], z[:, None], c)
    conformal = 2 / (1 - c * (p * p).sum(-1))
    norm = a.norm(dim=-1)
    argument = 2 * c**0.5 * (w * a).sum(-1) / ((1 - c * (w * w).sum(-1)) * norm)
    return conformal * norm / c**0.5 * torch.asinh(argument)


def head_logits(z: Tensor, points: Tensor, normals: Tensor, c: float, margin: float = 1e-3) -> Tensor:
    """Eq. 2 on free vectors: exponential maps at 0, the embedding projected, normals shrunk there."""

    def expmap0(v: Tensor) -> Tensor:
        r = c**0.5 * v.norm(dim=-1, keepdim=True)
        return torch.tanh(r) / r * v

    x, p = expmap0(z), expmap0(points)
    norm = c**0.5 * x.norm(dim=-1, keepdim=True)
    x = torch.where(norm > 1 - margin, x * (1 - margin) / norm, x)
    return eq2_logits(x, p, normals * (1 - c * (p * p).sum(-1, keepdim=True)), c)


def exact_distance(x: Tensor, y: Tensor, c: float) -> float:
    """The distance of two points with 60 digits."""
    with mpmath.workdps(60):
        a, b, k = [mpmath.mpf(t) for t in x.tolist()], [mpmath.mpf(t) for t in y.tolist()], mpmath.mpf(c)
        chord2 = sum((s - t) ** 2 for s, t in zip(a, b, strict=True))
        gap = (1 - k * sum(s * s for s in a)) * (1 - k * sum(t * t for t in b))
        return float(mpmath.acosh(1 + 2 * k * chord2 / gap) / mpmath.sqrt(k))


def problem(
    c: float,
    batch: int,
    classes: int,
    dim: int,
    seed: int = 0,
    reach: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Embeddings, labels, points and normals of size about `reach` in units of the ball's radius."""
    g = torch.Generator().manual_seed(seed)
    unit = reach / (c * dim) ** 0.5
    z = unit * torch.randn(batch, dim, generator=g, dtype=torch.float64)
    points = 0.3 * unit * torch.randn(classes, dim, generator=g, dtype=torch.float64)
    normals = torch.randn(classes, dim, generator=g, dtype=torch.float64)
    y = torch.randint(classes, (batch,), generator=g)
    return z.to(dtype), y, points.to(dtype), normals.to(dtype)


def gradients(value: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    weights = torch.linspace(0.5, 2, value.numel(), dtype=value.dtype).view_as(value)
    return torch.autograd.grad((value * weights).sum(), inputs)
