"""`features`, `data cache` and `compare photos/`: what they say, and one sentence for a wrong use."""

import pickle
import resource
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import spaceform
from photo_folders import NET, write_photos, write_weights
from spaceform import data
from spaceform.data import cache
from spaceform.data.dataset import DataError

pytestmark = pytest.mark.slow


@pytest.fixture
def own_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SPACEFORM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


@pytest.fixture
def no_network(monkeypatch):
    monkeypatch.setattr("spaceform.nets.pretrained._reaches_hub", lambda address: False)  # noqa: ARG005


def one_sentence(found: tuple[int, str, str]) -> str:
    code, out, error = found
    assert code == 2
    assert out == ""
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert "Traceback" not in error
    return error


def test_the_command_says_what_it_wrote(call, photos, weights, tmp_path):
    out = tmp_path / "f.parquet"
    code, said, _ = call("features", photos, "-o", out, "--net", NET, "--weights", weights)
    assert code == 0
    assert said.startswith(f"{out}: 24 rows of 96 features by test_resnet ({weights}), in ")
    assert data.load(out).inputs.shape == (24, 96)


@pytest.mark.usefixtures("no_network")
def test_no_weights_and_no_network(call, photos, tmp_path):
    said = one_sentence(call("features", photos, "-o", tmp_path / "f.npz", "--net", NET))
    assert "weights of 'test_resnet' cannot be had (there is no network); to get them: give a file" in said
    assert list(tmp_path.iterdir()) == []


def test_weights_that_do_not_fit(call, photos, weights, tmp_path):
    command = ["features", photos, "-o", tmp_path / "f.npz", "--net"]
    said = one_sentence(call(*command, "test_vit", "--weights", weights))
    assert "does not fit 'test_vit': it lacks 'cls_token' and" in said
    assert "give the weights of this net, or name theirs by --net" in said
    said = one_sentence(call(*command, "test_resnett", "--weights", weights))
    assert "unknown net of timm 'test_resnett'; did you mean 'test_resnet'?" in said
    said = one_sentence(call(*command, NET, "--weights", "nowhere.safetensors"))
    assert said == "error: --weights: there is no file 'nowhere.safetensors'\n"
    assert list(tmp_path.iterdir()) == []


class Spy:
    """What unpickling would call."""

    def __reduce__(self):
        return Path.touch, (Path("unpickled"),)


def test_pickled_weights_are_read_as_tensors_alone(call, photos, weights, tmp_path, monkeypatch):
    import safetensors.torch

    monkeypatch.chdir(tmp_path)
    tensors = safetensors.torch.load_file(weights)
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in tensors.items()}}, "net.pth")
    for name in (weights, "net.pth"):
        assert (
            call("features", photos, "-o", f"{Path(name).stem}.npz", "--net", NET, "--weights", name)[0] == 0
        )
    Path("bad.pth").write_bytes(pickle.dumps(Spy()))
    said = one_sentence(call("features", photos, "-o", "g.npz", "--net", NET, "--weights", "bad.pth"))
    assert "bad.pth is damaged, or holds more than tensors, which is never read" in said
    assert not Path("unpickled").exists()


def test_texts_that_cannot_be(call, tmp_path):
    table = tmp_path / "t.csv"
    pd.DataFrame({"said": ["one", "", "three"], "y": ["a", "b", "a"]}).to_csv(table, index=False)
    command = ["features", table, "-o", tmp_path / "t.npz", "--text"]
    said = one_sentence(call(*command, "said"))
    assert "t has 1 empty text, the first is row 1 (counted from 0); fill or remove them (spaceform" in said
    said = one_sentence(call(*command, "sayd"))
    assert f"{table} has no column 'sayd' (its columns: 'said', 'y'); name one of them by --text." in said
    said = one_sentence(call("features", table, "-o", tmp_path / "t.npz"))
    assert "t.csv has no features" in said or "--text" in said


def test_one_photo_is_too_few(call, weights, tmp_path):
    (tmp_path / "p" / "only").mkdir(parents=True)
    Image.new("RGB", (80, 80)).save(tmp_path / "p" / "only" / "0.jpg")
    said = one_sentence(call("features", tmp_path / "p", "-o", tmp_path / "f.npz", "--weights", weights))
    assert "has items of one class only ('only'); there is nothing to tell apart: add a second class." in said


def test_a_note_among_photos_makes_no_texts_of_them(call, weights, tmp_path):
    folder = write_photos(tmp_path / "p", 3)
    (folder / "fine" / "read me.txt").write_text("by the sea")
    command = ["features", folder, "-o", tmp_path / "f.npz", "--net", NET, "--weights", weights]
    assert call(*command)[0] == 0
    assert "--device cuda:99 cannot be used here (" in one_sentence(call(*command, "--device", "cuda:99"))
    said = one_sentence(call(*command[:-2], "--weights", weights, "-o", tmp_path / "f.txt"))
    assert "the output must end in .npz or .parquet, or be the name of a folder, got" in said


@contextmanager
def files_up_to(size: int):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))  # Python ignores the signal: writes fail
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "dont_write_bytecode", True)  # Python would leave a file cut short behind
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk(call, photos, weights, tmp_path):
    command = ["features", photos, "-o", tmp_path / "f", "--net", NET, "--weights", weights]
    with files_up_to(6_000):
        said = one_sentence(call(*command))
    assert f"cannot write {tmp_path / 'f' / 'shard-00000.arrow'} (" in said
    assert "make room, and run the same command again" in said
    assert not list((tmp_path / "f").glob(".*.tmp"))
    assert call(*command)[0] == 0
    assert len(data.load(tmp_path / "f")) == 24


def test_the_cache_is_listed_and_cleared_and_what_is_not_ours_stays(call, own_cache, photos, weights):
    from spaceform.run.frozen import frozen_features

    first = frozen_features(data.load(photos), NET, weights)
    assert first.content == data.load(photos).content
    [kept] = cache.entries()
    (own_cache / "not-ours").mkdir()
    (own_cache / "not-ours" / "letter.txt").write_text("x")
    (kept.folder / "note.txt").write_text("x")
    code, said, _ = call("data", "cache")
    assert code == 0
    assert "grain" in said
    assert "24 rows" in said
    assert one_sentence(call("data", "cache", "--clear", "0000")).startswith("error: '0000' fits none of the")
    code, said, _ = call("data", "cache", "--clear")
    assert said.startswith("removed 1 entry, 0.0 MiB")
    assert sorted(p.name for p in own_cache.rglob("*")) == [
        kept.about.plan,
        "letter.txt",
        "not-ours",
        "note.txt",
    ]


def test_a_second_time_nothing_is_extracted_until_a_photo_changes(own_cache, weights, tmp_path, monkeypatch):
    from spaceform.run import extraction
    from spaceform.run.frozen import frozen_features

    folder = write_photos(tmp_path / "p", 4)
    loaded = []
    monkeypatch.setattr(extraction, "frozen_net", lambda *of: loaded.append(of) or real(*of))
    real = spaceform.nets.pretrained.frozen_net
    one = frozen_features(data.load(folder), NET, weights)
    two = frozen_features(data.load(folder), NET, weights)
    assert len(loaded) == 1  # not even the net was
    assert torch.equal(one.inputs, two.inputs)
    photo = folder / "fine" / "00.jpg"
    Image.fromarray(np.full((80, 100, 3), 200, np.uint8)).save(photo)
    three = frozen_features(data.load(folder), NET, weights)
    changed = (three.inputs != one.inputs).any(1)
    assert changed.nonzero().flatten().tolist() == [4]
    assert len(list(cache.entries())) == 2
    assert own_cache.is_dir()


def test_photos_are_compared_by_features_and_predicted_as_they_are(call, own_cache, weights, tmp_path):
    """Train, evaluate, predict and embed as `compare` does it; the tutorial compares and exports."""
    from spaceform.run.evaluate import evaluate
    from spaceform.run.train import train
    from spaceform.study.plan import Conditions, recipes
    from spaceform.verbs.photographs import Eyes, see
    from spaceform.verbs.source import study_data

    folder = write_photos(tmp_path / "grain", 30)
    said: list[str] = []
    source, _ = study_data(folder, tmp_path / "study")
    seen = see(source, Eyes(NET, weights), budget=None, settings={"seed": 3}, say=said.append)
    assert said[0].startswith(f"photos are seen by the frozen features of test_resnet ({weights}); heads are")
    assert seen.source.dataset.note == f"features of test_resnet, frozen ({weights})"
    conditions = Conditions(net=seen.net, settings=seen.settings)
    recipe = recipes(str(folder), ["cosine"], conditions, dataset=seen.source.dataset)["cosine"]
    assert (recipe.data.features, recipe.net.name, recipe.seed) == (NET, "features", 3)
    run = train(recipe, tmp_path / "run", accelerator="cpu")
    evaluate(run)
    assert run.metrics["accuracy"] > 0.9
    path = folder / "fine" / "00.jpg"
    p = run.predict_proba([path])
    features = data.load(folder)
    assert run.input_shape == (96,)
    with pytest.raises(DataError, match=r"nowhere.jpg does not exist"):
        run.predict_proba([tmp_path / "nowhere.jpg"])
    assert len(features) == 60
    assert call("predict", run.path, path, "-o", tmp_path / "p.csv")[0] == 0
    assert pd.read_csv(tmp_path / "p.csv")["probability"][0] == pytest.approx(float(p.max()), abs=1e-6)
    assert call("embed", run.path, folder, "-o", tmp_path / "e.npz")[0] == 0
    assert len(np.load(tmp_path / "e.npz")["embedding"]) == 60
    other = write_weights(tmp_path / "other.safetensors", seed=1)
    Path(weights.with_name("kept")).write_bytes(weights.read_bytes())
    try:
        weights.write_bytes(other.read_bytes())
        moved = spaceform.Run.load(run.path)
        with pytest.raises(ValueError, match="was trained on features of 'test_resnet' with other weights"):
            moved.predict_proba([path])
    finally:
        weights.write_bytes(weights.with_name("kept").read_bytes())
    assert own_cache.is_dir()


@pytest.mark.usefixtures("no_network")
def test_without_weights_the_user_is_told_before_a_small_net_is_trained(photos, tmp_path, monkeypatch):
    from spaceform.verbs.photographs import Eyes, see
    from spaceform.verbs.source import study_data

    monkeypatch.setattr("spaceform.nets.pretrained.carried_file", lambda name: None)  # noqa: ARG005
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    source, _ = study_data(photos, tmp_path / "study")
    said = []
    seen = see(source, Eyes(), budget=None, settings=None, say=said.append)
    assert (seen.net, seen.source, seen.settings) == (None, source, {})
    assert "cannot be had (there is no network); to get them: pip install 'spaceform[photos]'" in said[0]
    assert "a poor substitute" in said[1]
    with pytest.raises(OSError, match="weights of 'test_resnet' cannot be had"):
        see(source, Eyes(NET), budget=None, settings=None, say=said.append)


def test_finetune_and_nets_from_scratch(photos, weights, tmp_path):
    from spaceform.run.material import material
    from spaceform.run.recipe import RecipeError
    from spaceform.study.plan import Conditions, recipes
    from spaceform.verbs.photographs import Eyes, see
    from spaceform.verbs.source import study_data

    source, _ = study_data(photos, tmp_path / "study")
    how = {"budget": None, "settings": None, "say": print}
    seen = see(source, Eyes(NET, weights, finetune=True), **how)
    assert (seen.net, seen.settings) == (NET, {"net.weights": str(weights)})
    conditions = Conditions(net=seen.net, settings=seen.settings)
    recipe = recipes(str(photos), ["cosine"], conditions, dataset=source.dataset)["cosine"]
    assert (recipe.net.weights, recipe.data.thumbnail) == (str(weights), None)
    shown = material(recipe).how
    assert (shown.size, shown.resize, shown.resampling) == (160, 168, "bilinear")  # as the net has it
    seen = see(source, Eyes(finetune=True), **how)
    assert (seen.net, seen.settings) == ("tf_efficientnet_lite0", {"net.pretrained": True})
    assert see(source, Eyes("small"), **how).net == "small"
    with pytest.raises(
        RecipeError, match="--weights are those of a pretrained net, and --net small has none"
    ):
        see(source, Eyes("small", weights), **how)
    digits, _ = study_data("digits", None)
    with pytest.raises(RecipeError, match="--finetune is for photos, and digits is pixels"):
        see(digits, Eyes(finetune=True), **how)


def shown(path: Path, how: dict) -> np.ndarray:
    """A photo as `showing` describes it, with Pillow and numpy alone."""
    image = Image.open(path)
    image.draft("RGB", (how["draft"], how["draft"]))
    image = image.convert("RGB")
    short = min(image.size)
    if how["square"]:
        left, top = (image.width - short) // 2, (image.height - short) // 2
        image = image.crop((left, top, left + short, top + short))
    size = [int(how["resize"] * edge / short) for edge in image.size] if not how["square"] else how["resize"]
    image = image.resize(size, Image.Resampling[how["resampling"].upper()])
    left, top = (round((edge - how["size"]) / 2) for edge in image.size)
    image = image.crop((left, top, left + how["size"], top + how["size"]))
    return np.asarray(image, np.float32).transpose(2, 0, 1) / 255


@pytest.mark.parametrize("way", ["frozen", "finetuned", "shrunk"])
def test_a_graph_says_how_photos_are_seen(photos, weights, tmp_path, way):
    from spaceform.run.export import graph, showing
    from spaceform.run.train import train
    from spaceform.study.plan import Conditions, recipes
    from spaceform.verbs.photographs import Eyes, see
    from spaceform.verbs.source import study_data

    short = {"budget.epochs": 1, "budget.episodes": 2, "budget.classes": 2, "budget.instances": 3}
    eyes = {"frozen": Eyes(NET, weights), "finetuned": Eyes(NET, weights, True), "shrunk": Eyes("small")}[way]
    source, _ = study_data(photos, tmp_path / "study")
    settings = {} if way == "frozen" else short
    seen = see(source, eyes, budget=None, settings=settings, say=lambda _: None)
    conditions = Conditions(net=seen.net, settings=seen.settings)
    recipe = recipes(str(photos), ["standard"], conditions, dataset=seen.source.dataset)["standard"]
    run = train(recipe, tmp_path / "run", accelerator="cpu")
    paths, how = sorted(photos.rglob("*.jpg")), showing(run)
    assert how is not None
    x = torch.from_numpy(np.stack([shown(path, how) for path in paths]))
    with torch.inference_mode():
        p, _, z = graph(run, calibrator=None)(x)
    torch.testing.assert_close(z, run.embed(paths), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(p, run.predict_proba(paths, calibrator=None), rtol=0, atol=1e-4)
