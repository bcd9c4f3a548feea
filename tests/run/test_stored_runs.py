"""Runs on features that stay on the disk: trained, measured, searched and compared as those in memory are."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

import spaceform as sf
from spaceform import data, metrics
from spaceform.data.stored_rows import StoredRows
from spaceform.run import evaluate as measuring
from spaceform.run.feature_run import affordable
from spaceform.run.material import material
from spaceform.run.quality import Tally, quality, some_classes, some_items
from spaceform.run.train import train
from spaceform.study.plan import Conditions, recipes

pytestmark = pytest.mark.slow


def clouds(folder, rows=6000, dim=128, classes=6, spread=0.7):
    """Three files of features; each class a cloud, classes together on the disk."""
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    y = np.arange(rows) * classes // rows
    x = random.normal(size=(classes, dim))[y] * spread + random.normal(size=(rows, dim)) * 2
    for i, part in enumerate(np.array_split(np.arange(rows), 3)):
        np.save(folder / f"X-{i}.npy", x[part].astype(np.float32))
        np.save(folder / f"y-{i}.npy", y[part])
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return clouds(tmp_path_factory.mktemp("clouds") / "x")


def recipe_of(folder, head="cosine", **settings):
    changes = {"optim.epochs": 6, **settings}
    return recipes(str(folder), [head], Conditions(settings=changes))[head]


@pytest.mark.parametrize("head", ["cosine", "vmf"])
def test_a_run_from_the_disk_is_as_good_as_one_from_memory(folder, tmp_path, monkeypatch, head):
    recipe, found = recipe_of(folder, head), {}
    for room in ("1GB", "100KB"):
        monkeypatch.setenv("SPACEFORM_MEMORY", room)
        assert isinstance(material(recipe).dataset.inputs, StoredRows) == (room == "100KB")
        run = train(recipe, tmp_path / room)
        found[room] = measuring.evaluate(run)
        with np.load(run.path / "outputs.npz") as outputs:
            p = run.predict_proba(data.load(folder).inputs[torch.from_numpy(outputs["index"])])
            calibrated = outputs[f"probabilities_{run.best_calibrator}"]
        np.testing.assert_allclose(p.numpy(), calibrated, atol=1e-5)
    inside, outside = found["1GB"], found["100KB"]
    assert outside["items"] == inside["items"] == 1200
    assert outside["accuracy"] > 0.9
    # Another order of batches: 1,200 items, most of them right in both.
    assert abs(outside["accuracy"] - inside["accuracy"]) < 0.01
    assert abs(outside["nll"] - inside["nll"]) < 0.03
    monkeypatch.setenv("SPACEFORM_MEMORY", "1GB")  # trained on one machine, measured on another
    assert measuring.evaluate(tmp_path / "100KB")["accuracy"] == pytest.approx(outside["accuracy"], abs=1e-9)


def test_a_search_takes_random_rows_into_memory_and_says_how_many(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("SPACEFORM_MEMORY", "500KB")
    assert affordable(material(recipe_of(folder))) == 2000  # the fewest, of 4,080
    told = []
    study = sf.search(folder, ["cosine"], trials=2, out=tmp_path / "s", say=told.append)
    assert "on 2,000 of 4,080 training rows" in told[0]
    assert study.recipes["cosine"].net.name == "features"
    again = []
    sf.search(folder, ["cosine"], trials=2, out=tmp_path / "s", say=again.append)
    assert again == told
    monkeypatch.setenv("SPACEFORM_MEMORY", "1GB")
    assert affordable(material(recipe_of(folder))) is None


def test_compare_says_which_head_and_has_references(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("SPACEFORM_MEMORY", "500KB")
    study = sf.compare(
        folder, ["cosine", "standard"], seeds=1, search=0, out=tmp_path / "c", settings={"optim.epochs": 3}
    )
    assert set(study.runs) == {"cosine-seed0", "standard-seed0"}
    assert study.table["accuracy"].gt(0.9).all()
    with np.load(tmp_path / "c" / "references" / "logistic.npz") as kept:
        about = json.loads(str(kept["about"]))
        assert len(kept["labels"]) == 1200
    assert about["setting"]["rows"] == 2000
    assert about["measured"]["accuracy"] > 0.9


def test_retrieval_from_the_disk_is_that_from_memory(tmp_path, monkeypatch):
    """Episodes ask for the same items wherever these are: the same run, but for rounding."""
    folder = clouds(tmp_path / "x", rows=1200, classes=12)
    short = {"budget.epochs": 2, "budget.episodes": 4}
    recipe = recipes(str(folder), ["arcface"], Conditions(task="retrieval", settings=short))["arcface"]
    found = {}
    for room in ("1GB", "1KB"):
        monkeypatch.setenv("SPACEFORM_MEMORY", room)
        run = train(recipe, tmp_path / room, accelerator="cpu")
        found[room] = measuring.evaluate(run)
    assert found["1KB"]["items"] == 600
    assert found["1KB"]["map_at_r"] == pytest.approx(found["1GB"]["map_at_r"], abs=1e-6)
    monkeypatch.setattr(measuring, "_RETRIEVED", 250)
    some = measuring.evaluate(tmp_path / "1KB")
    assert (some["items"], some["of_items"]) == (200, 600)
    assert some["recall_at_1"] >= found["1KB"]["recall_at_1"] - 0.05  # fewer items to take for another


def test_figures_are_of_all_items_where_few_are_kept_whole(folder, tmp_path, monkeypatch):
    run = train(recipe_of(folder), tmp_path / "run")
    whole = measuring.evaluate(run)
    monkeypatch.setattr(measuring, "_MOST_KEPT", 500)
    some = measuring.evaluate(run)
    assert some["outputs"] == 500
    same = {"items", "accuracy", "nll", "brier", "calibration_error_l2", "auroc_confidence"}
    assert {name: some[name] for name in same} == {name: whole[name] for name in same}
    with np.load(run.path / "outputs.npz") as outputs:
        assert len(outputs["labels"]) == len(outputs["index"]) == len(outputs["embeddings"]) == 500
        assert outputs["probabilities"].shape == (500, 6)


def test_a_tally_of_blocks_is_the_quality_of_all():
    random = torch.Generator().manual_seed(0)
    log_p = torch.randn(1000, 5, generator=random).log_softmax(-1)
    y = torch.randint(5, (1000,), generator=random)
    tally = Tally()
    for part in torch.arange(1000).split(37):
        tally.add(log_p[part], y[part])
    assert tally.quality == pytest.approx(quality(log_p, y), rel=1e-12)
    wanted = metrics.calibration_error(log_p.exp(), y, norm="l1")
    assert tally.quality["calibration_error_l1"] == pytest.approx(float(wanted), abs=1e-12)


def test_some_items_are_whole_classes():
    y = torch.arange(100) % 7
    kept = some_classes(torch.arange(100) + 50, y, 60)
    sizes = torch.bincount(y[kept - 50], minlength=7)
    assert set(sizes.tolist()) <= {0, 14, 15}
    assert 40 < len(kept) <= 60
    assert len(some_classes(torch.arange(100), y, 3)) in (28, 29, 30)  # two classes at the least
    assert int(some_items(100, 30).sum()) == 30
    assert some_items(20, 30).all()


def test_a_set_is_trained_on_and_measured_in_half_of_its_size(tmp_path):
    """384 MiB of features; at no time are more than 192 MiB in memory beyond those of the start.

    A window of shuffled rows has 64 MiB, whatever the size of the set; the first look at rows and
    the held-out rows have about as much each.
    """
    code = f"""
        import os, threading, time
        from pathlib import Path
        import numpy as np, torch

        os.environ["SPACEFORM_MEMORY"] = "64MiB"
        from spaceform.run import evaluate, train
        from spaceform.study.plan import Conditions, recipes
        from spaceform.run.allocator import keep_freed_memory

        keep_freed_memory()
        torch.set_num_threads(1)
        folder, random = Path({str(tmp_path)!r}) / "x", np.random.default_rng(0)

        def made(rows, folder):
            folder.mkdir()
            for i in range(4):
                y = random.integers(10, size=rows // 4)
                x = random.standard_normal((rows // 4, 512), dtype=np.float32)
                x[np.arange(len(y)), y] += 4
                np.save(folder / f"X-{{i}}.npy", x)
                np.save(folder / f"y-{{i}}.npy", y)

        def run(folder):
            settings = {{"optim.epochs": 1, "optim.batch_size": 512, "net.dim": 16}}
            recipe = recipes(str(folder), ["cosine"], Conditions(settings=settings))["cosine"]
            found = evaluate.evaluate(train.train(recipe, folder.parent / f"{{folder.name}}-run"))
            return found["accuracy"], found["items"]

        def resident():
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

        most, done = 0.0, False
        def watch():
            global most
            while not done:
                most = max(most, resident())
                time.sleep(0.01)

        made(4096, folder.parent / "small")
        run(folder.parent / "small")
        made(196_608, folder)
        torch.cuda.is_available()
        before = resident()
        watcher = threading.Thread(target=watch)
        watcher.start()
        accuracy, items = run(folder)
        done = True
        watcher.join()
        print(accuracy, items, most - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    accuracy, items, extra = map(float, done.stdout.split())
    assert accuracy > 0.9
    assert items == 39_322
    assert extra < 192
