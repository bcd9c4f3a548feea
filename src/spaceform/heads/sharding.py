"""Heads whose classes are split over processes: `shard` and `unshard`."""

import copy
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from spaceform.heads._checks import is_positive_integer
from spaceform.heads._kernels.class_shard import ClassShard
from spaceform.heads.base import Head
from spaceform.heads.stochastic import StochasticHead

AnyHead = TypeVar("AnyHead", bound=Head)


def shard(
    head: AnyHead,
    mesh: DeviceMesh,
    *,
    num_classes: int | None = None,
    sample: float | None = None,
    equal_batches: bool = False,
) -> AnyHead:
    """The head with its classes split over the ranks of `mesh`: a mesh with one axis, or one axis of a mesh.

    Every rank holds its own rows of `weight`, a DTensor, and gives the rows of its own batch: `head(z, y)` is
    their objective over all classes, the same as in one process. All ranks must call it together. Gradients
    of the parameters are means over the ranks, as in DistributedDataParallel. All ranks take the values of
    the first rank's head; `head` itself is not changed.

    With `num_classes`, a head with few classes, such as `CosineHead(512, 2)`, becomes a head with this many:
    every rank draws new rows of its own, and no rank ever holds all rows.

    `sample` trains with a random share of each rank's classes, another share at every step; the targets of
    the batch are always in it. This is faster, but not exact: the objective is lower, since classes are
    missing from its sum.

    `equal_batches` says that all ranks always give the same number of rows, so the ranks do not exchange it.

    Draws of stochastic heads come from a generator that all ranks share; a generator that is passed to
    `head(...)` must have the same state on all ranks.
    """
    if not head.shardable:
        raise TypeError(
            f"the classes of {type(head).__name__} cannot be split: take a cosine, margin, standard, "
            "von Mises–Fisher or Power Spherical head"
        )
    if head.shard is not None:
        raise ValueError("the classes of this head are split already: pass sf.unshard(head)")
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(
            f"mesh must be a DeviceMesh, got {type(mesh).__name__}: "
            "make one with torch.distributed.device_mesh.init_device_mesh"
        )
    if mesh.ndim != 1:
        raise ValueError(
            f"mesh must have one axis, got {mesh.ndim}: pass one of them, such as mesh['classes']"
        )
    if sample is not None and not 0 < sample <= 1:
        raise ValueError(f"sample must lie in (0, 1], the share of classes of a step, got {sample!r}")
    if num_classes is not None and not is_positive_integer(num_classes):
        raise ValueError(f"num_classes must be a positive integer, got {num_classes!r}")
    ranks, classes = mesh.size(), head.num_classes if num_classes is None else num_classes
    if -(-classes // ranks) * (ranks - 1) >= classes:
        raise ValueError(f"{classes} classes over {ranks} ranks leave a rank without any: take fewer ranks")
    split = copy.deepcopy(head)
    split.num_classes = classes
    _split(split, mesh, num_classes is not None, sample, equal_batches)
    return split


def _split(head: Head, mesh: DeviceMesh, fresh: bool, sample: float | None, equal_batches: bool) -> None:
    # Imported here: it takes a third of a second, and most users have one process.
    from torch.distributed.tensor import DTensor, distribute_tensor
    from torch.distributed.tensor import Shard as Split

    weight, group = head.weight, mesh.get_group()
    assert isinstance(weight, Tensor)
    axis = weight.ndim - 2
    seed = torch.randint(2**62, (1,), device=weight.device)
    dist.broadcast(seed, group=group, group_src=0)
    shared, own = (Generator(weight.device).manual_seed(int(seed) + i) for i in (0, 1 + group.rank()))
    head.shard = ClassShard(group, head.num_classes, shared, own, equal_batches, sample)
    for tensor in [*head.parameters(), *head.buffers()]:
        if tensor is not weight:
            dist.broadcast(tensor.detach(), group=group, group_src=0)
    if not fresh:
        head.weight = nn.Parameter(distribute_tensor(weight.detach(), mesh, [Split(axis)]))
        return
    shape = [*weight.shape[:axis], head.num_classes, head.dim]
    rows = weight.new_empty([*shape[:axis], head.shard.rows, head.dim])
    with torch.random.fork_rng(devices=[] if rows.is_cpu else [rows.device]):
        torch.manual_seed(int(seed) + 1 + group.rank())
        head._start(rows, head.num_classes)
    stride = torch.empty(shape, device="meta").stride()
    split = DTensor.from_local(
        rows, mesh, [Split(axis)], run_check=False, shape=torch.Size(shape), stride=stride
    )
    head.weight = nn.Parameter(split)
    if isinstance(head, StochasticHead):
        head.draws = head.draws  # make the draws for this many classes


def unshard(head: AnyHead) -> AnyHead:
    """The head with all its classes in every process, without gradients. All ranks must call this."""
    if head.shard is None:
        return copy.deepcopy(head)
    weight = head.weight
    whole = copy.copy(head)
    whole._parameters = {**head._parameters, "weight": None}
    whole = copy.deepcopy(whole)
    whole.shard = None
    whole.weight = nn.Parameter(weight.detach().full_tensor().clone())  # type: ignore[union-attr,operator]
    return whole
