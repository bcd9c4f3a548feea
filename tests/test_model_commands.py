"""A finished run at work: tables, embeddings, and graphs that other programs run."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from spaceform.evaluation import evaluate
from spaceform.export import export, graph
from spaceform.predict import predict
from spaceform.recipe import load
from spaceform.run import Run
from spaceform.training import train

SHORT = ("budget.epochs=1", "budget.episodes=5", "net.hidden=16")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for head in ("vmf", "power_spherical", "cosine", "hyperbolic"):
        train(load(f"digits/{head}", SHORT), folder / head, accelerator="cpu")
        evaluate(folder / head)
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return (load_digits().images * (255 / 16)).round().astype(np.uint8)[:200, None]


@pytest.mark.parametrize("head", ["vmf", "cosine"])
def test_probabilities_are_those_of_the_run(runs, images, head: str, tmp_path: Path) -> None:
    run = Run.load(runs[head])
    np.savez(tmp_path / "images.npz", X=images)
    found = predict(run, [tmp_path / "images.npz"])
    own = [run.predict_proba(images, calibrator="temperature", seed=s) for s in range(40)]
    # The head is hardly trained, its draws are wide: 10 of them are off by 0.04 on average.
    assert (found.probabilities - torch.stack(own).mean(0)).abs().mean() < (0.02 if head == "vmf" else 1e-6)
    table = found.table(top=3, reject=0.5)
    assert list(table) == [
        *("item", "class", "probability", "confidence", "reject"),
        *("class_2", "probability_2", "class_3", "probability_3"),
    ]
    assert table["reject"].tolist() == (found.probabilities.amax(1) < 0.5).tolist()
    assert table["class"].tolist() == [run.classes[i] for i in found.probabilities.argmax(1)]


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("head", "calibrator"),
    [
        ("vmf", "norm_aware_temperature"),
        ("power_spherical", "temperature"),
        ("hyperbolic", "vector"),
    ],
)
def test_onnxruntime_agrees_on_real_images(runs, images, head: str, calibrator, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'spaceform[export]'")
    run = Run.load(runs[head])
    path = export(run, tmp_path / "model.onnx", calibrator=calibrator)
    session = onnxruntime.InferenceSession(str(path))
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == list(run.classes)
    x = images.astype(np.float32) / 255
    with torch.inference_mode():
        expected = [out.numpy() for out in graph(run, calibrator=calibrator)(torch.from_numpy(x))]
    for part in (slice(0, 1), slice(None)):
        found = session.run(["probabilities", "confidence", "embedding"], {"inputs": x[part]})
        for ours, theirs in zip(expected, found, strict=True):
            np.testing.assert_allclose(theirs, ours[part], rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(expected[2], run.embed(images).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.compiled
def test_a_program_of_torch_export_agrees(runs, images, tmp_path: Path) -> None:
    run = Run.load(runs["vmf"])
    path = export(run, tmp_path / "model.pt2")
    extra = {"classes.json": ""}
    program = torch.export.load(path, extra_files=extra).module()
    assert json.loads(extra["classes.json"]) == list(run.classes)
    x = torch.from_numpy(images).float() / 255
    for ours, theirs in zip(graph(run)(x[:7]), program(x[:7]), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["temperature", "norm_aware_temperature", "vector", "isotonic"])
def test_calibrators_of_the_graph_are_the_fitted_ones(runs, images, name: str) -> None:
    run = Run.load(runs["vmf"])
    module = graph(run, calibrator=name)
    with torch.inference_mode():
        z = run.embed(images)
        logits, confidence = module.logits(z), run.model.head.confidence(z)
        expected = run.calibrators[name](logits, confidence).exp()
        torch.testing.assert_close(module.calibrate(logits, confidence), expected, atol=2e-5, rtol=1e-4)


def spaceform(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spaceform.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_commands_write_what_they_say(runs, images, tmp_path: Path) -> None:
    np.savez(tmp_path / "images.npz", X=images[:20])
    done = spaceform(
        "predict", runs["vmf"], tmp_path / "images.npz", "--reject", "0.9", "-o", tmp_path / "out.csv"
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert len(lines) == 21
    assert lines[0] == "item,class,probability,confidence,reject"
    done = spaceform("embed", runs["vmf"], tmp_path / "images.npz", "-o", tmp_path / "z.npz")
    assert "20 embeddings of dimension 8, to be compared by Sphere" in done.stdout
    with np.load(tmp_path / "z.npz") as found:
        assert found["embedding"].shape == (20, 8)
        assert found["confidence"].shape == (20,)


def test_images_in_folders_are_found_and_measured(runs, images, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for i, image in enumerate(images[:5, 0]):
        Image.fromarray(image).save(tmp_path / "deep" / f"{i}.png")
    run = Run.load(runs["cosine"])
    np.savez(tmp_path / "images.npz", X=images[:5])
    found, same = predict(run, [tmp_path]), predict(run, [tmp_path / "images.npz"])
    assert [Path(item).name for item in found.items] == [f"{i}.png" for i in range(5)]
    torch.testing.assert_close(found.probabilities, same.probabilities)
    Image.new("L", (9, 8)).save(tmp_path / "wide.png")
    with pytest.raises(ValueError, match="has 9x8 pixels, but this run takes 8x8"):
        predict(run, [tmp_path / "wide.png"])
    with pytest.raises(FileNotFoundError):
        predict(run, [tmp_path / "none.png"])


def test_bad_input_is_one_sentence(runs, tmp_path: Path) -> None:
    for arguments, part in (
        (("predict", tmp_path / "none", "x.png", "-o", tmp_path / "o.csv"), "there is no run"),
        (("export", runs["vmf"], tmp_path / "model.bin"), "must end in .onnx or .pt2"),
    ):
        done = spaceform(*arguments)
        assert done.returncode == 2
        assert part in done.stderr
        assert "Traceback" not in done.stderr
    with pytest.raises(ValueError, match="unknown calibrator"):
        graph(Run.load(runs["vmf"]), calibrator="temprature")
