"""Features that stay on the disk: read whole, mixed honestly, and a data set like any other."""

import numpy as np
import pytest
import torch
from torch import Generator

from spaceform import data
from spaceform.data.dataset import DataError
from spaceform.data.formats.shards import About, Shard, Shards
from spaceform.data.guard import memory
from spaceform.data.stored_rows import StoredRows


@pytest.fixture
def little_memory(monkeypatch):
    """Every folder of features is too large."""
    monkeypatch.setenv("SPACEFORM_MEMORY", "100")


def numbered(folder, sizes, dim=3, dtype=np.float32):
    """Rows that say their own number, with classes that stand together."""
    folder.mkdir()
    start, total = 0, sum(sizes)
    for i, size in enumerate(sizes):
        rows = np.arange(start, start + size)
        np.save(folder / f"X-{i}.npy", np.repeat(rows[:, None], dim, 1).astype(dtype))
        np.save(folder / f"y-{i}.npy", rows * 10 // total)
        start += size
    return data.load(folder)


def seeded(seed):
    return Generator().manual_seed(seed)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, np.int16, np.dtype(">f4")])
def test_rows_are_read_in_any_order(tmp_path, dtype):
    dataset = numbered(tmp_path / "x", (7, 0, 1, 12), dtype=dtype)
    stored = dataset.inputs
    assert isinstance(stored, StoredRows)
    assert (stored.shape, dataset.kind, len(dataset.classes)) == (torch.Size((20, 3)), "features", 10)
    assert torch.equal(torch.cat(list(stored.split(6)))[:, 2], torch.arange(20.0))
    for index in ([19, 0, 7, 8, 7], [3], [], [*range(20)], [8, 8, 10, 12], [5, 1, 1, 3]):
        x = stored[torch.tensor(index, dtype=torch.long)]
        assert x.dtype == torch.float32
        assert x[:, 1].tolist() == index
    assert stored[2:19:4][:, 0].tolist() == [2, 6, 10, 14, 18]
    odd = (
        stored.part(torch.arange(20) % 2 == 1).joined(stored.part(torch.tensor([4, 0]))).through(lambda x: -x)
    )
    assert odd[:][:, 0].tolist() == [-1, -3, -5, -7, -9, -11, -13, -15, -17, -19, -4, 0]
    assert odd.part(torch.tensor([11, 0]))[:][:, 0].tolist() == [0, -1]


@pytest.mark.usefixtures("little_memory")
def test_spans_with_gaps_and_over_the_length_of_a_read_are_put_together(tmp_path):
    """Rows of 8 KiB: a gap of 2 is read over, one of 3 jumped over; 256 rows are a read."""
    stored = numbered(tmp_path / "x", (900, 300), dim=2048).inputs
    index = torch.cat([torch.arange(0, 800, 3), torch.arange(801, 1200), torch.tensor([5, 400])])
    assert torch.equal(stored[index][:, 77], index.float())


def test_a_folder_in_memory_and_on_the_disk_is_the_same_data(tmp_path, monkeypatch):
    inside = numbered(tmp_path / "x", (30, 11))
    monkeypatch.setenv("SPACEFORM_MEMORY", "1 KB")
    outside = data.load(tmp_path / "x")
    assert isinstance(inside.inputs, torch.Tensor)
    assert isinstance(outside.inputs, StoredRows)
    assert torch.equal(inside.inputs, outside.inputs[:])
    assert inside.content == outside.content
    monkeypatch.setenv("SPACEFORM_MEMORY", "2KB")  # 41 rows of 12 bytes: just below a quarter
    assert isinstance(data.load(tmp_path / "x").inputs, torch.Tensor)
    x = np.load(tmp_path / "x" / "X-0.npy")
    np.save(tmp_path / "x" / "X-0.npy", x + 1)
    assert data.load(tmp_path / "x").content != inside.content


def test_splits_groups_names_and_strings_are_read(tmp_path):
    for i in range(2):
        np.save(tmp_path / f"X-{i}.npy", np.ones((4, 2)))
        np.save(tmp_path / f"y-{i}.npy", np.array(["b", "a", "b", "a"]))
        np.save(tmp_path / f"split-{i}.npy", np.array(["train", "train", "val", "test"]))
        np.save(tmp_path / f"groups-{i}.npy", np.arange(4) + 4 * i)
    dataset = data.load(tmp_path)
    assert dataset.classes == ("a", "b")
    assert dataset.labels.tolist() == [1, 0, 1, 0] * 2
    assert dataset.official.test.tolist() == [3, 7]
    assert dataset.groups.tolist() == list(range(8))
    np.save(tmp_path / "classes.npy", np.array(["zero", "one", "two"]))
    for i in range(2):
        np.save(tmp_path / f"y-{i}.npy", np.array([2, 0, 2, 0]))
    assert data.load(tmp_path).classes == ("zero", "one", "two")


@pytest.mark.parametrize("room", ["100", "1GiB"])
def test_arrow_shards_are_read_as_they_were_written(tmp_path, monkeypatch, room):
    monkeypatch.setenv("SPACEFORM_MEMORY", room)
    shards = Shards.begin(tmp_path / "x", About("d", "net", "w", "plan", 4, classes=("a", "b")))
    x = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    y = np.arange(30) % 2
    for i, part in enumerate(np.split(np.arange(30), [11, 12, 12])):
        shards.write(i, Shard(x[part], {"y": y[part]}))
    shards.finish()
    dataset = data.load(tmp_path / "x")
    assert isinstance(dataset.inputs, StoredRows) == (room == "100")
    assert torch.equal(dataset.inputs[:], torch.from_numpy(x))
    assert torch.equal(dataset.labels, torch.from_numpy(y))


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(("batches", "block", "window"), [(10, 2, 3), (6, 3, 100), (1, 4, 2), (40, 1, 1)])
def test_an_epoch_has_every_row_once_and_is_a_function_of_the_seed(tmp_path, batches, block, window):
    stored = numbered(tmp_path / "x", (13, 5, 22)).inputs
    sizes = [len(part) for part in torch.arange(40).tensor_split(batches)]
    epochs = [
        list(stored.shuffled(sizes, generator=seeded(seed), block=block, window=window)) for seed in (0, 0, 1)
    ]
    rows = [torch.cat([x[:, 0] for _, x in epoch]) for epoch in epochs]
    assert all(torch.equal(r.sort().values, torch.arange(40.0)) for r in rows)
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
    for index, x in epochs[0]:
        assert torch.equal(index.float(), x[:, 0])
    assert [len(x) for _, x in epochs[0]] == sizes


@pytest.mark.usefixtures("little_memory")
def test_batches_are_nearly_as_mixed_as_those_of_a_full_shuffle(tmp_path):
    """Classes stand together on the disk, the worst case; 131,072 rows, batches of 256.

    The variance of a class's share in a batch is that of a full shuffle times 1 + 256/1024; its ratio of two
    samples of 512 batches and 10 classes lies within 8 % of the true one in nearly all cases.
    """
    dataset = numbered(tmp_path / "x", (50_000, 31_072, 50_000), dim=1)
    stored, labels = dataset.inputs, dataset.labels
    epoch = [index for index, _ in stored.shuffled([256] * 512, generator=seeded(0))]
    shares = [torch.bincount(labels[index], minlength=10) / 256 for index in epoch]
    order = torch.randperm(len(stored), generator=seeded(1))
    full = [torch.bincount(part, minlength=10) / 256 for part in labels[order].split(256)]
    ratio = torch.stack(shares).double().var(0).sum() / torch.stack(full).double().var(0).sum()
    assert 1.0 < ratio < 1.36
    place = torch.cat(epoch).double()
    along = torch.corrcoef(torch.stack([place, torch.arange(len(place), dtype=torch.float64)]))[0, 1]
    assert abs(along) < 0.1  # 4096 blocks in random order: more than six standard errors


@pytest.mark.usefixtures("little_memory")
def test_what_cannot_be_read_is_told(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    np.save(folder / "X-0.npy", np.zeros((3, 2)))
    with pytest.raises(DataError, match="no labels"):
        data.load(folder)
    np.save(folder / "y-0.npy", np.zeros(2, int))
    with pytest.raises(DataError, match=r"shapes \(2,\), and X\*.npy 3 rows"):
        data.load(folder)
    np.save(folder / "X-0.npy", np.zeros((3, 2, 1)))
    with pytest.raises(DataError, match="save one row of numbers"):
        data.load(folder)
    (folder / "X-0.npy").write_bytes(b"nothing")
    with pytest.raises(DataError, match="no array of numbers"):
        data.load(folder)
    stored = numbered(tmp_path / "b", (4, 5)).inputs
    with pytest.raises(ValueError, match="8 rows in all, and there are 9"):
        next(stored.shuffled([8], generator=seeded(0)))
    (tmp_path / "b" / "X-1.npy").write_bytes((tmp_path / "b" / "X-1.npy").read_bytes()[:-8])
    with pytest.raises(DataError, match=r"X-1.npy ends before row 5"):
        stored[:]
    (tmp_path / "b" / "X-1.npy").unlink()
    with pytest.raises(DataError, match="put the file back"):
        stored[:]


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("value", [np.nan, np.inf, -1e30])
def test_a_number_that_no_net_takes_is_named(tmp_path, value):
    stored = numbered(tmp_path / "x", (4, 5)).inputs
    x = np.load(tmp_path / "x" / "X-1.npy")
    x[2, 1] = value
    np.save(tmp_path / "x" / "X-1.npy", x)
    stored[torch.tensor([0, 8])]
    with pytest.raises(DataError, match=r"row 2 \(counted from 0\) of .*X-1.npy has a value that is NaN"):
        stored[torch.tensor([0, 8, 6])]


@pytest.mark.parametrize(
    ("said", "size"), [("4GB", 4e9), ("1.5 GiB", 1.5 * 2**30), ("1000", 1000), ("2mb", 2e6)]
)
def test_the_memory_to_reckon_with_can_be_said(monkeypatch, said, size):
    monkeypatch.setenv("SPACEFORM_MEMORY", said)
    assert memory() == size
    for wrong in ("much", "4 TBB", "1.2.3GB", "."):
        monkeypatch.setenv("SPACEFORM_MEMORY", wrong)
        with pytest.raises(DataError, match="no amount of memory"):
            memory()


@pytest.mark.parametrize("said", [b"", b"{}", b"[1, 2]", b"[" * 100_000, b"\xff"])
def test_a_shard_that_does_not_say_what_is_broken_is_told(tmp_path, monkeypatch, said):
    shards = Shards.begin(tmp_path / "x", About("d", "net", "w", "plan", 1, classes=("a", "b")))
    with monkeypatch.context() as patch:
        patch.setattr("spaceform.data.formats.shards.json.dumps", lambda _: said)
        shards.write(0, Shard(np.zeros((3, 2), np.float32), {"y": np.zeros(3, int)}))
    with pytest.raises(DataError, match=r"x does not say which items are broken \(.*remove that folder"):
        shards.finish()


@pytest.mark.parametrize("said", [b"[1]", b'{"a":' * 5_000 + b"1" + b"}" * 5_000, b'{"plan": 3}'])
def test_a_folder_that_does_not_say_what_it_holds_is_told(tmp_path, said):
    (tmp_path / "features.json").write_bytes(said)
    with pytest.raises(DataError, match=r"features.json is damaged or not written by this program \(.*again"):
        Shards.open(tmp_path)
