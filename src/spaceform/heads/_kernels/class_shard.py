"""The classes of a head split over the ranks of a group: which rank has which, and what the ranks exchange.

Every rank has its own rows (its batch) and its own classes. Embeddings and labels of all ranks are gathered;
each rank computes log Σ exp L over its own classes; the largest, the sum and the target's logit are reduced.
In the backward pass the upstream gradients are gathered, and the gradients of the embeddings are summed,
where each rank receives those of its own rows. With W ranks, B rows in all, n dimensions, S draws (1 if the
head is deterministic) and numbers of e bytes, a rank receives in one step

    (W−1)/W · B (2 n e + e + 8)  +  2 (W−1)/W · B (2 S + 1) e   bytes

by ring algorithms: gathers of z, y and g and the sum of dz; then the reductions of (max), (sum, target).
8 more bytes a rank tell the batches' sizes, unless all are equal; 2 (W−1)/W e sum the temperature's gradient.

Gradients of parameters are means over the ranks, as DistributedDataParallel has them for the net.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int64, Integer
from torch import Generator, Tensor

# torch 2.13 has new names for these functions, and warns about the old ones.
_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Callable[..., Any] = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)

# When predicting, this many logits are computed together: 4 MiB in float32, or those of one row.
_BLOCK = 2**20


class TopK(NamedTuple):
    """The most probable classes of every row, most probable first."""

    probability: Float[Tensor, "batch k"]
    label: Int64[Tensor, "batch k"]


@final
@dataclass(frozen=True, eq=False)
class ClassShard:
    """This rank's classes, `first` to `first + rows − 1`, and the group that has all of them."""

    group: dist.ProcessGroup
    num_classes: int
    generator: Generator
    """For the draws of gathered embeddings; it has the same state on all ranks."""
    own_generator: Generator
    """For the classes that are left out; each rank has its own."""
    equal_batches: bool = False
    sample: float | None = None

    def __deepcopy__(self, memo: object) -> "ClassShard":
        return self  # a copy of a head works with the same ranks

    @property
    def rank(self) -> int:
        return self.group.rank()

    @property
    def ranks(self) -> int:
        return self.group.size()

    @property
    def first(self) -> int:
        return self.rank * self._most

    @property
    def rows(self) -> int:
        return min(self._most, self.num_classes - self.first)

    @property
    def _most(self) -> int:
        """How many classes every rank has, except the last: as `torch.chunk` splits them."""
        return -(-self.num_classes // self.ranks)

    # Rows of all ranks.

    def gathered(
        self, z: Float[Tensor, "own dim"], y: Integer[Tensor, " own"]
    ) -> tuple[Float[Tensor, "batch dim"], Integer[Tensor, " batch"], list[int]]:
        """Embeddings and labels of all ranks, and how many rows each rank has."""
        sizes = self._sizes(z)
        return _Gather.apply(z, self, sizes), self._gather(y, sizes), sizes

    def gathered_rows(self, z: Float[Tensor, "own dim"]) -> Float[Tensor, "batch dim"]:
        """Embeddings of all ranks."""
        return _Gather.apply(z, self, self._sizes(z))

    def own(self, objective: Float[Tensor, " batch"], sizes: list[int]) -> Float[Tensor, " own"]:
        """Of values for gathered rows, those of this rank's rows."""
        return _Own.apply(objective, self, sizes)

    def _sizes(self, z: Tensor) -> list[int]:
        if self.equal_batches:
            return [z.shape[0]] * self.ranks
        sizes = torch.empty(self.ranks, dtype=torch.int64, device=z.device)
        _all_gather(sizes, sizes.new_tensor([z.shape[0]]), group=self.group)
        return sizes.tolist()

    def _gather(self, x: Tensor, sizes: list[int]) -> Tensor:
        """The rows of all ranks in order; shorter parts are filled up with empty rows for the exchange."""
        most = max(sizes)
        whole = x.new_empty(self.ranks * most, *x.shape[1:])
        _all_gather(whole, _padded(x, most), group=self.group)
        if min(sizes) == most:
            return whole
        return torch.cat([part[:size] for part, size in zip(whole.split(most), sizes, strict=True)])

    # Numbers that all ranks share.

    def summed(self, parameter: Tensor) -> Tensor:
        """The same value, whose gradient is the sum over the ranks."""
        return _Summed.apply(parameter, self)

    def once(self, x: Tensor) -> Tensor:
        """The same value, with a gradient on the first rank alone: for terms without classes."""
        return x if self.rank == 0 else x.detach()

    def reduced(
        self, log_sum: Float[Tensor, "batch draws"], target: Float[Tensor, "batch 1"]
    ) -> tuple[Float[Tensor, "batch draws"], Float[Tensor, "batch 1"]]:
        """The log of the sum over all ranks of exp(log_sum), and the sum of `target`."""
        top = log_sum.clone()
        dist.all_reduce(top, dist.ReduceOp.MAX, group=self.group)
        parts = torch.cat([(log_sum - top).exp_(), target], 1)
        dist.all_reduce(parts, group=self.group)
        return parts[:, :-1].log().add_(top), parts[:, -1:]

    # Classes of this rank.

    def classes(
        self, weight: Float[Tensor, "*centres rows dim"], y: Integer[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "*centres some dim"], Integer[Tensor, " batch"]]:
        """The weights of this step, and the labels as their rows, outside the rows for other ranks."""
        y = y - self.first
        rows = weight.shape[-2]
        keep = rows if self.sample is None else max(round(self.sample * rows), min(len(y), rows))
        if keep == rows:
            return weight, y
        # Every target of the batch gets the largest number, so it stays; no wait for the device is needed.
        order = torch.rand(rows, device=weight.device, generator=self.own_generator)
        column, inside = located(y, rows)
        chance = torch.zeros(rows + 1, device=weight.device)
        chance[:rows] = order
        chance[torch.where(inside, column, rows)] = 2.0
        kept = chance[:rows].topk(keep).indices.sort().values
        place = torch.searchsorted(kept, column)
        return weight.index_select(-2, kept), torch.where(inside, place, -1)

    def top_k(
        self,
        logit_samples: Callable[[Tensor], Tensor],
        draws: int,
        z: Float[Tensor, "own dim"],
        k: int,
    ) -> TopK:
        """The k most probable of all classes. For each row, ranks exchange k classes, never the logits."""
        sizes, block = self._sizes(z), max(1, _BLOCK // (draws * self._most))
        found = [self._top_k(logit_samples(part), k) for part in self._gather(z, sizes).split(block)]
        own = slice(sum(sizes[: self.rank]), sum(sizes[: self.rank + 1]))
        return TopK(*(torch.cat(part)[own] for part in zip(*found, strict=True)))

    def _top_k(self, logits: Float[Tensor, "draws batch rows"], k: int) -> TopK:
        lse = logits.logsumexp(-1).T.contiguous()
        lse, _ = self.reduced(lse, lse.new_zeros(len(lse), 1))
        p = logits.sub_(lse.T[..., None]).exp_().mean(0)
        few = min(k, p.shape[1])
        probability, label = p.topk(few)
        # Ranks with fewer than k classes fill up with classes of probability 0.
        probability = torch.nn.functional.pad(probability, (0, k - few), value=-1.0)
        label = torch.nn.functional.pad(label + self.first, (0, k - few))
        best = self._beside(probability).topk(k)
        return TopK(best.values, self._beside(label).gather(1, best.indices))

    def _beside(self, x: Float[Tensor, "batch k"] | Int64[Tensor, "batch k"]) -> Tensor:
        """The columns of all ranks, side by side."""
        whole = x.new_empty(self.ranks, *x.shape)
        _all_gather(whole.view(-1, x.shape[1]), x.contiguous(), group=self.group)
        return whole.transpose(0, 1).flatten(1)


def located(
    y: Integer[Tensor, " batch"], rows: int
) -> tuple[Integer[Tensor, " batch"], Bool[Tensor, " batch"]]:
    """The rows of the targets, and which of them are here; the row of a target elsewhere is arbitrary."""
    return y.clamp(0, rows - 1), (y >= 0) & (y < rows)


def _padded(x: Tensor, rows: int) -> Tensor:
    if len(x) == rows:
        return x.contiguous()
    return torch.cat([x, x.new_zeros(rows - len(x), *x.shape[1:])])


class _Gather(torch.autograd.Function):
    """Rows of all ranks; their gradients are summed, and each rank receives those of its own.

    The sum is multiplied by the number of ranks, by which `_Own` has divided.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, shard: ClassShard, sizes: list[int]) -> Tensor:
        ctx.shard, ctx.sizes = shard, sizes
        return shard._gather(z, sizes)

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor, None, None]:
        shard, sizes = ctx.shard, ctx.sizes
        most = max(sizes)
        if min(sizes) < most:
            dz = torch.cat([_padded(part, most) for part in dz.split(sizes)])
        own = dz.new_empty(most, *dz.shape[1:])
        _reduce_scatter(own, dz.contiguous(), group=shard.group)
        return own[: sizes[shard.rank]].mul_(shard.ranks), None, None


class _Own(torch.autograd.Function):
    """This rank's rows; the gradients of all ranks are gathered, divided by the number of ranks."""

    @staticmethod
    def forward(ctx: Any, objective: Tensor, shard: ClassShard, sizes: list[int]) -> Tensor:
        ctx.shard, ctx.sizes = shard, sizes
        return objective.split(sizes)[shard.rank].clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return ctx.shard._gather(g, ctx.sizes).div_(ctx.shard.ranks), None, None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, shard: ClassShard) -> Tensor:
        ctx.group = shard.group
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        d = d.clone()
        dist.all_reduce(d, group=ctx.group)
        return d, None
