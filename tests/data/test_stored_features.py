"""Features that stay on the disk: read whole, mixed honestly, and never all in memory."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from spaceform.data.dataset import DataError
from spaceform.data.shards import About, Shard, Shards
from spaceform.data.stored_features import StoredFeatures


def numbered(folder, sizes, dim=3, dtype=np.float32):
    """Rows that say their own number, with classes that stand together."""
    folder.mkdir()
    start, total = 0, sum(sizes)
    for i, size in enumerate(sizes):
        rows = np.arange(start, start + size)
        np.save(folder / f"X-{i}.npy", np.repeat(rows[:, None], dim, 1).astype(dtype))
        np.save(folder / f"y-{i}.npy", rows * 10 // total)
        start += size
    return StoredFeatures(folder)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_blocks_are_the_rows_in_order(tmp_path, dtype):
    stored = numbered(tmp_path / "x", (7, 1, 12), dtype=dtype)
    assert (len(stored), stored.dim) == (20, 3)
    x, y = (torch.cat(part) for part in zip(*stored.blocks(5), strict=True))
    assert x.dtype == torch.float32
    assert torch.equal(x[:, 0], torch.arange(20.0))
    assert torch.equal(y, torch.arange(20) * 10 // 20)


def test_arrow_shards_are_read_as_they_were_written(tmp_path):
    shards = Shards.begin(tmp_path / "x", About("d", "net", "w", "plan", 3, classes=("a", "b")))
    x = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    y = np.arange(30) % 2
    for i, part in enumerate(np.split(np.arange(30), [11, 12])):
        shards.write(i, Shard(x[part], {"y": y[part]}))
    shards.finish()
    found, labels = (torch.cat(part) for part in zip(*StoredFeatures(tmp_path / "x").blocks(4), strict=True))
    assert torch.equal(found, torch.from_numpy(x))
    assert torch.equal(labels, torch.from_numpy(y))


@pytest.mark.parametrize(("batch", "block", "window"), [(4, 2, 3), (7, 3, 100), (50, 4, 2), (1, 1, 1)])
def test_an_epoch_has_every_row_once_and_is_a_function_of_the_seed(tmp_path, batch, block, window):
    stored = numbered(tmp_path / "x", (13, 5, 22))
    epochs = [
        list(stored.shuffled(batch, seed=seed, epoch=epoch, block=block, window=window))
        for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))
    ]
    rows = [torch.cat([x[:, 0] for x, _ in epoch]) for epoch in epochs]
    assert all(torch.equal(r.sort().values, torch.arange(40.0)) for r in rows)
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
    assert not torch.equal(rows[0], rows[3])
    for x, y in epochs[0]:
        assert torch.equal(y, x[:, 0].long() * 10 // 40)
    assert {len(x) for x, _ in epochs[0][:-1]} <= {batch}


def test_batches_are_nearly_as_mixed_as_those_of_a_full_shuffle(tmp_path):
    """Classes stand together on the disk, the worst case; 262,144 rows, batches of 256.

    The variance of a class's share in a batch is that of a full shuffle times 1 + 256/1024; its ratio of two
    samples of 1024 batches and 10 classes lies within 6 % of the true one in nearly all cases.
    """
    stored = numbered(tmp_path / "x", (100_000, 62_144, 100_000), dim=1)
    shares = [torch.bincount(y, minlength=10) / 256 for _, y in stored.shuffled(256, seed=0)]
    y = stored.labels[torch.randperm(len(stored), generator=torch.Generator().manual_seed(0))]
    full = [torch.bincount(part, minlength=10) / 256 for part in y.split(256)]
    ratio = torch.stack(shares).double().var(0).sum() / torch.stack(full).double().var(0).sum()
    assert 1.0 < ratio < 1.33
    order = torch.cat([x[:, 0] for x, _ in stored.shuffled(256, seed=0)]).double()
    along = torch.corrcoef(torch.stack([order, torch.arange(len(order), dtype=torch.float64)]))[0, 1]
    assert abs(along) < 0.1  # 4096 blocks in random order: more than six standard errors


@pytest.mark.slow
def test_a_file_larger_than_the_memory_allowed_is_gone_through(tmp_path):
    """256 MiB of features, of which less than 96 MiB are ever in memory, to train on and to read in order."""
    code = f"""
        import numpy as np, torch
        from pathlib import Path
        from spaceform.data.stored_features import StoredFeatures
        from spaceform.heads import CosineHead

        folder = Path({str(tmp_path)!r})
        for i in range(4):
            x = np.lib.format.open_memmap(folder / f"X-{{i}}.npy", "w+", np.float32, (131_072, 128))
            for rows in np.array_split(np.arange(131_072), 64):
                x[rows] = np.random.default_rng(i).normal(size=(len(rows), 128))
            del x
            np.save(folder / f"y-{{i}}.npy", np.arange(131_072) % 10)

        def resident():
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

        torch.set_num_threads(1)
        stored, head = StoredFeatures(folder), CosineHead(128, 10)
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
        head(torch.randn(512, 128), torch.zeros(512, dtype=torch.long)).mean().backward()
        before = most = resident()
        for step, (x, y) in enumerate(stored.shuffled(512, seed=0, window=512)):
            optimizer.zero_grad()
            head(x, y).mean().backward()
            optimizer.step()
            most = max(most, resident())
        for x, _ in stored.blocks(16_384):
            head.predict_proba(x)
            most = max(most, resident())
        print(step + 1, most - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    steps, extra = done.stdout.split()
    assert int(steps) == 1024
    assert float(extra) < 96


def test_what_cannot_be_read_is_told(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match=r"as many X\*\.npy as y\*\.npy"):
        StoredFeatures(tmp_path / "a")
    np.save(tmp_path / "a" / "X-0.npy", np.zeros((3, 2)))
    np.save(tmp_path / "a" / "y-0.npy", np.zeros(2, int))
    with pytest.raises(DataError, match="3 rows and 2 labels"):
        StoredFeatures(tmp_path / "a")
    np.save(tmp_path / "a" / "X-0.npy", np.zeros((3, 2, 1)))
    with pytest.raises(DataError, match="save rows of floating-point"):
        StoredFeatures(tmp_path / "a")
    stored = numbered(tmp_path / "b", (4,))
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        next(stored.shuffled(2, seed=0, window=0))
    (tmp_path / "b" / "X-0.npy").write_bytes((tmp_path / "b" / "X-0.npy").read_bytes()[:-8])
    with pytest.raises(DataError, match="ends before row 4"):
        list(stored.blocks())
