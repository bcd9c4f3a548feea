"""What a recipe says about a net: every net has its own options, and is built from them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import nn

from spaceform.foundation.values import Value, Width


class NetOptions(Value, ABC):
    """Base class: the name that chooses the net, the dimension of the embedding, and how to build the net."""

    name: str
    dim: Width

    @abstractmethod
    def build(self, input_shape: Sequence[int]) -> nn.Module:
        """The net, for inputs of `input_shape`: (channels, height, width) or (features,)."""

    def without_weights(self) -> "NetOptions":
        """The options of the same net with random weights, for a net whose weights are loaded later."""
        return self


def own_names() -> list[str]:
    """The names of the nets that have options of their own."""
    names = [kind.model_fields["name"].default for kind in NetOptions.__subclasses__()]
    return [name for name in names if isinstance(name, str)]


def require_images(name: str, input_shape: Sequence[int], least: int = 1) -> None:
    """Raise a ValueError if the inputs are not images with at least `least` pixels on each edge."""
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        size = f" of {least}x{least} or more" if least > 1 else ""
        raise ValueError(
            f"net {name!r} takes images{size}, got inputs of shape {tuple(input_shape)}; try 'projection'"
        )
