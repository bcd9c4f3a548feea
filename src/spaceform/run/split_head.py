"""Training with the classes of the head split over the processes. Saved and judged is the whole model."""

import spaceform.foundation.fabric  # noqa: F401 (before lightning_fabric is imported)

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from spaceform.heads import HEADS
from spaceform.heads.sharding import shard, unshard
from spaceform.run.model import Model
from spaceform.run.recipe import Recipe, RecipeError


def require_splittable(recipe: Recipe, processes: int) -> None:
    """Refuse a head whose classes cannot be split, and a single process."""
    if processes < 2:
        raise RecipeError("--shard-classes splits the classes over processes; add --devices 2 or more")
    if not HEADS[recipe.head.name].shardable:
        raise RecipeError(
            f"the classes of head {recipe.head.name!r} cannot be split; leave out --shard-classes"
        )


def split_classes(model: Model, fabric: Fabric, recipe: Recipe) -> None:
    """Give each process its own part of the classes, and tell DDP that these weights differ."""
    if recipe.precision == "64-true":
        model.double()  # cast now: a weight that is split cannot be cast later
    mesh = init_device_mesh(fabric.device.type, (fabric.world_size,))
    model.head = shard(model.head.to(fabric.device), mesh)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["head.weight"])


def whole_model(model: Model) -> Model:
    """The model with all classes; every process must call this."""
    return model if model.head.shard is None else Model(model.net, unshard(model.head))


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor whose parts are on several processes; every process must call this."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def own_part(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def load_whole(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Load the state of a module; each process takes its part of a tensor that is split."""
    now = module.state_dict()
    module.load_state_dict({name: like(tensor, now[name]) for name, tensor in state.items()})


def like(tensor: Tensor, model: Tensor) -> Tensor:
    """The tensor, split in the same way as the model, if that is split."""
    if not hasattr(model, "placements"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(model.device), model.device_mesh, model.placements)  # type: ignore[attr-defined]


def start_draws(model: Model, seed: int) -> None:
    """Start the random draws that processes share; a head with all classes uses torch's own generator."""
    if model.head.shard is not None:
        model.head.shard.generator.manual_seed(seed)


def part_of(z: Tensor, model: Model) -> Tensor:
    """Of the rows that every process has, the part that this process gives to a head that gathers them."""
    split = model.head.shard
    return z if split is None else torch.tensor_split(z, split.ranks)[split.rank]
