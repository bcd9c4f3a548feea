"""Checks of the arguments of distributions on the sphere: each error is one sentence with name and value."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

# Far above the rounding of a normalised float32 vector of any length, far below what changes a density.
_UNIT_TOLERANCE = 1e-5


class _UnitVector(constraints.Constraint):
    """Vectors of length 1 on the last dimension."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return (torch.linalg.vector_norm(value, dim=-1) - 1).abs() <= _UNIT_TOLERANCE


unit_vector = _UnitVector()


def broadcast_shapes(*shapes: torch.Size) -> torch.Size:
    """torch.broadcast_shapes, which imports sympy: two seconds in every process that asks for a shape."""
    return torch.broadcast_tensors(*(torch.empty(shape, device="meta") for shape in shapes))[0].shape


def check_dim(dim: int) -> None:
    """Refuse a value that cannot be the dimension of a sphere in R^dim."""
    if isinstance(dim, bool) or not isinstance(dim, (int, torch.SymInt)) or dim < 2:
        raise ValueError(f"dim must be an integer of at least 2, got {dim!r}")


def check_floating(name: str, value: object) -> None:
    """Refuse what is not a float32 or float64 tensor."""
    if not isinstance(value, Tensor) or value.dtype not in (torch.float32, torch.float64):
        got = f"a tensor of {value.dtype}" if isinstance(value, Tensor) else repr(value)
        raise TypeError(
            f"{name} must be a float32 or float64 tensor, got {got}; convert it with .to(torch.float32)"
        )


def check_directions(name: str, value: object) -> None:
    """Refuse what is not a floating tensor of vectors with at least two coordinates."""
    check_floating(name, value)
    assert isinstance(value, Tensor)
    if value.ndim == 0 or value.shape[-1] < 2:
        raise ValueError(
            f"{name} must have 2 or more coordinates on its last dimension, got shape {tuple(value.shape)}"
        )


def check_unit(name: str, value: Tensor) -> None:
    """Refuse vectors whose length is not 1; looks at the values, so it waits for the device."""
    if torch.compiler.is_compiling() or value.numel() == 0:
        return
    length = torch.linalg.vector_norm(value.detach(), dim=-1)
    worst = (length - 1).abs().max()
    if not worst <= _UNIT_TOLERANCE:
        wrong = length.flatten()[(length - 1).abs().argmax()].item()
        raise ValueError(
            f"{name} must hold vectors of length 1, got one of length {wrong:.6g}; "
            f"normalise with torch.nn.functional.normalize({name}, dim=-1)"
        )


def check_concentration(value: Tensor) -> None:
    """Refuse negative, NaN and infinite concentrations; looks at the values."""
    if torch.compiler.is_compiling() or value.numel() == 0:
        return
    low, high = value.detach().aminmax()
    if not (low >= 0 and high < torch.inf):
        wrong = (low if not low >= 0 else high).item()
        raise ValueError(f"concentration must be finite and at least 0, got {wrong:g}")


def parameters(
    loc: Float[Tensor, "*#batch dim"], concentration: Float[Tensor, "*#batch"] | float | int
) -> tuple[Float[Tensor, "*batch dim"], Float[Tensor, "*batch"]]:
    """Mean directions and concentrations of one dtype, broadcast against each other; shapes are checked."""
    check_directions("loc", loc)
    if isinstance(concentration, (int, float)):
        concentration = torch.full((), concentration, dtype=loc.dtype, device=loc.device)
    check_floating("concentration", concentration)
    try:
        batch = broadcast_shapes(loc.shape[:-1], concentration.shape)
    except RuntimeError:
        raise ValueError(
            f"concentration must broadcast against the batch of loc, {tuple(loc.shape[:-1])}, "
            f"got the shape {tuple(concentration.shape)}"
        ) from None
    dtype = torch.promote_types(loc.dtype, concentration.dtype)
    return loc.to(dtype).expand(*batch, loc.shape[-1]), concentration.to(dtype).expand(batch)
