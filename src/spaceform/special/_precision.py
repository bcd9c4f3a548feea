"""Precision that reductions need, whatever autocast says."""

import contextlib

import torch
from torch import Tensor


def no_autocast(z: Tensor) -> contextlib.AbstractContextManager[None]:
    """Leaves autocast, if it is on: reductions need float32."""
    device = z.device.type
    on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if on else contextlib.nullcontext()
