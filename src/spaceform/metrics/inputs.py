"""Checks of the inputs of all metrics: tensors or numpy arrays; each error is one sentence."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

TensorOrArray = Tensor | npt.NDArray[Any]
"""A tensor on any device, or a numpy array."""

_HALVES = (torch.float16, torch.bfloat16)


def as_tensor(x: TensorOrArray, name: str) -> Tensor:
    """The array as a tensor without gradient."""
    if isinstance(x, np.ndarray):
        if x.dtype.kind not in "fiub":
            raise TypeError(f"{name} must hold numbers, got {x.dtype}; number the classes: 0, 1, 2, ...")
        # torch takes only native byte order and writable memory; other arrays are copied.
        return torch.from_numpy(np.require(x, x.dtype.newbyteorder("="), ["C", "W"]))
    if isinstance(x, Tensor):
        return x.detach()
    raise TypeError(f"{name} must be a tensor or a numpy array, got {type(x).__name__}; use torch.as_tensor")


def as_floats(x: TensorOrArray, name: str, ndim: int | tuple[int, ...]) -> Tensor:
    """A non-empty floating-point tensor with one of the given numbers of axes; half precisions become
    float32.
    """
    t = as_tensor(x, name)
    ndims = (ndim,) if isinstance(ndim, int) else ndim
    if t.ndim not in ndims:
        wanted = " or ".join(str(n) for n in ndims)
        raise ValueError(f"{name} must have {wanted} axes, got shape {tuple(t.shape)}")
    if t.numel() == 0:
        raise ValueError(f"{name} is empty (shape {tuple(t.shape)}); at least one example is needed")
    if not t.is_floating_point():
        raise TypeError(f"{name} must hold floating-point numbers, got {t.dtype}; convert with .float()")
    return t.float() if t.dtype in _HALVES else t


def as_finite(x: TensorOrArray, name: str, ndim: int | tuple[int, ...]) -> Tensor:
    """`as_floats` without NaN or infinity."""
    t = as_floats(x, name, ndim)
    if not bool(
        (t.min() > -torch.inf) & (t.max() < torch.inf)
    ):  # with a NaN both are NaN, which compares false
        first = int((~torch.isfinite(t)).flatten().nonzero()[0])
        raise ValueError(
            f"{name} must be finite, but entry {first} (flattened) is {t.flatten()[first].item()}"
        )
    return t


def on_cpu(x: TensorOrArray) -> bool:
    """Whether values can be read at once: on other devices that would wait for the device."""
    return not isinstance(x, Tensor) or x.device.type == "cpu"


def finite_on_cpu(x: TensorOrArray, name: str, ndim: int | tuple[int, ...]) -> Tensor:
    """`as_finite`, but values on other devices are not checked."""
    return as_finite(x, name, ndim) if on_cpu(x) else as_floats(x, name, ndim)


def as_labels(y: TensorOrArray, name: str, length: int, classes: int | None = None) -> Int[Tensor, " batch"]:
    """Integer labels of the given length, inside [0, classes) where the number of classes is known."""
    t = as_tensor(y, name)
    if t.is_floating_point() or t.is_complex() or t.dtype == torch.bool:
        raise TypeError(f"{name} must hold integer labels, got {t.dtype}; convert with .long()")
    if t.ndim != 1:
        raise ValueError(f"{name} must have one axis, got shape {tuple(t.shape)}")
    if len(t) != length:
        raise ValueError(f"{name} has {len(t)} entries for {length} examples; the lengths must agree")
    t = t.long()
    if classes is not None:
        low, high = int(t.min()), int(t.max())
        if low < 0 or high >= classes:
            raise ValueError(f"{name} must lie in 0..{classes - 1}, got {low if low < 0 else high}")
    return t


def as_correct(
    correct: TensorOrArray, length: int, name: str = "correct", example: str = "probs.argmax(-1) == y"
) -> Bool[Tensor, " batch"]:
    """Right or wrong, as booleans or as zeros and ones."""
    t = as_tensor(correct, name)
    if t.ndim != 1 or len(t) != length:
        raise ValueError(f"{name} has shape {tuple(t.shape)} for {length} scores; the lengths must agree")
    if t.dtype != torch.bool and not bool(((t == 0) | (t == 1)).all()):
        raise ValueError(f"{name} must hold booleans (or zeros and ones), for example {example}")
    return t.bool()


def as_counts(counts: TensorOrArray | None, length: int) -> Int[Tensor, "*draws batch"]:
    """How often each example occurs, on the CPU; once by default."""
    if counts is None:
        return torch.ones(length, dtype=torch.int64)
    t = as_tensor(counts, "counts")
    if t.is_floating_point() or t.dtype == torch.bool:
        raise TypeError(f"counts must be integers (how often each example occurs), got {t.dtype}")
    if t.ndim == 0 or t.shape[-1] != length:
        raise ValueError(f"counts has shape {tuple(t.shape)} for {length} examples; the last axis must agree")
    if t.numel() == 0 or int(t.min()) < 0 or int(t.sum(-1).min()) == 0:
        raise ValueError("counts must be non-negative, with at least one example counted in every row")
    return t.cpu()


def as_probs(probs: TensorOrArray, name: str = "probs") -> Float[Tensor, "batch classes"]:
    """Rows of probabilities: non-negative, summing to one within 1e-3 (2e-2 if they came in half
    precision).
    """
    half = as_tensor(probs, name).dtype in _HALVES
    p = as_floats(probs, name, 2)
    totals = p.sum(-1)
    off = (totals - 1).abs().max()
    if not bool(off <= (2e-2 if half else 1e-3)):  # NaN compares false
        if bool(torch.isnan(off)):
            row = int(torch.isnan(totals).nonzero()[0])
            raise ValueError(f"{name} must not hold NaN, but row {row} does")
        row = int((totals - 1).abs().argmax())
        raise ValueError(
            f"{name} must sum to one in every row, but row {row} sums to {totals[row].item():.4g}; "
            "pass softmax(logits), not logits"
        )
    smallest = p.min()
    if bool(smallest < 0):
        raise ValueError(f"{name} must not be negative, got {smallest.item():.4g}; pass softmax(logits)")
    return p


def predicted_class(scores: Float[Tensor, "batch classes"]) -> Int[Tensor, " batch"]:
    """The first of the largest entries of each row."""
    if scores.device.type == "cpu":
        return torch.from_numpy(scores.numpy().argmax(-1))  # four times as fast as torch.argmax
    return scores.argmax(-1)


def top_label(
    probs: Float[Tensor, "batch classes"], y: Int[Tensor, " batch"]
) -> tuple[Float[Tensor, " batch"], Bool[Tensor, " batch"]]:
    """Confidence of the predicted class and whether it is right, on the CPU."""
    guess = predicted_class(probs)
    confidence = probs.gather(-1, guess[:, None]).squeeze(-1)
    return confidence.cpu(), (guess == y.to(guess.device)).cpu()
