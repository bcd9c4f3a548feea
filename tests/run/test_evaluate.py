"""What `evaluate` measures is what a run was selected by, and what it predicts."""

import json

import numpy as np
import pytest
import torch

from short_runs import tiny
from spaceform import data, metrics
from spaceform.geometry import Sphere
from spaceform.metrics import r_auroc
from spaceform.metrics.retrieval import retrieval
from spaceform.run import evaluate as measuring
from spaceform.run.evaluate import evaluate, validation_score
from spaceform.run.finished import Run
from spaceform.run.material import material
from spaceform.run.recipe import replace
from spaceform.run.train import train

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


@pytest.mark.parametrize("head", ["vmf", "standard"])
def test_a_run_is_selected_by_the_accuracy_that_it_predicts_with(head, tmp_path):
    recipe = tiny(head)
    run, parts = train(recipe, tmp_path / "run"), material(recipe)
    x, y = parts.dataset.inputs[parts.split.val], parts.targets[parts.split.val]
    probabilities = run.predict_proba(x, calibrator=None)
    assert float(metrics.accuracy(probabilities, y)) == run.result["score"]
    assert validation_score(run.model, parts, CPU) == run.result["score"]


def test_retrieval_is_selected_by_what_is_reported(tmp_path):
    """Sampled copies in both; what the net emits in both, where the recipe says so."""
    recipe = tiny("vmf", data__task="retrieval", budget__epochs=2, net__dim=8)
    run, parts = train(recipe, tmp_path / "run"), material(recipe)
    index = parts.split.val
    z = run.embed(parts.dataset.inputs[index])
    y = parts.dataset.labels[index]
    sampled = validation_score(run.model, parts, CPU)
    direction = validation_score(run.model, parts, CPU, retrieval="direction")
    assert run.result["score"] == sampled != direction
    assert direction == retrieval(z, y, Sphere(), k=(1,)).recall[1]
    generator = torch.Generator().manual_seed(0)
    copies = [run.model.head.sample(z, 1, generator=generator)[0] for _ in range(10)]
    expected = np.mean([retrieval(copy, y, Sphere(), k=(1,)).recall[1] for copy in copies])
    assert sampled == pytest.approx(expected, abs=1e-12)

    found = evaluate(run)
    assert found["judged_by"] == "sampled"
    assert found["sampled"]["map_at_r"] == found["map_at_r"] != found["direction"]["map_at_r"]
    assert found["direction"] == found["cosine"]  # the geometry of the head is the sphere
    assert run.metrics == found == json.loads((run.path / "metrics.json").read_text())
    other = evaluate(run, retrieval="direction")
    chosen = train(replace(recipe, retrieval="direction"), tmp_path / "direction")
    assert [epoch["score"] for epoch in chosen.history] != [epoch["score"] for epoch in run.history]
    assert validation_score(chosen.model, parts, CPU, retrieval="direction") == chosen.result["score"]
    judged = evaluate(chosen)
    assert (judged["judged_by"], judged["map_at_r"]) == ("direction", judged["direction"]["map_at_r"])
    assert (other["judged_by"], other["map_at_r"]) == ("direction", found["direction"]["map_at_r"])
    assert {name: other[name] for name in ("sampled", "direction", "cosine")} == {
        name: found[name] for name in ("sampled", "direction", "cosine")
    }


def test_a_head_without_draws_is_judged_by_what_its_net_emits(tmp_path):
    recipe = tiny("hyperbolic", data__task="retrieval")
    run, parts = train(recipe, tmp_path / "run"), material(recipe)
    assert validation_score(run.model, parts, CPU, retrieval="direction") == run.result["score"]
    found = evaluate(run)
    assert found["judged_by"] == "direction"
    assert "sampled" not in found
    assert found["direction"]["map_at_r"] == found["map_at_r"] != found["cosine"]["map_at_r"]
    z, y = run.embed(parts.dataset.inputs[parts.split.test]), parts.dataset.labels[parts.split.test]
    nearest = retrieval(z, y, run.model.head.geometry, k=(1,))
    assert found["r_auroc"] == pytest.approx(float(r_auroc(run.model.head.confidence(z), nearest)), abs=1e-9)
    assert found["few_shot"]["ways"] == 3  # of five classes
    assert 1 / 3 < found["few_shot"]["low_1"] < found["few_shot"]["accuracy_1"] < found["few_shot"]["high_1"]
    assert found["few_shot"]["accuracy_1"] < found["few_shot"]["accuracy_5"] < 1
    assert evaluate(run)["few_shot"] == found["few_shot"]
    with pytest.warns(UserWarning, match="are uncalibrated: it was trained for retrieval"):
        run.predict_proba(parts.dataset.inputs[:2])


def test_device_and_workers_reach_the_loader(tmp_path, monkeypatch):
    run, asked = train(tiny(), tmp_path / "run"), []
    load = data.evaluation_batches

    def recorded(*args, device, workers, **options):
        asked.append((device, workers))
        return load(*args, device=device, workers=0, **options)

    monkeypatch.setattr(measuring.data, "evaluation_batches", recorded)
    evaluate(run, device="cpu", workers=3)
    assert asked == [(CPU, 3)] * 3
    assert Run.load(tmp_path / "run").device == CPU


def test_numbers_are_those_that_training_ended_with(tmp_path):
    recipe = tiny("hyperbolic", head__learn_curvature=True, head__curvature=0.01, optim__temperature_lr=0.1)
    run = train(recipe, tmp_path / "run")
    found = evaluate(run)["numbers"]
    assert found == {"curvature": Run.load(tmp_path / "run").model.head.curvature.value}
    assert found["curvature"] != pytest.approx(0.01, rel=1e-6)
