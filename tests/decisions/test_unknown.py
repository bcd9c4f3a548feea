"""Unknown items: scores by their definitions, refusals as promised, a choice without any outlier."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import betabinom
from sklearn.covariance import OAS

from clusters import CLASSES, DIM, clusters
from spaceform.decisions import (
    UNKNOWN_SCORES,
    Combined,
    Energy,
    Known,
    Mahalanobis,
    NearestNeighbours,
    OwnEvidence,
    Refusal,
    choose_unknown,
)
from spaceform.decisions.choose_unknown import _chosen
from spaceform.decisions.unknown_distance import shrunk_covariance
from spaceform.geometry import Euclidean, PoincareBall, Sphere
from spaceform.geometry.base import direction
from spaceform.heads import VonMisesFisherHead
from spaceform.metrics import ood_auroc

# Definitions


def test_energy_is_the_logarithm_of_the_mean_sum(items):
    z, _, logits = items
    expected = logits.exp().sum(2).mean(0).log()
    torch.testing.assert_close(Energy()(z, logits), expected)
    torch.testing.assert_close(Energy()(z, logits[0]), torch.logsumexp(logits[0], 1))
    torch.testing.assert_close(Energy()(z, logits + 5000), expected + 5000)  # no overflow


def test_the_energy_of_the_von_mises_fisher_head_is_its_evidence():
    """E[Σⱼ exp(β wⱼ·z)] over draws of z and of every wⱼ, here with 2,000 other draws."""
    torch.manual_seed(0)
    head = VonMisesFisherHead(8, 4)
    head.draws = 512
    z = 20 * torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    head.samples = 2000
    random = head.logit_samples(z, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(Energy()(z, head.logit_samples(z)), Energy()(z, random), rtol=0, atol=0.1)


def test_evidence_is_the_confidence(items):
    z, _, logits = items
    κ = z.norm(dim=1)
    assert torch.equal(OwnEvidence()(z, logits, κ), κ)


@pytest.mark.parametrize("geometry", [Euclidean(), Sphere(), PoincareBall(0.5)], ids=lambda g: g.kind)
def test_the_kth_neighbour_by_sorting(geometry, items):
    z, y, logits = items
    found = NearestNeighbours(geometry, k=7).fit(z[:200], y[:200])(z[200:], logits[:, 200:])
    for i, value in zip(range(200, 300), found.tolist(), strict=True):
        ranked = sorted(geometry.similarity(z[i].expand(200, -1), z[:200]).tolist(), reverse=True)
        assert value == pytest.approx(ranked[6], abs=1e-9)


@pytest.mark.parametrize("geometry", [Euclidean(), Sphere()], ids=lambda g: g.kind)
def test_mahalanobis_by_its_definition_and_scikit_learns_covariance(geometry, items):
    z, y, logits = items
    found = Mahalanobis(geometry).fit(z[:200], y[:200])(z[200:], logits[:, 200:])
    x = (direction(z) if geometry.kind == "spherical" else z).numpy()
    means = np.stack([x[:200][y[:200] == j].mean(0) for j in range(CLASSES)])
    centred = x[:200] - means[y[:200]]
    precision = np.linalg.inv(OAS(assume_centered=True).fit(centred).covariance_)
    away = x[200:, None] - means
    expected = -np.einsum("ijk,kl,ijl->ij", away, precision, away).min(1)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_another_score_is_taken_only_where_it_is_clearly_better():
    found = {"combined": [0.70, 0.72, 0.71], "evidence": [0.71, 0.70, 0.73], "mahalanobis": [0.5, 0.5, 0.5]}
    assert _chosen(found) == "combined"
    assert _chosen({**found, "mahalanobis": [0.80, 0.83, 0.82]}) == "mahalanobis"
    assert _chosen({name: values[:1] for name, values in found.items()}) == "combined"


@pytest.mark.parametrize("n", [2, 4, 40])
def test_few_items_have_a_covariance_that_can_be_inverted(n):
    x = torch.randn(n, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    Σ = shrunk_covariance(x)
    np.testing.assert_allclose(Σ, OAS(assume_centered=True).fit(x.numpy()).covariance_, rtol=1e-9, atol=1e-12)
    assert torch.linalg.eigvalsh(Σ).min() > 0
    torch.testing.assert_close(shrunk_covariance(0 * x), torch.eye(9).double())


# Choice


def known(n: int, seed: int) -> Known:
    z, y = clusters(n, seed)
    logits = 4 * z @ torch.eye(CLASSES, DIM, dtype=torch.float64).T
    return Known(z, y, logits, z.norm(dim=1))


def test_the_choice_leaves_classes_out_and_tells_what_it_saw():
    z, y = clusters(600)
    held = known(300, 1)
    chosen = choose_unknown(z, y, held)
    assert set(chosen.auroc) == set(UNKNOWN_SCORES)
    assert chosen.score.name != "energy"
    assert chosen.auroc[chosen.score.name] > 0.9
    assert chosen.auroc["mahalanobis"] > 0.9
    assert chosen.auroc["evidence"] < 0.8
    # It is fitted to all classes and finds items that are of none.
    foreign = -held.z[held.y == 0]
    s = [chosen.score(x, torch.zeros(len(x), CLASSES), x.norm(dim=1)) for x in (held.z, foreign)]
    assert ood_auroc(*s).item() > 0.9
    again = choose_unknown(z.numpy(), y.numpy(), Known(*(np.asarray(x) for x in held[:4])))
    assert again.auroc == pytest.approx(chosen.auroc)


# Refusal


def test_the_threshold_by_hand():
    scores = torch.arange(1.0, 20.0)
    refuse = Refusal(0.1).fit(scores)
    assert refuse.threshold.item() == 2
    assert refuse(torch.tensor([1.9, 2.0, 2.1])).tolist() == [True, False, False]
    assert not bool(refuse.fit(torch.ones(19))(torch.ones(5)).any())


def test_refusals_have_the_law_of_the_theory():
    """Of 2,000 known items after 199: Beta-binomial. Its 1e-4 tails are left 1 time in 5,000."""
    s = torch.randn(2199, generator=torch.Generator().manual_seed(0))
    law = betabinom(2000, 10, 190)
    refused = int(Refusal(0.05).fit(s[:199])(s[199:]).sum())
    assert law.ppf(1e-4) <= refused <= law.ppf(1 - 1e-4)


# State and graphs


@pytest.mark.parametrize("kind", UNKNOWN_SCORES)
def test_the_state_is_all_there_is(kind, items):
    z, y, logits = items
    κ = z.norm(dim=1)
    fitted = UNKNOWN_SCORES[kind]().fit(z, y, Known(z, y, logits, κ))
    again = UNKNOWN_SCORES[kind]()
    again.load_state_dict(fitted.state_dict())
    assert torch.equal(again(z, logits, κ), fitted(z, logits, κ))
    narrow = fitted(z.float(), logits.float(), κ.float())
    torch.testing.assert_close(narrow.double(), fitted(z, logits, κ), rtol=1e-4, atol=1e-4)
    refuse = Refusal(0.2).fit(fitted(z, logits, κ))
    other = Refusal(0.2)
    other.load_state_dict(refuse.state_dict())
    assert torch.equal(other(z[:, 0]), refuse(z[:, 0]))


class _Judge(torch.nn.Module):
    def __init__(self, score: torch.nn.Module, refuse: torch.nn.Module) -> None:
        super().__init__()
        self.score, self.refuse = score, refuse

    def forward(self, z: torch.Tensor, logits: torch.Tensor, confidence: torch.Tensor) -> torch.Tensor:
        return self.refuse(self.score(z, logits, confidence))


@pytest.mark.compiled
@pytest.mark.parametrize("kind", UNKNOWN_SCORES)
def test_a_graph_refuses_the_same_items(kind, items):
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'spaceform[export]'")
    z, logits = items[0].float(), items[2].float()
    κ = z.norm(dim=1)
    score = UNKNOWN_SCORES[kind]().fit(z, items[1], Known(z, items[1], logits, κ))
    judge = _Judge(score, Refusal(0.2).fit(score(z, logits, κ))).eval()
    batch = torch.export.Dim("batch", min=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        program = torch.export.export(
            judge,
            (z[:3].clone(), logits[:, :3].clone(), κ[:3].clone()),
            dynamic_shapes=({0: batch}, {1: batch}, {0: batch}),
            strict=False,
        )
        graph = torch.onnx.export(program, dynamo=True, input_names=["z", "l", "k"], verbose=False)
    session = onnxruntime.InferenceSession(graph.model_proto.SerializeToString())
    fed = {"z": z.numpy(), "l": logits.numpy(), "k": κ.numpy()}
    (found,) = session.run(None, {i.name: fed[i.name] for i in session.get_inputs()})
    expected = judge(z, logits, κ).numpy()
    assert (found != expected).sum() <= 1  # the item at the threshold may go either way
    assert 55 <= expected.sum() <= 61


# Wrong use


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: Refusal(0.0), "share must lie between 0 and 1, both excluded, got 0.0"),
        (lambda t: Refusal(0.05).fit(t.z[:18, 0]), "needs at least 19 held-out items, got 18"),
        (lambda t: Refusal()(t.z[:, 0]), "refusal has not been fitted"),
        (lambda t: Mahalanobis()(t.z, t.L), "mahalanobis score has not been fitted"),
        (lambda _: NearestNeighbours(k=0), "k must be at least 1, got 0"),
        (lambda t: Combined().fit(t.z, t.y), "pass held_out=Known"),
        (lambda t: NearestNeighbours().fit(t.z[:5], t.y[:5]), "need as many training items, got 5"),
        (lambda t: NearestNeighbours().fit(t.z, t.y)(t.z[:, :3], t.L), "z has dimension 3, .* fitted to 5"),
        (lambda t: OwnEvidence()(t.z, t.L), "pass head.confidence"),
        (lambda t: Energy()(t.z, t.L[:, :7]), "logits has 7 entries for 300 embeddings"),
        (lambda t: Energy()(t.z, t.L, reach=t.z[:7, 0]), "reach has 7 entries for 300 embeddings"),
        (
            lambda t: Combined().fit(t.z, t.y, Known(t.z, t.y, t.L, t.z[:, 0], t.z[:, 0]))(t.z, t.L),
            r"was fitted with reach; pass reach=net.reach\(x\)",
        ),
        (
            lambda t: choose_unknown(t.z, t.y % 3, Known(t.z, t.y % 3, t.L[..., :3], t.z[:, 0])),
            "needs at least 4 classes, got 3",
        ),
        (
            lambda t: choose_unknown(t.z, t.y, Known(t.z, 0 * t.y, t.L, t.z[:, 0])),
            "hold out items of every class",
        ),
    ],
)
def test_wrong_use_is_one_sentence(call, message, items):
    with pytest.raises(ValueError, match=message):
        call(SimpleNamespace(z=items[0], y=items[1], L=items[2]))
