"""Eq. 8 and 12 of the paper, letter by letter, and samplers that draw whole vectors; slow and obvious."""

import math

import torch
from torch import Tensor


def log_normalizer_bounds(kappa: Tensor, n: int) -> Tensor:
    """Eq. 12 without its constant η."""
    lower = torch.sqrt(((n - 1) / 2) ** 2 + kappa**2)
    upper = torch.sqrt(((n + 1) / 2) ** 2 + kappa**2)
    return (
        (n - 1) / 4 * torch.log((n - 1) / 2 + lower)
        - lower / 2
        + (n - 1) / 4 * torch.log((n - 1) / 2 + upper)
        - upper / 2
    )


def ratio_bounds(kappa: Tensor, n: int) -> Tensor:
    """Eq. 9 and 10."""
    g = kappa / ((n - 1) / 2 + torch.sqrt(((n + 1) / 2) ** 2 + kappa**2))
    h = kappa / ((n - 1) / 2 + torch.sqrt(((n - 1) / 2) ** 2 + kappa**2))
    return (g + h) / 2


def objective(z: Tensor, mean_z: Tensor, w: Tensor, beta: Tensor, y: Tensor, log_normalizer, ratio) -> Tensor:
    """Eq. 8 of each example, from draws z (draws, batch, n), E[z] (batch, n) and w̃ (classes, n)."""
    n = w.shape[1]
    shifted = w + beta * z[:, :, None, :]
    terms = log_normalizer(w.norm(dim=-1), n) - log_normalizer(shifted.norm(dim=-1), n)
    kappa_y = w[y].norm(dim=-1)
    mean_w = (ratio(kappa_y, n) / kappa_y)[:, None] * w[y]
    return terms.logsumexp(-1).mean(0) - beta * (mean_w * mean_z).sum(-1)


def draws(mu: Tensor, cos: Tensor, sin: Tensor, v: Tensor) -> Tensor:
    """Draws cos μ ± sin v (draws, batch, n); v moves with μ by the rotation from μ₀ = μ.detach() to μ."""
    mu_0 = mu.detach()
    both = torch.cat([v, -v], 1)[:, : cos.shape[1]]
    dot = (both * mu[:, None]).sum(-1, keepdim=True)
    overlap = 1 + (mu * mu_0).sum(-1)[:, None, None]
    turned = both - dot / overlap * (mu + mu_0)[:, None]
    return (cos[..., None] * mu[:, None] + sin[..., None] * turned).transpose(0, 1)


def sample_vmf(loc: Tensor, kappa: Tensor, generator: torch.Generator) -> Tensor:
    """One draw of vMF(loc, κ) for each row of `loc`, by Wood's rejection (1994)."""
    rows, n = loc.shape
    b = (n - 1) / (2 * kappa + torch.sqrt(4 * kappa**2 + (n - 1) ** 2))
    x0 = (1 - b) / (1 + b)
    c = kappa * x0 + (n - 1) * torch.log1p(-(x0**2))
    t = torch.full_like(kappa, math.nan)
    while (left := t.isnan()).any():
        # Beta((n−1)/2, (n−1)/2) from the first coordinate of a uniform direction in n dimensions
        g = torch.randn(rows, n, dtype=loc.dtype, generator=generator)
        e = (1 + g[:, 0] / g.norm(dim=1)) / 2
        w = (1 - (1 + b) * e) / (1 - (1 - b) * e)
        u = torch.rand(rows, dtype=loc.dtype, generator=generator)
        accept = kappa * w + (n - 1) * torch.log1p(-x0 * w) - c >= torch.log(u)
        t = torch.where(left & accept, w, t)
    return place(loc, t, generator)


def sample_power_spherical(loc: Tensor, kappa: Tensor, generator: torch.Generator) -> Tensor:
    """One draw of the Power Spherical law for each row of `loc`, from two Gammas."""
    n = loc.shape[1]
    b = torch.full_like(kappa, (n - 1) / 2)
    x, y = (torch._standard_gamma(a, generator=generator) for a in (b + kappa, b))
    return place(loc, 2 * x / (x + y) - 1, generator)


def place(loc: Tensor, t: Tensor, generator: torch.Generator) -> Tensor:
    """The vectors t loc + √(1−t²) v with v uniform and orthogonal to `loc`."""
    v = torch.randn(loc.shape, dtype=loc.dtype, generator=generator)
    v = v - (v * loc).sum(-1, keepdim=True) * loc
    v = v / v.norm(dim=-1, keepdim=True)
    return t[:, None] * loc + torch.sqrt(1 - t**2)[:, None] * v
