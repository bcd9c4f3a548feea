"""The protocol, and what happens when things go wrong."""

import json

import filelock
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from short_runs import SHIPPED, same, timeless, tiny
from spaceform import data
from spaceform.calibrators import CALIBRATORS
from spaceform.run import files
from spaceform.run.evaluate import evaluate
from spaceform.run.failures import Diverged
from spaceform.run.finished import Run
from spaceform.run.material import material
from spaceform.run.model import build_model
from spaceform.run.optim import parameter_groups
from spaceform.run.recipe import QUICK, RecipeError, Schedule, replace
from spaceform.run.state import Plateau
from spaceform.run.train import train

pytestmark = pytest.mark.slow

# The protocol


def test_plateau_cuts_after_patience_and_stops_counting_at_a_better_score():
    schedule = Schedule(factor=0.5, patience=3)
    scores = [0.5, 0.6, 0.6, 0.5, 0.59, 0.6, 0.6, 0.6, 0.7, 0.1]
    seen = []
    plateau = Plateau()
    for epoch, score in enumerate(scores):
        plateau = plateau.after(epoch, score, schedule)
        seen.append((plateau.best_epoch, plateau.stale, plateau.cuts))
    # an equal score is no better one; cuts come 3 and 6 epochs after the best, and last
    assert seen == [
        (0, 0, 0),
        (1, 0, 0),
        (1, 1, 0),
        (1, 2, 0),
        (1, 3, 1),
        (1, 4, 1),
        (1, 5, 1),
        (1, 6, 2),
        (8, 0, 2),
        (8, 1, 2),
    ]


def test_epochs_of_a_warm_up_do_not_count():
    schedule = Schedule(factor=0.5, patience=2)
    scores = [0.9, 0.8, 0.8, 0.8, 0.8, 0.3, 0.2, 0.2, 0.4]
    seen = []
    plateau = Plateau(warmup=5)
    for epoch, score in enumerate(scores):
        plateau = plateau.after(epoch, score, schedule)
        seen.append((plateau.best_epoch, plateau.stale, plateau.cuts))
    assert seen[:5] == [(0, 0, 0)] * 5  # neither a cut nor a stop, though nothing gets better
    assert seen[5:] == [(5, 0, 0), (5, 1, 0), (5, 2, 1), (8, 0, 1)]


def test_arcface_does_not_stop_before_its_margin_applies(tmp_path):
    """With a rate too small to change a prediction, and without batch norm, all scores are equal."""
    still = {"optim__lr": 1e-30, "optim__temperature_lr": 0.0, "net__hidden": None}
    still |= {"budget__patience": 3, "budget__epochs": 20}
    run = train(tiny("arcface", head__warmup_epochs=8, **still), tmp_path / "run")
    assert (run.result["best_epoch"], run.result["epochs"]) == (8, 12)
    assert run.model.head.margin.item() == pytest.approx(run.recipe.head.options["margin"])
    short = train(tiny("arcface", head__warmup_epochs=8, budget__epochs=2), tmp_path / "short")
    assert short.result["epochs"] == 2  # a budget that ends in the warm-up has a best epoch too


@pytest.mark.parametrize("head", ["cosine", "hyperbolic"])
def test_parameter_groups_of_adamw(head):
    changes = {"optim.name": "adamw", "optim.weight_decay": 0.3, "optim.temperature_lr": 0.007}
    recipe = replace(tiny(head), changes)
    model = build_model(recipe, 10, (1, 8, 8))
    groups = {group["name"]: group for group in parameter_groups(model.net, model.head, recipe.optim)}
    decays = {name: group["weight_decay"] for name, group in groups.items()}
    if head == "cosine":
        assert decays == {"weights": 0.3, "biases": 0.0, "class_weights": 0.3, "temperature": 0.0}
        assert groups["temperature"]["lr"] == 0.007
    else:
        assert decays == {"weights": 0.3, "biases": 0.0, "hyperplanes": 0.0}
    assert isinstance(recipe.optim.build(list(groups.values())), torch.optim.AdamW)


@pytest.mark.parametrize("head", SHIPPED)
def test_parameter_groups(head):
    recipe = tiny(head, optim__weight_decay=0.3, optim__temperature_lr=0.007, optim__lr=0.2)
    model = build_model(recipe, 10, (1, 8, 8))
    groups = {group["name"]: group for group in parameter_groups(model.net, model.head, recipe.optim)}
    listed = [p for group in groups.values() for p in group["params"]]
    assert len(listed) == len({id(p) for p in listed})
    assert {id(p) for p in listed} == {id(p) for p in model.parameters()}
    assert {p.ndim for p in groups["weights"]["params"]} == {2}
    assert {p.ndim for p in groups["biases"]["params"]} == {1}
    assert groups["weights"]["weight_decay"] == 0.3
    assert groups["biases"]["weight_decay"] == 0.0
    of_the_head = groups["hyperplanes"] if head in ("hyperbolic", "lorentz") else groups["class_weights"]
    assert of_the_head["weight_decay"] == (0.0 if head in ("hyperbolic", "lorentz") else 0.3)
    assert (of_the_head["lr"], of_the_head["momentum"], of_the_head["nesterov"]) == (0.2, 0.9, True)
    assert ("temperature" in groups) == hasattr(model.head, "log_beta")
    if "temperature" in groups:
        own = groups["temperature"]
        assert (own["lr"], own["momentum"], own["nesterov"], own["weight_decay"]) == (0.007, 0.0, False, 0.0)


def test_rates_are_halved_in_every_group_and_training_stops(tmp_path):
    """With a rate too small to change a single prediction, nothing ever gets better after the first epoch."""
    recipe = tiny(
        optim__lr=1e-30,
        optim__temperature_lr=0.0,
        schedule__patience=2,
        budget__patience=5,
        budget__epochs=50,
    )
    history = train(recipe, tmp_path / "run").history
    lr = 1e-30
    assert [record["lr"] for record in history] == [lr, lr, lr, lr / 2, lr / 2, lr / 4]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["epochs"], result["best_epoch"], result["stopped"]) == (6, 0, "patience")


def test_the_best_epoch_is_kept(tmp_path):
    recipe = tiny(budget__epochs=6, optim__lr=3.0)
    run = train(recipe, tmp_path / "run")
    scores = [record["score"] for record in run.history]
    assert run.result["score"] == max(scores)
    assert run.result["best_epoch"] == scores.index(max(scores))
    parts = material(recipe)
    p = run.predict_proba(parts.dataset.inputs[parts.split.val], calibrator=None)
    assert (p.argmax(1) == parts.targets[parts.split.val]).double().mean().item() == pytest.approx(
        max(scores)
    )


class Told(nn.Module):
    """A linear net that counts its training batches and remembers whether batch norm was training."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(64)
        self.linear = nn.Linear(64, 4)
        self.seen: list[tuple[int, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append((len(x), self.norm.training))
        return self.linear(self.norm(x.flatten(1)))


def test_preparation_sees_all_training_data_once_and_leaves_batch_norm_as_it_was(tmp_path):
    net, recipe = Told(), tiny("cosine", budget__epochs=1)
    train(recipe, tmp_path / "run", net=net)
    items = len(material(recipe).split.train)
    first_episode = (
        next(i for i, _ in enumerate(net.seen) if sum(n for n, _ in net.seen[: i + 1]) == items) + 1
    )
    assert all(training for _, training in net.seen[:first_episode])
    assert net.norm.num_batches_tracked.item() == recipe.budget.episodes


def test_a_net_of_your_own(tmp_path):
    recipe = replace(tiny(), {"net.name": "mine"})
    run = train(recipe, tmp_path / "run", net=Told())
    with pytest.raises(RecipeError, match="trained with a net of your own"):
        Run.load(tmp_path / "run")
    x = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    assert torch.equal(Run.load(tmp_path / "run", net=Told()).embed(x), run.embed(x))


def test_the_callers_random_numbers_are_left_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(tiny("standard", budget__epochs=1), tmp_path / "run")
    assert torch.equal(torch.rand(3), expected)


# Every head, every task


@pytest.mark.parametrize("head", SHIPPED)
def test_every_head_learns_and_repeats_bit_for_bit(head, tmp_path):
    recipe = replace(QUICK[f"digits/{head}"], {"budget.epochs": 5, "budget.episodes": 10})
    for name in ("a", "b"):
        found = evaluate(train(recipe, tmp_path / name))
    same(tmp_path / "a", tmp_path / "b")
    assert found["accuracy"] > 0.88
    assert 0 <= found["calibration_error_l1"] <= found["calibration_error_l2"] < 0.3
    assert set(found["calibrated"]) == set(CALIBRATORS)
    with np.load(tmp_path / "a" / "outputs.npz", allow_pickle=False) as saved:
        assert saved["probabilities"].shape == (found["items"], 10)
        assert saved["embeddings"].shape == (found["items"], recipe.net.dim)
        np.testing.assert_allclose(saved["probabilities"].sum(1), 1, atol=1e-5)
        right = saved["probabilities"].argmax(1) == saved["labels"]
        assert right.mean() == pytest.approx(found["accuracy"], abs=1e-9)
        run, dataset = Run.load(tmp_path / "a"), data.load("digits")
        np.testing.assert_array_equal(dataset.labels[torch.from_numpy(saved["index"])], saved["labels"])
        x = dataset.inputs[torch.from_numpy(saved["index"])]
        p = run.predict_proba(x, calibrator=None)
        np.testing.assert_allclose(p, saved["probabilities"], atol=1e-6)
        calibrated = run.predict_proba(x, calibrator="temperature")
        np.testing.assert_allclose(calibrated, saved["probabilities_temperature"], atol=1e-6)
        assert run.best_calibrator == found["calibrator"] == "structured"
        calibrated = run.predict_proba(x)
        np.testing.assert_allclose(calibrated, saved[f"probabilities_{found['calibrator']}"], atol=1e-6)


def test_another_seed_gives_another_run_on_the_same_split(tmp_path):
    a, b = tiny(seed=0), tiny(seed=1)
    assert material(a).fingerprint == material(b).fingerprint
    assert material(a).fingerprint != material(replace(a, {"data.split_seed": 1})).fingerprint
    train(a, tmp_path / "a")
    train(b, tmp_path / "b")
    assert timeless(tmp_path / "a") != timeless(tmp_path / "b")


@pytest.mark.parametrize("head", ["standard", "hyperbolic", "vmf"])
def test_retrieval(head, tmp_path):
    recipe = tiny(head, data__task="retrieval", budget__epochs=4, budget__episodes=10, net__dim=8)
    run = train(recipe, tmp_path / "run")
    assert run.classes == tuple(str(c) for c in range(5) if str(c) in run.classes)
    assert len(run.classes) == 3
    found = evaluate(run)
    assert found["task"] == "retrieval"
    for where in (found, found["cosine"]):
        assert 0.2 < where["map_at_r"] < where["recall_at_1"] <= where["recall_at_10"] <= 1
    with np.load(tmp_path / "run" / "outputs.npz", allow_pickle=False) as saved:
        assert set(saved["labels"]) == {5, 6, 7, 8, 9}


def test_long_tailed_and_noisy_training_data(tmp_path):
    recipe = tiny(data__imbalance=10.0, data__label_noise=0.2)
    parts, clean = material(recipe), material(tiny())
    assert len(parts.split.train) < len(clean.split.train)
    assert torch.equal(parts.split.test, clean.split.test)
    assert torch.equal(parts.dataset.labels[parts.split.test], clean.dataset.labels[clean.split.test])
    y = parts.dataset.labels[parts.split.train] != clean.dataset.labels[parts.split.train]
    assert y.double().mean().item() == pytest.approx(0.2, abs=0.01)
    assert 0 <= evaluate(train(recipe, tmp_path / "run"))["accuracy"] <= 1


def test_channels_last_changes_the_layout_and_not_the_run(tmp_path):
    """In float64, where the order of a sum does not show."""
    short = {"budget.epochs": 1, "budget.episodes": 3, "net.name": "residual", "precision": "64-true"}
    plain = replace(QUICK["digits/cosine"], short)
    runs = [
        train(replace(plain, channels_last=last), tmp_path / str(last)).model.state_dict()
        for last in (False, True)
    ]
    for name, value in runs[0].items():
        torch.testing.assert_close(runs[1][name], value, rtol=0, atol=1e-8, msg=name)


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_precision(precision, tmp_path):
    recipe = replace(QUICK["digits/vmf"], {"budget.epochs": 3, "precision": precision})
    run = train(recipe, tmp_path / "run")
    assert next(run.model.parameters()).dtype == (torch.float64 if precision == "64-true" else torch.float32)
    assert evaluate(run)["accuracy"] > 0.85


# One folder, one run


def test_another_recipe_is_refused_and_the_same_one_is_finished(tmp_path):
    recipe = tiny()
    run = train(recipe, tmp_path / "run")
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir()}
    with pytest.raises(RecipeError, match=r"holds a run of another recipe \(its optim.lr is 0.1, not 0.2\)"):
        train(replace(recipe, {"optim.lr": 0.2}), tmp_path / "run")
    again = train(recipe, tmp_path / "run")
    assert again.result == run.result
    assert before == {p.name: p.stat().st_mtime_ns for p in (tmp_path / "run").iterdir()}


def test_two_processes_do_not_mix(tmp_path):
    (tmp_path / "run").mkdir()
    with (
        filelock.FileLock(tmp_path / "run" / ".lock"),
        pytest.raises(RecipeError, match=r"another process is training in .*run"),
    ):
        train(tiny(), tmp_path / "run")


def test_a_wrong_recipe_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match=r"net 'projection' has no option 'stem'"):
        train(tiny(net__stem="cifar"), tmp_path / "run")
    with pytest.raises(ValueError, match="there is no data 'nowhere'"):
        train(tiny(data__name="nowhere"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Breaks(nn.Module):
    """Gives NaN in training from some batch on."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 4)
        self.left = after

    def forward(self, x: Tensor) -> Tensor:
        self.left -= self.training
        return self.linear(x.flatten(1)) * (1.0 if self.left >= 0 else float("nan"))


def test_a_loss_that_is_not_finite_says_where_and_keeps_the_last_good_checkpoint(tmp_path):
    recipe = tiny(budget__episodes=4)
    passes = -(-len(material(recipe).split.train) // 30)
    with pytest.raises(Diverged, match=r"not finite in epoch 2, step 2; try a lower optim.lr \(it is 0.1\)"):
        train(recipe, tmp_path / "run", net=Breaks(passes + 4 + 2))
    _, state = files.latest_checkpoint(tmp_path / "run")
    assert state["epoch"] == 1
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_rate_that_is_too_high_is_told(tmp_path):
    with pytest.raises(Diverged, match=r"epoch 1, step \d; try a lower optim.lr \(it is 1e\+30\)"):
        train(tiny("standard", optim__lr=1e30), tmp_path / "run")


# Loggers


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    train(tiny(), tmp_path / "run", log=["tensorboard"])
    events = list((tmp_path / "run" / "tensorboard").rglob("events*"))
    assert len(events) == 1
    assert b"score" in events[0].read_bytes()


def test_an_unknown_or_missing_logger_is_told(tmp_path):
    with pytest.raises(RecipeError, match="unknown logger 'tensorbord'; did you mean 'tensorboard'"):
        train(tiny(), tmp_path / "run", log=["tensorbord"])
    try:
        import wandb  # noqa: F401
    except ImportError:
        with pytest.raises(RecipeError, match="needs the package 'wandb': pip install wandb"):
            train(tiny(), tmp_path / "run", log=["wandb"])
    assert not (tmp_path / "run").exists()
