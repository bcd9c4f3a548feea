"""Import torchvision beside any build of torch.

Beside a CPU build of torch, a torchvision wheel built for CUDA does not load its compiled operators, and its
import fails with ``operator torchvision::nms does not exist``. Only the transforms are used here, and these
need no such operator. So it is enough to declare the names that the import looks up. If torchvision can be
imported as it is, nothing is declared.
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
    """Make ``import torchvision`` work (timm imports it, too); does nothing if it works already."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]  # the failed import has left some of its modules
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name, schema in _SCHEMAS.items():
            if not hasattr(torch.ops.torchvision, name):
                library.define(name + schema)
        _kept.append(library)
        importlib.import_module("torchvision")
