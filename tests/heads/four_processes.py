"""Four gloo processes share the classes of every head: `four_processes.py FOLDER` writes what they find.

`found-RANK.json` has the largest differences from one process that holds everything, case by case.
"""

import json
import multiprocessing
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Generator, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import shape_checks

shape_checks.install()

from spaceform.heads import HEADS  # noqa: E402
from spaceform.heads._kernels import class_shard as wires  # noqa: E402
from spaceform.heads.sharding import shard, unshard  # noqa: E402

RANKS, DIM = 4, 6
HEAD_CASES = {
    "standard": ("standard", {}),
    "cosine": ("cosine", {}),
    "cosine, fixed temperature": ("cosine", {"learn_beta": False}),
    "arcface": ("arcface", {"margin": 0.3}),
    "arcface, literal": ("arcface", {"margin": 0.5, "literal": True}),
    "cosface": ("cosface", {}),
    "adaface": ("adaface", {}),
    "subcentre_arcface": ("subcentre_arcface", {"centres": 2}),
    "vmf": ("vmf", {"samples": 4}),
    "vmf, bounds and penalty": ("vmf", {"samples": 3, "normalizer": "bounds", "gamma": 0.1}),
    "power_spherical": ("power_spherical", {"samples": 4, "gamma": 0.2}),
}
# classes, rows of each rank, targets are below
BATCHES = {
    "equal": (12, (4, 4, 4, 4), 12),
    "uneven shards and batches": (10, (5, 3, 4, 2), 10),
    "one class a rank": (4, (3, 3, 3, 3), 4),
    "no target on two ranks": (10, (4, 1, 4, 4), 4),
    "a rank without rows": (10, (4, 0, 4, 4), 10),
}


def batch(sizes, most, rank, seed):
    """The rows of all ranks, the upstream gradients, and which rows are this rank's."""
    g = Generator().manual_seed(seed)
    z = torch.randn(sum(sizes), DIM, generator=g, dtype=torch.float64) * 3
    y = torch.randint(most, (sum(sizes),), generator=g)
    upstream = torch.rand(sum(sizes), generator=g, dtype=torch.float64)
    return z, y, upstream, slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def difference(found, wanted):
    """The largest, relative to the largest value."""
    if not found.numel():
        return 0.0
    return float((found - wanted).detach().abs().max() / wanted.detach().abs().max().clamp_min(1e-12))


def exactness(mesh, rank):
    """The objective, the gradients and the buffers of every head, split and whole."""
    found = {}
    for title, (name, options) in HEAD_CASES.items():
        for case, (classes, sizes, most) in BATCHES.items():
            for chunk in (None, 2):
                torch.manual_seed(0)
                whole = HEADS[name](DIM, classes, class_chunk=chunk, **options).double()
                split = shard(whole, mesh, equal_batches=case == "equal" and chunk is None)
                z, y, upstream, own = batch(sizes, most, rank, seed=1)
                if case == "uneven shards and batches":
                    y[::5] = -100
                ours, theirs = z[own].clone().requires_grad_(), z.clone().requires_grad_()
                kwargs = {"ignore_index": -100}
                split.prepare(z[own])
                whole.prepare(z)
                part = split(ours, y[own], generator=Generator().manual_seed(7), **kwargs)
                total = whole(theirs, y, generator=Generator().manual_seed(7), **kwargs)
                (part * upstream[own]).sum().backward()
                (total * upstream).sum().backward()
                worst = {
                    "objective": difference(part, total[own]),
                    "dz": difference(ours.grad, theirs.grad[own]),
                }
                for key, p in whole.named_parameters():
                    grad = split.get_parameter(key).grad
                    grad = grad.full_tensor() if key == "weight" else grad
                    worst[key] = difference(grad, p.grad / RANKS)
                for key, b in whole.named_buffers():
                    if b.is_floating_point() and "." not in key:
                        worst[key] = difference(split.get_buffer(key), b)
                found[f"{title} | {case} | chunk {chunk}"] = worst
    return found


def predictions(mesh, rank):
    """The most probable classes against those of one process; k beyond the classes of a rank included."""
    found = {}
    for title, (name, options) in HEAD_CASES.items():
        torch.manual_seed(1)
        whole = HEADS[name](DIM, 10, **options).double()
        split = shard(whole, mesh)
        z, _, _, own = batch((5, 3, 4, 2), 10, rank, seed=2)
        p, label = split.top_k(z[own], 5)
        wanted_p, wanted_label = whole.top_k(z, 5)
        found[title] = {
            "probability": difference(p, wanted_p[own]),
            "labels": int((label != wanted_label[own]).sum()),
            "whole": difference(unshard(split).predict_proba(z), whole.predict_proba(z)),
        }
    return found


def many_classes_of_few(mesh):
    """A head that nobody held whole: its rows differ between ranks and are spread as those of a whole one."""
    found = {}
    for name in ("cosine", "vmf", "subcentre_arcface"):
        torch.manual_seed(0)
        split = shard(HEADS[name](DIM, 2), mesh, num_classes=2002)
        own = split.weight.to_local()
        torch.manual_seed(0)
        std = HEADS[name](DIM, 2002).weight.std()
        weight = unshard(split).weight.detach()
        z = torch.randn(3, DIM)
        p = split.top_k(z, 3).probability
        found[name] = {
            "rows": own.shape[-2],
            "spread": float(weight.std() / std.detach()),
            "distinct": len(weight.flatten(0, -2).unique(dim=0)) / (weight.numel() / DIM),
            "prediction": difference(p, unshard(split).predict_proba(z).topk(3).values),
        }
    return found


class Spy:
    """Counts what a rank receives by ring algorithms."""

    def __init__(self):
        self.bytes = 0

    def __enter__(self):
        self.kept = wires._all_gather, wires._reduce_scatter, dist.all_reduce
        share = (RANKS - 1) / RANKS

        def counted(function, times, position):
            def call(*tensors, **kwargs):
                self.bytes += round(times * share * tensors[position].nbytes)
                return function(*tensors, **kwargs)

            return call

        wires._all_gather = counted(self.kept[0], 1, 0)
        wires._reduce_scatter = counted(self.kept[1], 1, 1)
        dist.all_reduce = counted(self.kept[2], 2, 0)
        return self

    def __exit__(self, *_):
        wires._all_gather, wires._reduce_scatter, dist.all_reduce = self.kept


def communication(mesh):
    """Bytes received in a step, counted and by the formula of the module."""
    found = {}
    for name, draws in (("cosine", 1), ("vmf", 10)):
        for equal in (True, False):
            split = shard(HEADS[name](DIM, 12), mesh, equal_batches=equal)
            z, y = torch.randn(8, DIM, requires_grad=True), torch.randint(12, (8,))
            with Spy() as spy:
                split(z, y).mean().backward()
            B, e, share = 8 * RANKS, 4, (RANKS - 1) / RANKS
            formula = share * B * (2 * DIM * e + e + 8) + 2 * share * B * (2 * draws + 1) * e + 2 * share * e
            found[f"{name}, {equal}"] = [spy.bytes, formula + (0 if equal else share * 8 * RANKS)]
    return found


def bytes_of_top_k(mesh):
    """What a rank receives to find the three best of 40 and of 4,000 classes: rows, and three numbers."""
    found = {}
    for classes in (40, 4000):
        split = shard(HEADS["cosine"](DIM, classes), mesh, equal_batches=True)
        with Spy() as spy:
            split.top_k(torch.randn(8, DIM), 3)
        found[str(classes)] = spy.bytes
    return found


def along_an_axis(rank):
    """Two rows of two ranks: the classes are split along a row, and each row has a batch of its own."""
    two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "classes"))
    torch.manual_seed(6)
    whole = HEADS["arcface"](DIM, 9).double()
    split = shard(whole, two["classes"])
    z, y, upstream, _ = batch((4, 4, 4, 4), 9, rank, seed=3)
    row, own = slice(8 * (rank // 2), 8 * (rank // 2) + 8), slice(4 * rank, 4 * rank + 4)
    ours, theirs = z[own].clone().requires_grad_(), z[row].clone().requires_grad_()
    part, total = split(ours, y[own]), whole(theirs, y[row])
    (part * upstream[own]).sum().backward()
    (total * upstream[row]).sum().backward()
    mine = slice(own.start - row.start, own.stop - row.start)
    return {
        "objective": difference(part, total[mine]),
        "dz": difference(ours.grad, theirs.grad[mine]),
        "weight": difference(split.weight.grad.full_tensor(), whole.weight.grad / 2),
        "rows": split.weight.to_local().shape[0],
    }


def beside_ddp(mesh, rank):
    """A DDP loop with the head beside it, against one process that has all rows; three steps of SGD."""
    torch.manual_seed(3)
    net, head = nn.Linear(4, DIM).double(), HEADS["arcface"](DIM, 10).double()
    x, y = torch.randn(3, 16, 4, dtype=torch.float64), torch.randint(10, (3, 16))

    def train(net, head, rows):
        optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.5, momentum=0.9)
        for x_step, y_step in zip(x, y, strict=True):
            optimizer.zero_grad()
            head(net(x_step[rows]), y_step[rows]).mean().backward()
            optimizer.step()
        return optimizer

    split, ddp = shard(head, mesh), DistributedDataParallel(_copied(net))
    train(ddp, split, slice(4 * rank, 4 * rank + 4))
    train(net, head, slice(None))
    return {
        "net": difference(ddp.module.weight, net.weight),
        "head": difference(unshard(split).weight, head.weight),
        "log_beta": difference(split.log_beta, head.log_beta),
    }


def _copied(net):
    other = nn.Linear(4, DIM).double()
    other.load_state_dict(net.state_dict())
    return other


def checkpoint(mesh, rank, folder):
    """Saved by four ranks, read by two and by one; weights and what the optimiser keeps of them."""
    torch.manual_seed(4)
    split = shard(HEADS["vmf"](DIM, 10), mesh)
    optimizer = torch.optim.AdamW(split.parameters(), lr=0.1)
    split(torch.randn(4, DIM), torch.randint(10, (4,))).mean().backward()
    optimizer.step()
    kept = state_of(split, optimizer)
    dcp.save(kept, checkpoint_id=folder / "saved")
    wanted = {key: _full(value) for key, value in kept.items()}
    two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "classes"))
    again = shard(HEADS["vmf"](DIM, 10), two["classes"])
    state = empty_state(again)
    dcp.load(state, checkpoint_id=folder / "saved")
    equal = all(torch.equal(_full(state[key]), wanted[key]) for key in wanted)
    if rank == 0:
        torch.save(wanted, folder / "wanted.pt")
    return {"two ranks": equal, "keys": sorted(wanted), "rows": again.weight.to_local().shape[0]}


def state_of(head, optimizer):
    """Everything by name, as `torch.distributed.checkpoint` takes it."""
    moments = {
        f"{kind}/{name}": value
        for name, p in head.named_parameters()
        for kind, value in optimizer.state[p].items()
    }
    return {**head.state_dict(), **moments}


def empty_state(head):
    """Room for `state_of` of an optimiser that has taken no step yet."""
    kept = head.state_dict()
    for name, p in head.named_parameters():
        kept |= {f"{kind}/{name}": torch.zeros_like(p) for kind in ("exp_avg", "exp_avg_sq")}
        kept[f"step/{name}"] = torch.tensor(0.0)
    return kept


def _full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def sampled(mesh, rank):
    """How far a tenth and half of the classes are from all of them."""
    torch.manual_seed(5)
    whole = HEADS["cosine"](16, 2000).double()
    y = torch.randint(2000, (32,))
    z = whole.weight.detach()[y] * 4 + 0.3 * torch.randn(32, 16, dtype=torch.float64)
    found = {}
    for share in (1.0, 0.5, 0.1):
        split = shard(whole, mesh, sample=share)
        losses = []
        for _ in range(20):
            split.zero_grad()
            own = slice(8 * rank, 8 * rank + 8)
            objective = split(z[own], y[own])
            losses.append(objective.mean().detach())
        objective.mean().backward()
        mean = torch.stack(losses).mean()
        dist.all_reduce(mean)
        exact = whole(z, y)
        touched = split.weight.grad.to_local().abs().sum(1) > 0
        found[share] = {
            "bias": float(mean / RANKS - exact.detach().mean()),
            "touched": float(touched.double().mean()),
            "targets": bool(split.weight.grad.full_tensor()[y].abs().sum(1).gt(0).all()),
        }
    return found


def refusals(mesh):
    """What cannot be, in the head's own words."""
    head = shard(HEADS["cosine"](DIM, 8), mesh)
    z, y = torch.randn(2, DIM), torch.tensor([1, 2])
    cases = {
        "hyperbolic": lambda: shard(HEADS["hyperbolic"](DIM, 8), mesh),
        "twice": lambda: shard(head, mesh),
        "few": lambda: shard(HEADS["cosine"](DIM, 5), mesh),
        "sample": lambda: shard(HEADS["cosine"](DIM, 8), mesh, sample=0.0),
        "smoothing": lambda: head(z, y, label_smoothing=0.1),
        "proba": lambda: head.predict_proba(z),
        "k": lambda: head.top_k(z, 9),
    }
    found = {}
    for name, case in cases.items():
        try:
            case()
        except (TypeError, ValueError) as error:
            found[name] = str(error)
    return found


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    found = {
        "exactness": exactness(mesh, rank),
        "predictions": predictions(mesh, rank),
        "many_classes_of_few": many_classes_of_few(mesh),
        "communication": communication(mesh),
        "bytes_of_top_k": bytes_of_top_k(mesh),
        "along_an_axis": along_an_axis(rank),
        "beside_ddp": beside_ddp(mesh, rank),
        "checkpoint": checkpoint(mesh, rank, folder),
        "sampled": sampled(mesh, rank),
        "refusals": refusals(mesh),
    }
    (folder / f"found-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    # Forked: torch is imported once, before there are any threads.
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=work, args=(rank, Path(sys.argv[1]))) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in processes))
