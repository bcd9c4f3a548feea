"""The combined score, by its definition, by classes that are left out, and by what it finds."""

import math

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS

from clusters import CLASSES, DIM, clusters
from spaceform.decisions import Combined, Known, _relative, unknown_combined
from spaceform.geometry.base import direction
from spaceform.metrics import ood_auroc


def rotated(dim: int, items) -> torch.Tensor:
    """The items, turned in a space of higher dimension, with noise in all directions."""
    turn = torch.linalg.qr(torch.randn(dim, dim, generator=torch.Generator().manual_seed(2)).double())[0]
    noise = torch.randn(300, dim, generator=torch.Generator().manual_seed(3)).double()
    return torch.cat([items[0], torch.zeros(300, dim - DIM).double()], 1) @ turn + 0.1 * noise


def nearer_to_a_class(x: np.ndarray, own: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The relative distance of Ren et al., by the inverse of both covariances."""
    mean = own.mean(0)
    means = np.stack([own[y == j].mean(0) for j in np.unique(y)])
    shares = np.array([(y == j).mean() for j in np.unique(y)])
    within = OAS(assume_centered=True).fit(own - means[np.searchsorted(np.unique(y), y)]).covariance_
    both = within + (means - mean).T * shares @ (means - mean)
    far = np.einsum("ik,kl,il->i", x - mean, np.linalg.inv(both), x - mean)
    away = x[:, None] - means
    return far - np.einsum("ijk,kl,ijl->ij", away, np.linalg.inv(within), away).min(1)


def near_the_items(x: np.ndarray, own: np.ndarray, V: np.ndarray, rest: float) -> np.ndarray:
    """Minus the distance along the principal directions V and, by its length, outside of them."""
    u, mean = (own - own.mean(0)) @ V, own.mean(0)
    Σ = OAS(assume_centered=True).fit(u).covariance_
    v = (x - mean) @ V
    outside = ((x - mean) ** 2).sum(1) - (v**2).sum(1)
    return -np.einsum("ik,kl,il->i", v, np.linalg.inv(Σ), v) - outside / rest


def near_a_class(x: np.ndarray, own: np.ndarray, y: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Minus the squared distance to the nearest class mean; means are known along V."""
    mean = own.mean(0)
    means = np.stack([own[y == j].mean(0) for j in np.unique(y)]) - mean
    away = (x - mean)[:, None] - means @ V @ V.T
    return -(away**2).sum(-1).min(1)


def spreads(answers: np.ndarray, held: np.ndarray) -> np.ndarray:
    centre, low = np.quantile(held, [0.5, 0.05], axis=0)
    return (answers - centre) / ((centre - low) / 1.645)


@pytest.mark.parametrize("dim", [5, 60])
def test_the_combined_score_by_its_definition(dim, items):
    """150 items allow 37 principal directions; what lies outside counts by its length."""
    z, y, logits = rotated(dim, items), items[1], items[2]
    held = Known(z[150:225], y[150:225], logits[:, 150:225], z[150:225].norm(dim=1))
    score = Combined().fit(z[:150], y[:150], held)
    found = score(z[225:], logits[:, 225:])

    x, labels = direction(z).numpy(), y[:150].numpy()
    own = x[:150]
    λ, V = np.linalg.eigh(np.cov(own.T, bias=True))
    V, rest = V[:, -37:], λ[:-37].mean() if dim > 37 else np.inf
    p = logits.softmax(-1).mean(0).numpy()
    answers = np.stack(
        [
            near_the_items(x, own, V, rest),
            nearer_to_a_class(x, own, labels),
            (p * np.log(p)).sum(1),
            near_a_class(x, own, labels, V),
        ],
        1,
    )
    scaled = spreads(answers, answers[150:225])
    norm = z.norm(dim=1).numpy()
    beyond = np.log2(np.maximum(norm / (2 * norm[:150].max()), 1))
    expected = scaled @ score.weight.numpy() + 5 * np.minimum(scaled[:, 0] + 2, 0) - 20 * beyond
    np.testing.assert_allclose(found, expected[225:], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dim", [5, 60])
def test_an_answer_weighs_as_much_as_it_tells_of_classes_left_out(dim, items):
    """Six classes in five folds, each taken out by hand."""
    z, y, logits = rotated(dim, items), items[1], items[2]
    held = Known(z[150:], y[150:], logits[:, 150:], z[150:].norm(dim=1))
    score = Combined().fit(z[:150], y[:150], held)
    x, labels = direction(z).numpy(), y.numpy()
    λ, V = np.linalg.eigh(np.cov(x[:150].T, bias=True))
    V, rest = V[:, -37:], λ[:-37].mean() if dim > 37 else np.inf
    log_p = logits.softmax(-1).mean(0).log()
    order = torch.randperm(CLASSES, generator=torch.Generator().manual_seed(0)).numpy()
    whole, within = x[:150], x[:150].copy()
    for j in range(CLASSES):
        within[labels[:150] == j] -= whole[labels[:150] == j].mean(0)
    Σ = np.linalg.inv(OAS(assume_centered=True).fit(within).covariance_)
    told = []
    for fold in range(5):
        out = np.isin(labels, order[np.arange(CLASSES) % 5 == fold])
        own, of = whole[~out[:150]], labels[:150][~out[:150]]
        kept = np.unique(of)
        means = np.stack([own[of == j].mean(0) for j in kept])
        mean = own.mean(0)
        both = np.linalg.inv(np.linalg.inv(Σ) + (means - mean).T / len(kept) @ (means - mean))
        away = x[150:, None] - means
        far = np.einsum("ik,kl,il->i", x[150:] - mean, both, x[150:] - mean)
        nearer = far - np.einsum("ijk,kl,ijl->ij", away, Σ, away).min(1)
        q = torch.log_softmax(log_p[150:, kept], -1)
        shift = (x[150:] - whole.mean(0))[:, None] - (means - whole.mean(0)) @ V @ V.T
        u, v = (own - mean) @ V, (x[150:] - mean) @ V
        near = np.einsum("ik,kl,il->i", v, np.linalg.inv(OAS(assume_centered=True).fit(u).covariance_), v)
        centred = x[150:] - whole.mean(0)
        near += ((centred**2).sum(1) - ((centred @ V) ** 2).sum(1)) / rest
        answers = np.stack([-near, nearer, (q.exp() * q).sum(1).numpy(), -(shift**2).sum(-1).min(1)], 1)
        told.append(spreads(answers, answers[~out[150:]])[out[150:]])
    weight = np.clip(-np.median(np.concatenate(told), 0), 0, [30, 3, 3, 3]) * [1, 1, 0.5, 0.5]
    np.testing.assert_allclose(score.weight, 3 * weight / weight.sum(), rtol=1e-6, atol=1e-8)


def test_without_held_out_items_to_speak_of_all_answers_weigh_the_same(items):
    z, y, logits = items
    few = Known(z[150:160], y[150:160], logits[:, 150:160], z[150:160, 0])
    assert Combined().fit(z[:150], y[:150], few).weight.tolist() == [0.75] * 4
    two = Known(z[150:], y[150:] % 2, logits[:, 150:], z[150:, 0])
    assert Combined().fit(z[:150], y[:150] % 2, two).weight.tolist() == [0.75] * 4
    one = Known(z[150:], 0 * y[150:], logits[:, 150:], z[150:, 0])
    assert bool(Combined().fit(z[:150], 0 * y[:150], one)(z, logits).isfinite().all())


@pytest.mark.parametrize("widest", [2048, 550])
def test_wide_embeddings_have_nearly_the_score_that_all_directions_give(widest, items, monkeypatch):
    """Beyond 512 dimensions directions are iterated, beyond `_WIDEST` items are projected first."""
    g, dim = torch.Generator().manual_seed(5), 600
    lift = torch.randn(DIM, dim, generator=g) / dim**0.5
    z = items[0].float() @ lift + 0.02 * torch.randn(300, dim, generator=g) / dim**0.5
    y, logits = items[1], items[2].float()
    held = Known(z[150:], y[150:], logits[:, 150:], z[150:].norm(dim=1))
    monkeypatch.setattr(unknown_combined, "_WIDEST", widest)
    found = Combined().fit(z[:150], y[:150], held)(z, logits)
    for module, name in ((unknown_combined, "_WIDEST"), (unknown_combined, "_DOUBLE"), (_relative, "_EXACT")):
        monkeypatch.setattr(module, name, 4096)
    exact = Combined().fit(z[:150], y[:150], held)(z, logits)
    assert np.corrcoef(found, exact)[0, 1] > 0.98


@pytest.mark.parametrize("factor", [1.9, 4.0, 1e3, 1e30])
def test_an_item_loses_by_each_doubling_of_norm_and_reach_but_the_first(factor, items):
    z, y, logits = items
    reach = torch.linspace(0, 4, 300, dtype=torch.float64)
    score = Combined().fit(
        z[:150], y[:150], Known(z[150:], y[150:], logits[:, 150:], z[150:, 0], reach[150:])
    )
    i = int(z[:150].norm(dim=1).argmax())
    longest, said = z[i : i + 1], logits[:, i : i + 1]
    plain = score(longest, said, reach=reach[-1:]).item()
    assert score(longest, said, reach=reach[:1]).item() == plain
    lost = 20 * max(0, math.log2(factor / 2))
    assert score(factor * longest, said, reach=reach[-1:]).item() == pytest.approx(plain - lost)
    assert score(longest, said, reach=factor * reach[-1:]).item() == pytest.approx(plain - lost)
    narrow = score(1e30 * longest.float(), said.float(), reach=1e30 * reach[-1:].float())
    assert bool(narrow.isfinite())


def test_the_reach_of_other_models_is_taken_with_their_weights(items):
    z, y, logits = items
    said = [Known(z, y, logits, z[:, 0], torch.full((300,), far)) for far in (3.0, 5.0)]
    others = [Combined().fit(z, y, held) for held in said]
    assert Combined().fit(z, y, Known(z, y, logits, z[:, 0])).weigh_as(others).farthest.item() == 5


def test_items_of_three_unknown_kinds_are_found():
    """Far from everything, far from every class, and between two classes."""
    z, y = clusters(600, spread=0.1)
    own = clusters(300, 1, spread=0.1)
    head = torch.eye(CLASSES, DIM, dtype=torch.float64)
    head[-1] = -1 / math.sqrt(DIM)
    said = Known(own[0], own[1], 4 * own[0] @ head.T, own[0].norm(dim=1))
    score = Combined().fit(z, y, said)
    fresh = clusters(300, 2, spread=0.1)[0]
    between = torch.roll(fresh, 1, 0) + fresh  # neighbours are of different classes
    s = [score(x, 4 * x @ head.T) for x in (fresh, between, -fresh)]
    assert ood_auroc(s[0], s[1]).item() > 0.95
    assert ood_auroc(s[0], s[2]).item() > 0.95


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (lambda z, y, L: Known(z[:, :3], y, L, z[:, 0]), "z has dimension 3, .* fitted to 5"),
        (lambda z, y, L: Known(z, y[:7], L, z[:, 0]), "held_out.y has 7 entries for 300"),
        (lambda z, y, L: Known(z, y, L[:, :7], z[:, 0]), "held_out.logits has 7 entries for 300 embeddings"),
        (lambda z, y, L: Known(z, y % 2, L[..., :2], z[:, 0]), "have 2 classes, but y has the label 5"),
        (lambda z, y, L: Known(z, y + 9, L, z[:, 0]), r"held_out.y must lie in 0\.\.5, got 14"),
        (lambda z, y, L: Known(z[:0], y[:0], L[:, :0], z[:0, 0]), "held_out.z is empty"),
    ],
)
def test_held_out_items_that_do_not_fit_are_told_in_one_sentence(held, message, items):
    z, y, logits = items
    with pytest.raises(ValueError, match=message) as error:
        Combined().fit(z, y, held(z, y, logits))
    assert "\n" not in str(error.value)
