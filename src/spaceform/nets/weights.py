"""Weights of a net from a file: safetensors, or a `.pth` of plain tensors. Nothing read here can run code."""

import hashlib
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spaceform.foundation.messages import first_line

_NESTED = ("state_dict", "model", "model_state_dict")
"""Keys under which training scripts save the weights, if they save other things, too."""


def read_weights(path: Path, key: str = "net.weights") -> dict[str, Tensor]:
    """The tensors of a file by name; `key` is what an error calls the option."""
    import safetensors
    import safetensors.torch

    try:
        if path.suffix in (".pth", ".pt", ".bin"):
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # warnings about pickle protocols; files that cannot be read are refused below
                return _plain(torch.load(path, map_location="cpu", weights_only=True), path, key)
        return safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise ValueError(f"{key}: there is no file {str(path)!r}") from None
    except pickle.UnpicklingError:
        raise ValueError(
            f"{key}: {path} is damaged, or holds more than tensors, which is never read, as it can run code; "
            "save the state_dict alone by safetensors.torch.save_file"
        ) from None
    except (safetensors.SafetensorError, OSError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"{key}: {path} is not a file of weights ({first_line(error)}); give a .safetensors file, or a "
            ".pth file of a state_dict"
        ) from None


def put_weights(
    module: nn.Module, tensors: Mapping[str, Tensor], path: Path, name: str, key: str = "net.weights"
) -> None:
    """Load the tensors into a net, without those of a classifier that was cut off."""
    wanted = module.state_dict()
    missing = [k for k in wanted if k not in tensors and not k.endswith("num_batches_tracked")]
    if missing:
        raise ValueError(
            f"{key}: {path} does not fit {name!r}: it lacks {missing[0]!r}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + "; give the weights of this net, or name theirs by --net"
        )
    try:
        module.load_state_dict({k: v for k, v in tensors.items() if k in wanted}, strict=False)
    except RuntimeError as error:
        wrong = str(error).splitlines()[-1].strip().rstrip(".")
        raise ValueError(
            f"{key}: {path} does not fit {name!r}: {wrong}; give the weights of this net, or name theirs by "
            "--net"
        ) from None


def digest_of(module: nn.Module) -> str:
    """A digest that is equal for equal weights, wherever they come from."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _plain(found: Any, path: Path, key: str) -> dict[str, Tensor]:
    """The state_dict in what a `.pth` file held, without the prefix of a parallel wrapper."""
    for name in _NESTED:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    found = found if isinstance(found, Mapping) else {}
    tensors = {str(k): v for k, v in found.items() if isinstance(v, Tensor)}
    if not tensors:
        raise ValueError(f"{key}: {path} holds no state_dict; save one by torch.save(net.state_dict(), file)")
    wrapped = all(name.startswith("module.") for name in tensors)
    return {name.removeprefix("module.") if wrapped else name: v for name, v in tensors.items()}
