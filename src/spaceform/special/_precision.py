"""The precision that reductions need, whatever autocast says."""

import contextlib

import torch
from torch import Tensor

_AS_IT_IS = contextlib.nullcontext()


def no_autocast(z: Tensor) -> contextlib.AbstractContextManager[None]:
    """A context without autocast: reductions need float32."""
    if z.is_cpu and not torch.is_autocast_enabled("cpu"):
        return _AS_IT_IS
    device = z.device.type
    on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if on else _AS_IT_IS
