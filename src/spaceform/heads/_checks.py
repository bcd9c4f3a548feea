"""Checks of the inputs of heads: an error is one sentence with the value and the remedy.

Values are checked on the CPU only: on other devices that would wait for the device.
"""

import math

import torch
from torch import Tensor

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.int64)
_REMEDY = "check the network's input and, while training, the learning rate"


def is_positive_integer(value: object) -> bool:
    """Whether a value is a positive integer; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def checked_embeddings(z: Tensor, dim: int, largest: float = math.inf, *, values: bool = True) -> Tensor:
    """Embeddings (batch, dim), dense and floating point; coordinates beyond ±`largest` become ±`largest`.

    With `values` they are also checked to be finite; without it, `check_finite` must be called later.
    """
    if not isinstance(z, Tensor):
        raise TypeError(f"z must be a tensor, got {type(z).__name__}: pass torch.as_tensor(z)")
    if z.ndim != 2 or z.shape[1] != dim:
        raise ValueError(
            f"z must have shape (batch, {dim}), got {tuple(z.shape)}: this head was made with dim={dim}"
        )
    if z.layout != torch.strided:
        raise TypeError(f"z must be a dense tensor, got the layout {z.layout}: pass z.to_dense()")
    if z.dtype not in _FLOATS:
        raise TypeError(f"z must be floating point of 16 bits or more, got {z.dtype}: pass z.float()")
    if values and values_readable(z):
        least, most = ends(z)
        if -largest <= least and most <= largest < math.inf:
            return z
        _check_ends(least, most, z)
    return z if largest == math.inf or largest >= torch.finfo(z.dtype).max else z.clamp(-largest, largest)


def check_finite(z: Tensor) -> None:
    """Refuse NaN and infinite numbers, if values can be looked at."""
    if values_readable(z):
        _check_ends(*ends(z), z)


def _check_ends(least: float, most: float, z: Tensor) -> None:
    if not (math.isfinite(least) and math.isfinite(most)):
        wrong = int((~z.isfinite()).sum())
        raise ValueError(f"z must be finite, got {wrong} NaN or infinite values of {z.numel()}: {_REMEDY}")


def checked_labels(y: Tensor, z: Tensor, num_classes: int) -> Tensor:
    """Labels as int64, one for each row of z, within 0 .. num_classes − 1."""
    if not isinstance(y, Tensor):
        raise TypeError(f"y must be a tensor, got {type(y).__name__}: pass torch.as_tensor(y)")
    if y.shape != z.shape[:1]:
        raise ValueError(
            f"y must have shape ({z.shape[0]},), one label for each row of z, got {tuple(y.shape)}"
        )
    if y.dtype not in _INTEGERS or y.layout != torch.strided:
        kind = y.dtype if y.layout == torch.strided else y.layout
        raise TypeError(f"y must hold integer class labels of up to 63 bits, got {kind}: pass y.long()")
    if y.device != z.device:
        raise ValueError(f"y must be where z is, on {z.device}, got one on {y.device}: pass y.to(z.device)")
    y = y if y.dtype == torch.int64 else y.long()
    if values_readable(y):
        least, most = ends(y)
        if least < 0 or most >= num_classes:
            raise ValueError(
                f"y must lie in 0..{num_classes - 1}, got {least if least < 0 else most}: "
                f"this head was made with num_classes={num_classes}"
            )
    return y


def checked_soft_labels(y: Tensor, z: Tensor, num_classes: int) -> Tensor:
    """Labels as probabilities of every class, (batch, classes), in the type of z."""
    if y.shape != (z.shape[0], num_classes):
        raise ValueError(
            f"soft labels y must have shape ({z.shape[0]}, {num_classes}), one probability for each class, "
            f"got {tuple(y.shape)}"
        )
    if y.device != z.device:
        raise ValueError(f"y must be where z is, on {z.device}, got one on {y.device}: pass y.to(z.device)")
    if values_readable(y):
        least, most = ends(y)
        if not (least >= 0 and most <= 1):
            raise ValueError(
                f"soft labels y must lie in [0, 1], got {most if least >= 0 else least:g}: "
                "pass probabilities, such as logits.softmax(1)"
            )
    return y.to(z.dtype)


def check_label_options(
    soft: bool,
    label_smoothing: float,
    class_weight: Tensor | None,
    ignore_index: int | None,
    num_classes: int,
) -> None:
    """Refuse options of the objective that have no meaning."""
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must lie in [0, 1), got {label_smoothing!r}")
    if class_weight is not None and class_weight.shape != (num_classes,):
        raise ValueError(
            f"class_weight must have shape ({num_classes},), one number for each class, "
            f"got {tuple(class_weight.shape)}"
        )
    if soft and ignore_index is not None:
        raise ValueError(
            f"ignore_index={ignore_index} needs labels y that are integers: set rows of soft labels to 0"
        )


def ends(x: Tensor) -> tuple[float | int, float | int]:
    """The smallest and the largest value; both are NaN if one is."""
    least, most = x.detach().aminmax()
    return least.item(), most.item()


def values_readable(x: Tensor) -> bool:
    """Whether there are values, and to look at them needs no synchronisation and breaks no graph."""
    return x.is_cpu and not torch.compiler.is_compiling() and x.numel() > 0
