"""The optimisers of a recipe, and which parameters get which rate and decay."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, final

import torch
from pydantic import Field, model_validator
from torch import nn

from spaceform.foundation.messages import unknown
from spaceform.foundation.values import Positive, Value, tagged
from spaceform.heads.base import Head


class Optim(Value, ABC):
    """Base class. Weights decay; biases, scales and hyperplanes do not. The temperature has its own rate."""

    name: str
    lr: float = Field(gt=0.0)
    temperature_lr: float = Field(0.001, ge=0.0)
    weight_decay: float = Field(0.0, ge=0.0)

    @property
    @abstractmethod
    def common(self) -> dict[str, Any]:
        """The options that all groups share, except that of the temperature."""

    @property
    @abstractmethod
    def plain(self) -> dict[str, Any]:
        """The options of the temperature's group."""

    @abstractmethod
    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """The optimiser of these groups, each with all of its options."""


@final
class Sgd(Optim):
    """SGD with momentum, without momentum for the temperature, as in the paper."""

    name: Literal["sgd"] = "sgd"
    momentum: float = Field(0.9, ge=0.0, lt=1.0)
    nesterov: bool = False

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> "Sgd":
        if self.nesterov and self.momentum == 0.0:
            raise ValueError("nesterov needs momentum above 0, got 0.0")
        return self

    @property
    def common(self) -> dict[str, Any]:
        return {"momentum": self.momentum, "nesterov": self.nesterov}

    @property
    def plain(self) -> dict[str, Any]:
        return {"momentum": 0.0, "nesterov": False}

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups)


@final
class AdamW(Optim):
    """Adam with decoupled weight decay. Rates around 1e-3 suit most nets."""

    name: Literal["adamw"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)

    @model_validator(mode="after")
    def _betas_are_shares(self) -> "AdamW":
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"optim.betas must lie in [0, 1), got {self.betas}")
        return self

    @property
    def common(self) -> dict[str, Any]:
        return {"betas": self.betas}

    @property
    def plain(self) -> dict[str, Any]:
        return self.common

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups)


@final
class CosineAdamW(Optim):
    """The engine's AdamW: `epochs` passes over features in memory; the rate falls along a cosine to 0.

    It has no episodes and no plateau: `budget` and `schedule` do not apply, and the temperature has the same
    rate as the other parameters.
    """

    name: Literal["cosine_adamw"] = "cosine_adamw"
    batch_size: Positive = 256
    epochs: Positive = 30

    @property
    def common(self) -> dict[str, Any]:
        return {}

    @property
    def plain(self) -> dict[str, Any]:
        return {}

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups)


OPTIMISERS: dict[str, type[Optim]] = {"sgd": Sgd, "adamw": AdamW, "cosine_adamw": CosineAdamW}


def optim_options(values: Any) -> Optim:
    """The options of the optimiser that `values["name"]` chooses; SGD if there is no name."""
    if isinstance(values, Mapping) and values.get("name", "sgd") not in OPTIMISERS:
        raise ValueError(unknown("optimiser", str(values["name"]), OPTIMISERS))
    return tagged(OPTIMISERS, Sgd, values, "optim")


def parameter_groups(net: nn.Module, head: Head, optim: Optim) -> list[dict[str, Any]]:
    """The groups of a net's and a head's parameters, each with its rate and decay: see `Optim`."""
    common = {"lr": optim.lr, **optim.common}
    trainable = [p for p in net.parameters() if p.requires_grad]
    weights = [p for p in trainable if p.ndim > 1]
    others = [p for p in trainable if p.ndim <= 1]
    groups: list[dict[str, Any]] = [
        {"name": "weights", "params": weights, **common, "weight_decay": optim.weight_decay},
        {"name": "biases", "params": others, **common, "weight_decay": 0.0},
    ]
    for group in head.parameter_groups():
        match group["name"]:
            case "temperature":
                own = {"lr": optim.temperature_lr, **optim.plain, "weight_decay": 0.0}
            case "class_weights":
                own = {**common, "weight_decay": optim.weight_decay}
            case _:
                own = {**common, "weight_decay": 0.0}
        groups.append({**group, **own})
    return [group for group in groups if group["params"]]
