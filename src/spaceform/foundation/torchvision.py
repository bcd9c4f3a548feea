"""Import torchvision beside any build of torch.

A torchvision wheel built for CUDA does not load its compiled operators beside a CPU build of torch, and its
import then fails with ``operator torchvision::nms does not exist``. Only the transforms are used here, and
they need none of those operators, so declaring the names that the import looks up is enough. Where
torchvision imports by itself, nothing is declared.
"""

import importlib
import sys

import torch

_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_kept: list[torch.library.Library] = []  # a Library that is collected takes its declarations with it


def ensure_torchvision() -> None:
    """Make ``import torchvision`` (and timm, which imports it) work; does nothing where it already does."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]  # the failed import leaves half of its modules behind
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name, schema in _SCHEMAS.items():
            if not hasattr(torch.ops.torchvision, name):
                library.define(name + schema)
        _kept.append(library)
        importlib.import_module("torchvision")
