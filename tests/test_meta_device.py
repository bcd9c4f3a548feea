"""What runs on a GPU never waits for it: on the meta device there are no values, and reading one raises.

So does a product with a tensor that was made on the CPU by accident. Exceptions are listed here, and each of
them must be one: what no longer waits has to leave the list.
"""

import pytest
import torch
from torch import Tensor

from spaceform import metrics
from spaceform.calibrators import CALIBRATORS
from spaceform.distributions import HypersphericalUniform, PowerSpherical, VonMisesFisher
from spaceform.heads import HEADS, StochasticHead

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
