"""A net and a head as one module."""

from collections.abc import Iterator, Sequence
from typing import final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from spaceform.heads import HEADS
from spaceform.heads.base import Head
from spaceform.nets import FeaturesNet
from spaceform.run.recipe import Recipe


@final
class Model(nn.Module):
    """A net and a head: inputs and labels in, the objective of every example out."""

    def __init__(self, net: nn.Module, head: Head) -> None:
        super().__init__()
        self.net = net
        self.head = head

    def forward(
        self, x: Float[Tensor, "batch *shape"], y: Int64[Tensor, " batch"]
    ) -> Float[Tensor, " batch"]:
        return self.head(self.net(x), y)

    @torch.inference_mode()
    def embed(self, batches: Iterator[Tensor]) -> Float[Tensor, "items dim"]:
        """Embeddings in evaluation mode, on the model's device."""
        one = next(self.parameters())
        was_training = self.training
        self.eval()
        z = torch.cat([self.net(x.to(one.device, one.dtype)) for x in batches])
        self.train(was_training)
        return z

    def embed_and_reach(
        self, batches: Iterator[Tensor]
    ) -> tuple[Float[Tensor, "items dim"], Float[Tensor, " items"] | None]:
        """`embed`, and `reach_of` the same items."""
        one, found = next(self.parameters()), []

        def looked_at() -> Iterator[Tensor]:
            for x in batches:
                found.append(reach_of(self.net, x.to(one.device, one.dtype)))
                yield x

        z = self.embed(looked_at())
        known = [r for r in found if r is not None]
        return z, torch.cat(known) if known else None

    @torch.inference_mode()
    def embedded(self, batches: Iterator[Tensor]) -> Iterator[Float[Tensor, "batch dim"]]:
        """Embeddings as `embed` gives them, one batch at a time."""
        for x in batches:
            yield self.embed(iter([x]))


def reach_of(net: nn.Module, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, " batch"] | None:
    """How far rows of features lie from the training rows; None if the net does not take features."""
    return net.reach(x) if isinstance(net, FeaturesNet) else None


def build_model(
    recipe: Recipe, num_classes: int, input_shape: Sequence[int], net: nn.Module | None = None
) -> Model:
    """The recipe's net, or the given one in its place, and its head."""
    built = recipe.net.build(input_shape) if net is None else net
    return Model(built, HEADS[recipe.head.name](recipe.net.dim, num_classes, **recipe.head.options))
