"""Promises of a run about new items: sets of classes, "unknown"."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import betabinom
from sklearn.datasets import load_digits

from short_runs import tiny
from spaceform import data
from spaceform.metrics import set_coverage
from spaceform.run import files
from spaceform.run.evaluate import evaluate
from spaceform.run.export import export, graph
from spaceform.run.finished import Run
from spaceform.run.held_out import HeldOut, as_trained
from spaceform.run.predict import predict
from spaceform.run.recipe import RecipeError
from spaceform.run.train import train
from spaceform.study.plan import Conditions, recipes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["cosine", "vmf"])
def run(request, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / request.param
    found = train(tiny(request.param, budget__epochs=6, budget__episodes=20, net__dim=8), folder)
    evaluate(found)
    return found


@pytest.fixture
def unseen(run: Run, tmp_path: Path) -> tuple[Path, torch.Tensor]:
    """The test items as a file, and their labels."""
    with np.load(run.path / "outputs.npz") as saved:
        np.savez(tmp_path / "x.npz", X=data.load("digits").inputs[torch.from_numpy(saved["index"])].numpy())
        return tmp_path / "x.npz", torch.from_numpy(saved["labels"])


def beta_binomial(run: Run, share: float, items: int):
    """How many of new items lie below the threshold, from which validation items leave `share` out."""
    n = len(run.held_out.labels)
    k = int(share * (n + 1) + 1e-9)
    return betabinom(items, k, n + 1 - k)


@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_sets_cover_the_test_items(run, unseen, coverage):
    """Left 1 time in 5,000 by items like those of validation."""
    path, y = unseen
    found = predict(run, [path], coverage=coverage)
    missed = round(len(y) * (1 - set_coverage(found.sets, y).item()))
    law = beta_binomial(run, 1 - coverage, len(y))
    assert law.ppf(1e-4) <= missed <= law.ppf(1 - 1e-4)
    assert found.unknown is None
    names = found.table()["set"]
    assert names.tolist() == [
        "|".join(name for name, inside in zip(run.classes, row, strict=True) if inside)
        for row in found.sets.tolist()
    ]


def test_a_set_does_not_depend_on_the_calibrator(run, unseen):
    path, _ = unseen
    sets = [predict(run, [path], calibrator=name, coverage=0.9).sets for name in (None, "auto", "isotonic")]
    assert torch.equal(sets[0], sets[1])
    assert torch.equal(sets[0], sets[2])
    with np.load(run.path / "outputs.npz") as saved:
        p, _ = as_trained(run.model.head, torch.from_numpy(saved["embeddings"]), run.held_out.judge)
        np.testing.assert_allclose(p, saved["probabilities"], rtol=2e-6, atol=1e-6)


def test_the_share_of_known_items_is_kept(run, unseen):
    path, y = unseen
    found = predict(run, [path], unknown=0.1)
    law = beta_binomial(run, 0.1, len(y))
    assert law.ppf(1e-4) <= int(found.unknown.sum()) <= law.ppf(1 - 1e-4)
    assert found.sets is None
    assert found.table(reject=0.5).columns.tolist() == [
        *("item", "class", "probability", "confidence", "reject", "unknown")
    ]


def test_without_being_asked_there_is_neither(run, unseen):
    found = predict(run, [unseen[0]])
    assert found.sets is None
    assert found.unknown is None
    assert found.table().columns.tolist() == ["item", "class", "probability", "confidence"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"coverage": 1.0}, "coverage must lie between 0 and 1, both excluded, got 1.0"),
        ({"coverage": 0.9999}, "a coverage of 0.9999 needs at least 9999 held-out items, got "),
        ({"unknown": 0.0}, "--unknown must lie between 0 and 1, both excluded, got 0"),
        ({"unknown": 1e-4}, "needs at least 9999 held-out items, got "),
    ],
)
def test_what_cannot_be_promised_is_refused(run, unseen, asked, message):
    with pytest.raises(ValueError, match=message):
        predict(run, [unseen[0]], **asked)


def test_a_missing_or_damaged_file_is_told(run, unseen, tmp_path):
    shutil.copytree(run.path, tmp_path / "copy")
    kept = tmp_path / "copy" / "held_out.npz"
    kept.write_bytes(kept.read_bytes()[:100])
    with pytest.raises(
        RecipeError, match=r"held_out.npz cannot be read; `spaceform evaluate .*` writes it again"
    ):
        predict(Run.load(tmp_path / "copy"), [unseen[0]], coverage=0.9)
    with np.load(run.path / "held_out.npz") as whole:
        few = {"probabilities": np.ones((3, 2)), "labels": np.zeros(3, int), "known": np.zeros(3)}
        np.savez(kept, **(dict(whole) | few))
    with pytest.raises(RecipeError, match=r"labels|probabilities"):
        predict(Run.load(tmp_path / "copy"), [unseen[0]], coverage=0.9)
    kept.unlink()
    with pytest.raises(RecipeError, match=r"there is no .*held_out.npz, on which sets and refusals rest"):
        predict(Run.load(tmp_path / "copy"), [unseen[0]], unknown=0.1)


def nan_first(x):
    x = x.copy()
    x.flat[0] = np.nan
    return x


@pytest.mark.parametrize(
    ("name", "changed", "told"),
    [
        (
            "probabilities",
            lambda p: p[:, :2] / p[:, :2].sum(1, keepdims=True),
            "has 2 columns, .* 10 classes",
        ),
        ("probabilities", lambda p: p.ravel(), "probabilities must have 2 axes"),
        ("probabilities", lambda p: p[:0], "probabilities is empty"),
        ("probabilities", lambda p: p.astype(int), "probabilities must hold floating-point numbers"),
        ("probabilities", lambda p: p.astype(str), "cannot be read"),
        ("probabilities", nan_first, "probabilities must not hold NaN"),
        ("probabilities", lambda p: 2 * p, "probabilities must sum to one"),
        ("labels", lambda y: y[1:], "labels has .* entries for"),
        ("labels", lambda y: y.astype(float), "labels must hold integer labels"),
        ("labels", lambda y: y + 5, "labels must lie in 0..9, got 14"),
        ("labels", lambda y: y[:, None], "labels must have one axis"),
        ("known", lambda s: s[1:], "known has .* entries for"),
        ("known", nan_first, "known must be finite"),
        ("known", lambda s: s.astype(int), "known must hold floating-point numbers"),
        ("judge.mean", lambda m: m[1:], r"mean of the score has shape \(7,\), not \(8,\)"),
        ("judge.centres", lambda c: c[:, 1:], "centres of the score has shape"),
        ("judge.basis", nan_first, "basis of the score must hold finite numbers"),
        ("judge.farthest", np.negative, "farthest of the score must hold finite numbers"),
        ("judge.scale", lambda s: 0 * s, "scale of the score must be positive"),
        ("judge.scale", lambda s: s[None], "scale of the score has shape"),
        ("judge.mean", lambda m: m.astype(int), "mean of the score must hold finite numbers"),
    ],
)
def test_what_is_not_of_the_run_is_told(run, tmp_path, name, changed, told):
    with np.load(run.path / "held_out.npz") as whole:
        np.savez(tmp_path / "held_out.npz", **(dict(whole) | {name: changed(whole[name])}))
    with pytest.raises(
        RecipeError, match=rf"held_out.npz .*{told}.*; `spaceform evaluate .*` writes it again"
    ):
        HeldOut.read(tmp_path, 10, 8)


@pytest.mark.compiled
def test_an_exported_graph_gives_the_sets_of_predict(run, unseen, tmp_path):
    """All but one in a thousand members: one that lies at the threshold may fall on its other side."""
    path, _ = unseen
    found = predict(run, [path], coverage=0.9, unknown=0.1)
    x = torch.from_numpy(np.load(path)["X"]).float() / 255
    export(run, tmp_path / "model.pt2", coverage=0.9, unknown=0.1)
    outputs = torch.export.load(tmp_path / "model.pt2").module()(x)
    assert [tuple(o.shape[1:]) for o in outputs[3:]] == [(10,), ()]
    assert (outputs[3] != found.sets).double().mean() <= 1e-3
    assert (outputs[4] != found.unknown).double().mean() <= 1e-2
    assert graph(run, coverage=0.9).outputs == ("probabilities", "confidence", "embedding", "set")
    assert len(graph(run)(x[:2])) == 3


@pytest.mark.parametrize("coverage", [0.0, 1.0, 1.5])
def test_an_exported_graph_refuses_an_impossible_coverage(run, tmp_path, coverage):
    with pytest.raises(ValueError, match="coverage must lie between 0 and 1, both excluded, got"):
        export(run, tmp_path / "model.pt2", coverage=coverage)
    assert not (tmp_path / "model.pt2").exists()


def test_a_run_on_features_keeps_the_share_and_finds_what_is_unknown(tmp_path):
    """Within 6 points of what is asked: its model has seen the rows that the threshold comes from."""
    X, y = load_digits(return_X_y=True)
    X = X + 2 * np.random.default_rng(0).standard_normal(X.shape)
    np.savez(tmp_path / "x.npz", X=X[:1300], y=y[:1300])
    settings = {"net.hidden": [32], "net.members": 1, "optim.epochs": 12}
    recipe = recipes(str(tmp_path / "x.npz"), ["cosine"], Conditions(settings=settings))["cosine"]
    run = train(recipe, tmp_path / "run")
    evaluate(run)
    np.save(tmp_path / "known.npy", X[1300:])
    np.save(tmp_path / "turned.npy", X[1300:, np.random.default_rng(1).permutation(64)])
    known, turned = (predict(run, [tmp_path / f"{name}.npy"], unknown=0.1) for name in ("known", "turned"))
    assert abs(known.unknown.double().mean().item() - 0.1) < 0.06
    assert turned.unknown.double().mean().item() > 0.7
    assert torch.equal(Run.load(run.path).held_out.judge.basis, run.held_out.judge.basis)
    # Numbers far beyond those of training, too, and so does a graph.
    column = X[1300:].copy()
    column[:, 20] = 1e6
    far = np.concatenate([1000 * X[1300:], -1000 * X[1300:], column])
    np.save(tmp_path / "far.npy", far)
    assert bool(predict(run, [tmp_path / "far.npy"], unknown=0.1).unknown.all())
    module = graph(run, unknown=0.1)
    assert bool(module(torch.from_numpy(far).float())[-1].all())
    assert (module(torch.from_numpy(X[1300:]).float())[-1] != known.unknown).double().mean() < 0.01
    # What the rehearsal left is asked for by `evaluate`, and told where it is damaged.
    kept = run.path / "rehearsal.safetensors"
    tensors, state = files.read_tensors(kept)
    for damage in (
        lambda: files.write_tensors(kept, tensors, {"models": 7}),
        lambda: files.write_tensors(kept, {"0.x": torch.zeros(2)}, state),
        lambda: kept.write_bytes(b"torn"),
        kept.unlink,
    ):
        damage()
        with pytest.raises(RecipeError, match=r"rehearsal.safetensors.*; copy the run again, or remove .*"):
            evaluate(run)
