"""One of two gloo processes: `one_of_two_processes.py RANK STORE OUT` writes every head's DDP gradients."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from spaceform.heads import HEADS

DIM, CLASSES, BATCH = 5, 7, 12


class Model(nn.Module):
    """A network with the head inside, as it is wrapped in training."""

    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(4, DIM)
        self.head = HEADS[name](DIM, CLASSES)

    def forward(self, x, y, generator=None):
        return self.head(self.net(x), y, generator=generator)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, 4, generator=g, dtype=torch.float64), torch.randint(
        CLASSES, (BATCH,), generator=g
    )


def main(rank: int, store: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    x, y = (part.chunk(2)[rank] for part in batch())
    gradients = {}
    for name in HEADS:
        # In train() AdaFace follows the norms of its own batch, which is another than the joined one.
        model = DistributedDataParallel(Model(name).double().train(name != "adaface"))
        model(x, y, torch.Generator().manual_seed(rank)).mean().backward()
        gradients[name] = {key: p.grad for key, p in model.module.named_parameters()}
    if rank == 0:
        torch.save(gradients, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
