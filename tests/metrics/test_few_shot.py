"""Few-shot accuracy and R-AUROC: loops over episodes, hand values, laws."""

import math

import pytest
import torch

from reference import metric_loops as loops
from spaceform.geometry import Euclidean, PoincareBall, Sphere
from spaceform.metrics import few_shot_accuracy, r_auroc, retrieval

GEOMETRIES = [Euclidean(), Sphere(), PoincareBall(0.7)]


def clusters(spread: float, classes: int = 8, each: int = 20, dim: int = 5, seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dim, generator=g, dtype=torch.float64)
    y = torch.arange(classes).repeat_interleave(each)
    return centres[y] + spread * torch.randn(len(y), dim, generator=g, dtype=torch.float64), y


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Few shots


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: g.kind)
def test_episodes_one_by_one(geometry):
    """With one shot and all items used, an episode is the accuracy of the nearest of the shots."""
    z, y = clusters(0.7, classes=3, each=4)
    found = few_shot_accuracy(z, y, geometry, ways=3, shots=1, queries=3, episodes=4000, generator=seeded())
    similarity = geometry.pairwise(z, z).tolist()
    total, episodes = 0.0, 0
    for a in range(4):  # all 64 choices of the shots
        for b in range(4):
            for c in range(4):
                shots = [a, 4 + b, 8 + c]
                asked = [i for i in range(12) if i not in shots]
                near = [max(shots, key=similarity[i].__getitem__) for i in asked]
                total += sum(y[i] == y[n] for i, n in zip(asked, near, strict=True)).item() / 9
                episodes += 1
    # Four standard errors: missed once in 16,000.
    assert found.estimate == pytest.approx(total / episodes, abs=4 * found.standard_error)
    assert found.standard_error < 0.005


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: g.kind)
def test_more_shots_help_and_chance_is_chance(geometry):
    z, y = clusters(1.0)
    one, five = (few_shot_accuracy(z, y, geometry, shots=k, episodes=400, generator=seeded()) for k in (1, 5))
    assert five.low > one.high
    assert one.low < one.estimate < one.high
    assert one.high - one.low == pytest.approx(3.92 * one.standard_error)
    collapsed = few_shot_accuracy(torch.ones_like(z), y, geometry, episodes=50, generator=seeded())
    assert collapsed.estimate == pytest.approx(0.2)
    tight = few_shot_accuracy(clusters(1e-3)[0], y, geometry, episodes=50, generator=seeded())
    assert tight.estimate == 1


def test_few_shots_repeat_and_take_numpy_and_any_labels():
    z, y = clusters(1.0)
    first = few_shot_accuracy(z, y, episodes=50, generator=seeded(3))
    again = few_shot_accuracy(z.numpy(), (7 * y - 9).numpy(), episodes=50, generator=seeded(3))
    assert first.estimate == pytest.approx(again.estimate, abs=1e-12)
    assert first.estimate != few_shot_accuracy(z, y, episodes=50, generator=seeded(4)).estimate


def test_classes_with_too_few_items_stay_out():
    z, y = clusters(1e-3)
    z = torch.cat([z, 100 * torch.randn(6, 5, generator=seeded(), dtype=torch.float64)])
    y = torch.cat([y, torch.full((6,), 99)])
    assert few_shot_accuracy(z, y, ways=8, episodes=20, generator=seeded()).estimate == 1
    with pytest.raises(
        ValueError, match=r"9 ways need 9 classes with at least 16 items .*, but 8 have as many"
    ):
        few_shot_accuracy(z, y, ways=9)
    with pytest.raises(ValueError, match="shots must be at least 1, got 0"):
        few_shot_accuracy(z, y, shots=0)
    with pytest.raises(ValueError, match="ways must be at least 2, got 1"):
        few_shot_accuracy(z, y, ways=1)


# R-AUROC


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: g.kind)
def test_r_auroc_is_the_auroc_of_the_nearest_neighbours_class(geometry):
    z, y = clusters(1.0)
    z, y = torch.cat([z, z[:1] + 9]), torch.cat([y, torch.tensor([50])])  # the last class has one member
    κ = torch.rand(len(y), generator=seeded())
    similarity, right = geometry.pairwise(z, z).tolist(), []
    for i in range(len(y) - 1):
        others = [j for j in range(len(y)) if j != i]
        nearest = max(others, key=similarity[i].__getitem__)
        right.append(bool(y[nearest] == y[i]))
    expected = loops.auroc(κ[:-1].tolist(), right)
    assert r_auroc(κ, retrieval(z, y, geometry)).item() == pytest.approx(expected, abs=1e-12)
    assert 0.3 < expected < 0.7


def test_a_confidence_that_knows_has_an_r_auroc_of_one():
    z, y = clusters(1.0)
    found = retrieval(z, y)
    assert r_auroc((found.first_rank <= 1).double(), found).item() == 1
    assert r_auroc(-found.first_rank.clamp_max(99), found).item() == 1
    assert r_auroc(torch.ones(len(y)), found).item() == 0.5
    assert math.isnan(r_auroc(torch.ones(len(y)), retrieval(clusters(1e-3)[0], y)).item())
    with pytest.raises(ValueError, match="confidence has 3 entries for 160 queries"):
        r_auroc(torch.ones(3), found)
    with pytest.raises(ValueError, match="no query has a relevant item"):
        r_auroc(torch.ones(3), retrieval(z[:3], torch.arange(3)))
