"""Nets, which turn inputs into embeddings.

Each net has one file, with its options, as a recipe writes them, and its module.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from spaceform.foundation.values import tagged
from spaceform.nets.features import FeaturesNet, FeaturesOptions
from spaceform.nets.options import NetOptions
from spaceform.nets.projection import ProjectionNet, ProjectionOptions, thinned
from spaceform.nets.residual import ResidualNet, ResidualOptions
from spaceform.nets.small import SmallNet, SmallOptions
from spaceform.nets.timm import TimmNet, TimmOptions

__all__ = [
    "NETS",
    "FeaturesNet",
    "FeaturesOptions",
    "NetOptions",
    "ProjectionNet",
    "ProjectionOptions",
    "ResidualNet",
    "ResidualOptions",
    "SmallNet",
    "SmallOptions",
    "TimmNet",
    "TimmOptions",
    "build",
    "options",
    "thinned",
]

NETS: dict[str, type[NetOptions]] = {
    "small": SmallOptions,
    "residual": ResidualOptions,
    "projection": ProjectionOptions,
    "features": FeaturesOptions,
    "resnet50": TimmOptions,
}
"""Nets by name; any other name is a model of timm."""


def options(values: Any) -> NetOptions:
    """The options of the net that `values["name"]` chooses; an option of another net is refused."""
    if isinstance(values, Mapping):
        values = {"name": "small", **values}
    return tagged(NETS, TimmOptions, values, "net")


def build(name: str, dim: int, input_shape: Sequence[int], **others: Any) -> nn.Module:
    """The net `name`, from inputs of `input_shape` (channels, height, width) or (features,) to `dim` numbers.

    Further options are those of the net: `SmallOptions`, `ProjectionOptions`, ...
    """
    return options({"name": name, "dim": dim, **others}).build(input_shape)
