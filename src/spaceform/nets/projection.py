"""A linear map of features to an embedding, or several with batch norm and ReLU between."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, final

import torch
from jaxtyping import Float
from pydantic import Field, field_validator
from torch import Tensor, nn

from spaceform.foundation.values import Width
from spaceform.nets.options import NetOptions
from spaceform.nets.start import xavier


@final
class ProjectionOptions(NetOptions):
    """`ProjectionNet`, for inputs of any shape."""

    name: Literal["projection"] = "projection"
    hidden: tuple[Width, ...] = ()
    """Widths of the hidden layers; one number is one layer. Without hidden layers the net is a linear map."""
    standardize: bool = False
    """Whether every feature is first brought to mean 0 and variance 1, by a batch norm without parameters."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the features that is left out in training, after `standardize`."""

    @field_validator("hidden", mode="before")
    @classmethod
    def _one_number_is_one_layer(cls, hidden: Any) -> Any:
        if hidden is None:
            return ()
        return (hidden,) if isinstance(hidden, int | float) else hidden

    def build(self, input_shape: Sequence[int]) -> nn.Module:
        return ProjectionNet(self.dim, input_shape, self.hidden, self.standardize, self.dropout)


@final
class ProjectionNet(nn.Module):
    """Inputs, flattened, to an embedding by one linear map, or by several with batch norm and ReLU between.

    `standardize` puts a batch norm without parameters before them: features of any scale will do. Then
    `dropout` leaves out that share of the features, in training.
    """

    def __init__(
        self,
        dim: int,
        input_shape: Sequence[int],
        hidden: Sequence[int] = (),
        standardize: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        width = torch.Size(input_shape).numel()
        layers: list[nn.Module] = [nn.Flatten()]
        if standardize:
            layers.append(nn.BatchNorm1d(width, eps=1e-10, affine=False))  # small compared with any variance
        if dropout:
            layers.append(_Dropout(dropout))
        for units in hidden:
            layers += [nn.Linear(width, units, bias=False), nn.BatchNorm1d(units), nn.ReLU()]
            width = units
        self.layers = nn.Sequential(*layers, nn.Linear(width, dim))
        xavier(self)

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch dim"]:
        return self.layers(x)


@final
class _Dropout(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, "batch features"]:
        return thinned(x, self.share) if self.training else x


def thinned(
    x: Float[Tensor, "batch features"], share: float, generator: torch.Generator | None = None
) -> Float[Tensor, "batch features"]:
    """Dropout of a share of the numbers, rounded to 1/256: on a CPU five times as fast as `nn.Dropout`.

    Each number takes one random byte; a draw has eight.
    """
    kept = max(1, round(256 * (1 - share)))
    if kept == 256:
        return x
    draws = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device)
    draws.random_(-(2**63), None, generator=generator)  # all 64 bits
    return x * (draws.view(torch.uint8)[: x.numel()].view(x.shape) < kept) * (256 / kept)
