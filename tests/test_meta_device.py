"""What runs on a GPU never waits for it: on the meta device there are no values, and reading one raises.

So does a product with a tensor that was made on the CPU by accident. Exceptions are listed here, and each of
them must be one: what no longer waits has to leave the list.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from spaceform import data, distributions, metrics
from spaceform.calibrators import CALIBRATORS
from spaceform.data import loader
from spaceform.data.augment import pixels_for
from spaceform.data.photos import photos_for
from spaceform.decisions import PAIRS, SETS, UNKNOWN_SCORES, Known, Refusal
from spaceform.distributions import HypersphericalUniform, PowerSpherical, VonMisesFisher
from spaceform.heads import HEADS, StochasticHead
from spaceform.run.material import material
from spaceform.run.model import build_model
from spaceform.run.optim import parameter_groups
from spaceform.run.predictor import Predictor
from spaceform.run.recipe import QUICK, replace

DIM, CLASSES, BATCH = 16, 7, 5

NO_FUNCTIONS_OF_TENSORS = {"bootstrap", "r_auroc", "tree_distances"}
READ_BY_THE_CPU = {
    name
    for name in metrics.__all__
    if not isinstance(getattr(metrics, name), type) and name not in NO_FUNCTIONS_OF_TENSORS
}
"""Metrics: their last step is a sum in float64 on the CPU, one copy of one number an example."""


def on_meta(*shape: int, **kwargs: object) -> Tensor:
    return torch.empty(*shape, device="meta", **kwargs)


@pytest.mark.parametrize("name", list(HEADS))
@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_head_trains(name, chunk, dtype):
    head = HEADS[name](DIM, CLASSES, class_chunk=chunk).to("meta")
    z = on_meta(BATCH, DIM, dtype=dtype, requires_grad=True)
    y = on_meta(BATCH, dtype=torch.long)
    head.start_epoch(1)
    head(z, y, class_weight=on_meta(CLASSES), ignore_index=-100).sum().backward()
    assert z.grad.is_meta
    assert z.grad.dtype == dtype
    for key, p in head.named_parameters():
        assert p.grad.is_meta, key


@pytest.mark.parametrize("name", list(HEADS))
def test_a_head_takes_soft_labels_and_predicts(name):
    head = HEADS[name](DIM, CLASSES).to("meta")
    z = on_meta(BATCH, DIM, requires_grad=True)
    head(z, on_meta(BATCH, CLASSES)).sum().backward()
    head(z, on_meta(BATCH, dtype=torch.long), label_smoothing=0.1).sum().backward()
    head.log_probs(z).sum().backward()
    found = [head.predict_proba(z), head.logit_samples(z), head.confidence(z), *head.top_k(z, 2)]
    if isinstance(head, StochasticHead):
        found.append(head.sample(z, 3))
    assert all(x.is_meta for x in found)


@pytest.mark.parametrize("name", list(HEADS))
def test_a_head_is_prepared(name):
    head = HEADS[name](DIM, CLASSES).to("meta")
    head.prepare(on_meta(BATCH, DIM))
    assert all(b.is_meta for b in head.buffers())


LAWS = {
    "VonMisesFisher": lambda mu, κ: VonMisesFisher(mu, κ, validate_args=False),
    "PowerSpherical": lambda mu, κ: PowerSpherical(mu, κ, validate_args=False),
}


def test_every_law_is_tried():
    laws = {name for name in distributions.__all__ if isinstance(getattr(distributions, name), type)}
    assert laws == {*LAWS, HypersphericalUniform.__name__}


@pytest.mark.parametrize("name", list(LAWS))
def test_a_distribution_is_drawn_from_and_measured(name):
    mu, κ = on_meta(BATCH, DIM, requires_grad=True), on_meta(BATCH, requires_grad=True)
    law = LAWS[name](mu, κ)
    x = law.rsample((3,))
    uniform = HypersphericalUniform(DIM, device="meta", validate_args=False)
    divergence = torch.distributions.kl_divergence(law, uniform)
    (x.sum() + law.log_prob(x.detach()).sum() + law.entropy().sum() + divergence.sum()).backward()
    assert mu.grad.is_meta
    assert κ.grad.is_meta
    assert law.mean.is_meta


@pytest.mark.parametrize("name", list(CALIBRATORS))
def test_a_calibrator_is_applied(name):
    logits, y, confidence = torch.randn(60, CLASSES), torch.arange(60) % CLASSES, torch.rand(60) + 1
    calibrator = CALIBRATORS[name]().fit(logits, y, confidence)
    L = on_meta(3, BATCH, CLASSES, requires_grad=True)
    log_p = calibrator.to("meta")(L, on_meta(BATCH))
    log_p.sum().backward()
    assert log_p.is_meta
    assert L.grad.is_meta


FITTED_TO = 120
Z = torch.nn.functional.normalize(torch.randn(FITTED_TO, DIM, generator=torch.Generator().manual_seed(0)))
Y = torch.arange(FITTED_TO) % CLASSES


@pytest.mark.parametrize("name", list(SETS))
@pytest.mark.parametrize("by_class", [False, True])
def test_sets_are_found(name, by_class):
    p, κ = torch.softmax(3 * Z[:, :CLASSES], -1), 1 + Z[:, 0].abs()
    sets = SETS[name](0.8, by_class=by_class and name != "norm_aware").fit(p, Y, κ).to("meta")
    assert sets(on_meta(BATCH, CLASSES), on_meta(BATCH)).is_meta


@pytest.mark.parametrize("name", list(UNKNOWN_SCORES))
def test_an_unknown_item_is_told(name):
    held = Known(Z, Y, 3 * Z[:, :CLASSES], Z.norm(dim=1))
    score = UNKNOWN_SCORES[name]().fit(Z, Y, held).to("meta")
    found = score(on_meta(BATCH, DIM), on_meta(3, BATCH, CLASSES), on_meta(BATCH))
    assert found.is_meta
    assert Refusal(0.1).fit(Z[:, 0]).to("meta")(found).is_meta


@pytest.mark.parametrize("name", list(PAIRS))
def test_pairs_are_compared(name):
    pairs = PAIRS[name]().fit(Z, Y).to("meta")
    a, b = on_meta(BATCH, DIM), on_meta(BATCH, 2, DIM)
    assert all(found.is_meta for found in (pairs(a, a), pairs(a, b), pairs.same(a, b), pairs.all_pairs(a, b)))


def arguments(name: str) -> tuple[object, ...]:
    """What a metric takes, on the meta device."""
    p, y = on_meta(BATCH, CLASSES), on_meta(BATCH, dtype=torch.long)
    z, score, right = on_meta(BATCH, DIM), on_meta(BATCH), on_meta(BATCH, dtype=torch.bool)
    of_probabilities = (p, y)
    of_scores = (score, right)
    return {
        "mean": (score,),
        "accuracy": of_probabilities,
        "nll": of_probabilities,
        "brier": of_probabilities,
        "calibration_error": of_probabilities,
        "reliability": of_probabilities,
        "set_coverage": (on_meta(BATCH, CLASSES, dtype=torch.bool), y),
        "mistake_distance": (p, y, on_meta(CLASSES, CLASSES)),
        "expected_tree_distance": (p, y, on_meta(CLASSES, CLASSES)),
        "set_size": (on_meta(BATCH, CLASSES, dtype=torch.bool),),
        "map_at_r": (z, y),
        "retrieval": (z, y),
        "expected_retrieval": (z[None], y),
        "few_shot_accuracy": (z, y),
        "accept_threshold": (score, 0.1),
        "ood_auroc": (score, score),
        "ood_fpr": (score, score),
    }.get(name, of_scores)


@pytest.mark.parametrize("name", sorted(READ_BY_THE_CPU))
def test_a_metric_that_is_an_exception_is_one(name):
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        getattr(metrics, name)(*arguments(name))


@pytest.fixture(scope="module")
def digits():
    return material(QUICK["digits/cosine"])


@pytest.mark.parametrize("name", list(HEADS))
def test_a_step_of_training_and_a_prediction_wait_for_nothing(name, digits):
    """Data, augmentation, net, head, optimiser, prediction: all on the device that the data were moved to."""
    recipe = replace(QUICK["digits/cosine"], {"head.name": name})
    device, how = torch.device("meta"), pixels_for("mnist", digits.dataset.inputs)
    model = build_model(recipe, len(digits.classes), digits.input_shape).to(device)
    optimizer = recipe.optim.build(parameter_groups(model.net, model.head, recipe.optim))
    dataset, index = digits.dataset.to(device), digits.split.train
    sizes = {"classes_per_episode": 4, "items_per_class": 3, "episodes": 2}
    sampler = data.EpisodicSampler(digits.targets, index, **sizes, seed=0)
    model.head.start_epoch(0)
    for x, y, total in data.train_batches(dataset, digits.targets, sampler, how, device=device):
        optimizer.zero_grad()
        (model(x, y).sum() / total).backward()
        optimizer.step()
        assert x.is_meta
        assert y.is_meta
    assert all(p.grad.is_meta for p in model.parameters())
    z = model.embed(data.evaluation_batches(dataset, digits.split.test, how, device=device))
    calibrator = CALIBRATORS["structured"]().fit(
        torch.randn(60, 10), torch.arange(60) % 10, torch.rand(60) + 1
    )
    probabilities, confidence = Predictor(model.head, calibrator.to(device)).predict(z)
    assert probabilities.is_meta
    assert confidence.is_meta


def test_rows_of_the_disk_go_to_the_device(tmp_path, monkeypatch):
    monkeypatch.setenv("SPACEFORM_MEMORY", "100")
    np.save(tmp_path / "X-0.npy", np.ones((9, 4), np.float32))
    np.save(tmp_path / "y-0.npy", np.arange(9) % 3)
    dataset = data.load(tmp_path)
    sampler = data.EpisodicSampler(
        dataset.labels, torch.arange(9), classes_per_episode=2, items_per_class=2, episodes=1, seed=0
    )
    (batch,) = data.train_batches(dataset, dataset.labels, sampler, None, device=torch.device("meta"))
    (x,) = data.evaluation_batches(dataset, torch.arange(9), None, device=torch.device("meta"))
    assert batch.inputs.is_meta
    assert batch.targets.is_meta
    assert x.is_meta


def test_photos_for_a_gpu_lie_in_pinned_memory(tmp_path, monkeypatch):
    """Without a GPU memory cannot be pinned; that it is asked for can be seen."""
    asked = []

    class Loader:
        def __init__(self, *_, **options):
            asked.append(options["pin_memory"])

        def __iter__(self):
            return iter(())

    monkeypatch.setattr(loader, "DataLoader", Loader)
    dataset = data.Dataset("d", ("a", "b"), torch.arange(4) % 2, tuple(tmp_path / str(i) for i in range(4)))
    for device in ("cuda", "cpu"):
        list(data.evaluation_batches(dataset, torch.arange(4), photos_for("d"), device=torch.device(device)))
    assert asked == [True, False]
