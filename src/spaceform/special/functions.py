"""The public functions: checked arguments, closed-form derivatives of any order.

Measured errors are the worst against mpmath over dims 2 to 65,536 and concentrations 0 to 1e8; the full table
is docs/special-error.md. Values are checked (non-negative, not NaN) on CPU tensors only: on other devices, in
vmap and under torch.compile that would wait for the device or stop the trace; there NaN is passed on, and a
negative concentration is not noticed. Half precisions are computed in float32.
"""

import contextlib
import math
import operator
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform.special import bounds, exact
from spaceform.special._autograd import KeepingInputs, known_signature

BesselMethod = Literal["exact", "bounds"]

METHODS = {"exact": exact, "bounds": bounds}


def log_iv(order: float | int, x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Logarithm of I_v(x), the modified Bessel function of the first kind, for real v ≥ 0 and x ≥ 0.

    At x = 0 it is 0 for order 0 and −∞ for the others. Error below 4 ε (max(1, |log I_v|) + v + x), float64.
    """
    if isinstance(order, bool) or not isinstance(order, (int, float)) or not 0 <= order < math.inf:
        raise ValueError(f"order must be a finite number of at least 0, got {order!r}")
    _check_values("x", x)
    return _in_working_precision(lambda x: _LogIv.apply(x, float(order)), x)


def log_normalizer(
    concentration: Float[Tensor, "*batch"], dim: int, *, method: BesselMethod = "exact"
) -> Float[Tensor, "*batch"]:
    """The normaliser log C_n(κ): minus the logarithm of ∫ exp(κ μ·z) dz over the unit sphere of R^n.

    Exact: error relative to max(1, |log C_n|) + κ A_n 3.3e-16 in float64, 1.7e-7 in float32. Bounds: eq. 12
    without its unknown constant η, so that only differences mean something; these are off by up to 0.13 nats
    at n = 2, 0.11 at n = 3, 0.096 at n = 128 and 0.097 at n = 2048.
    """
    order = _order(dim, method)
    _check_values("concentration", concentration)
    return _in_working_precision(lambda x: _LogNormalizer.apply(x, order, method), concentration)


def mean_resultant_length(
    concentration: Float[Tensor, "*batch"], dim: int, *, method: BesselMethod = "exact"
) -> Float[Tensor, "*batch"]:
    """A_n(κ) = I_{n/2}(κ)/I_{n/2−1}(κ): the length of the mean of a von Mises–Fisher distribution.

    Exact: relative error 1.1e-15 in float64, 2.6e-7 in float32; of its derivative 2.0e-14 and 7.6e-7. Bounds
    (eq. 10): relative error up to 0.5 (n = 2), 0.25 (n = 3), 0.033 (n = 16), 3.9e-3 (n = 128).
    """
    order = _order(dim, method)
    _check_values("concentration", concentration)
    return _in_working_precision(lambda x: MeanResultantLength.apply(x, order, method), concentration)


def concentration_from_mean_resultant_length(
    r: Float[Tensor, "*batch"], dim: int, *, method: BesselMethod = "exact"
) -> Float[Tensor, "*batch"]:
    """The κ with A_n(κ) = r, for 0 ≤ r ≤ 1; infinite at r = 1.

    The answer reproduces r below ½, and 1 − r above, to a relative error of 9.0e-15 in float64 and 1.1e-6 in
    float32.
    """
    order = _order(dim, method)
    _check_values("r", r, most=1.0)
    return _in_working_precision(lambda r: _Concentration.apply(r, order, method), r)


def divergence_from_uniform(
    concentration: Float[Tensor, "*batch"], dim: int, *, method: BesselMethod = "exact"
) -> Float[Tensor, "*batch"]:
    """KL(vMF(μ, κ) ‖ uniform) = log C_n(κ) − log C_n(0) + κ A_n(κ), without the cancellation of the terms.

    Exact: relative error 2e-15 in float64 and 5e-7 in float32 for κ from 0.01 to 1e8. Bounds: A and C of
    eq. 10 and 12, whose constant η cancels.
    """
    order = _order(dim, method)
    _check_values("concentration", concentration)
    return _in_working_precision(lambda x: _Divergence.apply(x, order, method), concentration)


def log_normalizer_difference(
    concentration: Float[Tensor, "*#batch"],
    other: Float[Tensor, "*#batch"] | None,
    dim: int,
    *,
    squared_difference: Float[Tensor, "*#batch"] | None = None,
    method: BesselMethod = "exact",
) -> Float[Tensor, "..."]:
    """The difference log C_n(concentration) − log C_n(other), without the cancellation of subtracting them.

    If `squared_difference` = other² − concentration² is given, because it is known better than the lengths
    (for ‖w + βz‖ it is 2β w·z + β²), it stands for `other`, which is then not read and may be None: value and
    gradients are those of a function of concentration and squared_difference, finite also where other is 0.
    Shapes broadcast. Exact, float32: error relative to 1 + |difference| 3.3e-7.
    """
    order = _order(dim, method)
    _check_values("concentration", concentration)
    if squared_difference is not None:
        _check_dtype("squared_difference", squared_difference)
        x, delta = torch.broadcast_tensors(concentration, squared_difference)
        return _in_working_precision(
            lambda x, delta: _DifferenceBySquares.apply(x, delta, order, method), x, delta
        )
    if other is None:
        raise ValueError("other is None and so is squared_difference; give one of them")
    _check_values("other", other)
    x, other = torch.broadcast_tensors(concentration, other)
    return _in_working_precision(lambda x, other: _Difference.apply(x, other, order, method), x, other)


def _order(dim: int, method: str) -> float:
    if isinstance(dim, bool) or not isinstance(dim, (int, torch.SymInt)) or dim < 2:
        raise ValueError(f"dim must be an integer of at least 2, got {dim!r}")
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    return operator.index(dim) / 2 - 1  # a size that torch.compile holds symbolic becomes a number here


def _check_dtype(name: str, value: Tensor) -> None:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = f"a tensor of {value.dtype}" if isinstance(value, Tensor) else repr(value)
        raise TypeError(
            f"{name} must be a floating-point tensor, got {kind}; convert it with .to(torch.float32)"
        )


def _check_values(name: str, value: Tensor, *, most: float = math.inf) -> None:
    """Refuse negative and NaN values on the CPU; on other devices looking would wait, and NaN comes out."""
    _check_dtype(name, value)
    if torch.compiler.is_compiling() or value.device.type != "cpu" or value.numel() == 0:
        return
    # Under vmap and fake tensors there are no values to look at, and asking raises RuntimeError.
    with contextlib.suppress(RuntimeError):
        low, high = (float(v) for v in value.detach().aminmax())
        if not (low >= 0 and high <= most):
            wrong = low if not low >= 0 else high
            allowed = "non-negative" if most == math.inf else f"between 0 and {most:g}"
            raise ValueError(f"{name} must be {allowed}, got {wrong:g}")


def _in_working_precision(function: Any, *arguments: Tensor) -> Tensor:
    """Compute in float32 or float64; half precisions are widened first and the result narrowed."""
    dtype = arguments[0].dtype
    for argument in arguments[1:]:
        dtype = torch.promote_types(dtype, argument.dtype)
    working = dtype if dtype in (torch.float32, torch.float64) else torch.float32
    return function(*(argument.to(working) for argument in arguments)).to(dtype)


class _LogNormalizer(KeepingInputs):
    @staticmethod
    def forward(x: Tensor, order: float, method: str) -> Tensor:
        return METHODS[method].log_normalizer(x, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return (grad * MeanResultantLength.apply(x, *ctx.constants)).neg_(), None, None


@known_signature
class MeanResultantLength(KeepingInputs):
    """A_n(κ), unchecked."""

    @staticmethod
    def forward(x: Tensor, order: float, method: str) -> Tensor:
        return METHODS[method].mean(x, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,), (order, method) = ctx.saved_tensors, ctx.constants
        return grad * METHODS[method].slope(x, order), None, None


class _Divergence(KeepingInputs):
    """Its derivative is κ A′(κ)."""

    @staticmethod
    def forward(x: Tensor, order: float, method: str) -> Tensor:
        return METHODS[method].divergence(x, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,), (order, method) = ctx.saved_tensors, ctx.constants
        return grad * x * METHODS[method].slope(x, order), None, None


class _LogIv(KeepingInputs):
    @staticmethod
    def forward(x: Tensor, order: float) -> Tensor:
        return exact.log_iv(x, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,), (order,) = ctx.saved_tensors, ctx.constants
        slope = MeanResultantLength.apply(x, order, "exact")
        return grad * (slope + order / x if order > 0 else slope), None


class _Concentration(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(r: Tensor, order: float, method: str) -> Tensor:
        law = METHODS[method]
        rest = 1 - r
        # Right at both ends and a few per cent off between them (Banerjee et al. 2005).
        x = r * (2 * order + 2 - r * r) / (rest * (1 + r))
        for _ in range(NEWTON_STEPS):
            excess = torch.where(r < 0.5, law.mean(x, order) - r, rest - law.shortfall(x, order))
            x = x - excess / law.slope(x, order)
        return torch.where(r == 1, math.inf, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.order, ctx.method = inputs
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return grad / METHODS[ctx.method].slope(x, ctx.order), None, None


NEWTON_STEPS = 4


class _Difference(KeepingInputs):
    @staticmethod
    def forward(x: Tensor, other: Tensor, order: float, method: str) -> Tensor:
        return METHODS[method].difference(x, other, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, other = ctx.saved_tensors
        d_x = -grad * MeanResultantLength.apply(x, *ctx.constants)
        return d_x, grad * MeanResultantLength.apply(other, *ctx.constants), None, None


class _DifferenceBySquares(KeepingInputs):
    @staticmethod
    def forward(x: Tensor, delta: Tensor, order: float, method: str) -> Tensor:
        return METHODS[method].difference_and_weight(x * x, delta, order)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (x, delta), (order, method) = ctx.saved_tensors, ctx.constants
        weight = METHODS[method].weight((x * x + delta).clamp_min(0), order)
        d_x = weight * x - MeanResultantLength.apply(x, order, method)
        return grad * d_x, grad * weight / 2, None, None
