import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import config

from reference import metric_loops as loops
from spaceform.geometry import Euclidean, PoincareBall, Sphere
from spaceform.metrics import expected_retrieval, map_at_r, retrieval

GEOMETRIES = [Euclidean(), Sphere(), PoincareBall(1.0)]
K = (1, 2, 10, 1000)


def clusters(n: int, classes: int, dim: int = 8, spread: float = 1.0, seed: int = 0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    centres = torch.randn(classes, dim, generator=g, dtype=torch.float64)
    return centres[y] + spread * torch.randn(n, dim, generator=g, dtype=torch.float64), y


def slow(z, y, geometry, queries=None, worst=True):
    zq, yq = (z, y) if queries is None else queries
    s = geometry.pairwise(zq, z).tolist()
    return loops.retrieval(lambda q, g: s[q][g], y.tolist(), yq.tolist(), queries is None, K, worst)


def agree(found, expected, tolerance=1e-12):
    assert found.map_at_r == pytest.approx(expected[0], abs=tolerance)
    assert found.r_precision == pytest.approx(expected[1], abs=tolerance)
    assert found.recall == pytest.approx(expected[2], abs=tolerance)
    assert found.precision_at_1 == pytest.approx(expected[2][1], abs=tolerance)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: type(g).__name__)
@pytest.mark.parametrize(("n", "classes"), [(3, 2), (60, 4), (150, 40), (150, 2), (90, 1), (300, 150)])
@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_agrees_with_loops(geometry, n, classes, spread):
    z, y = clusters(n, classes, spread=spread)
    agree(retrieval(z, y, geometry, k=K), slow(z, y, geometry))
    asked = clusters(40, classes + 2, spread=spread, seed=1)  # some classes are missing in the gallery
    agree(retrieval(z, y, geometry, asked, K), slow(z, y, geometry, asked))


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: type(g).__name__)
def test_larger_galleries_agree_with_a_full_sort(geometry):
    """Long enough for groups of items, several blocks and ragged R; checked by sorting every row."""
    g = torch.Generator().manual_seed(3)
    y = torch.cat([torch.full((r,), i) for i, r in enumerate([1, 2, 3, 5, 8, 40, 200, 500] + [4] * 300)])
    y = y[torch.randperm(len(y), generator=g)]
    z = (
        torch.randn(308, 16, generator=g, dtype=torch.float64)[y]
        + torch.randn(len(y), 16, generator=g).double()
    )
    found = retrieval(z, y, geometry, k=(1, 5, 300))
    s = geometry.pairwise(z, z).fill_diagonal_(-torch.inf)
    right = y[s.argsort(1, descending=True)[:, :-1]] == y[:, None]
    R = torch.bincount(y)[y] - 1
    place = torch.arange(1, len(y))
    hit = right & (place <= R[:, None])
    ap = (hit * right.cumsum(1) / place).sum(1) / R
    torch.testing.assert_close(found.average_precision, ap.double(), equal_nan=True, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.precision, (hit.sum(1) / R).double(), equal_nan=True, rtol=0, atol=1e-6)
    first = right.double().argmax(1) + 1.0
    known = R > 0
    assert torch.equal(found.first_rank[known], first.double()[known])
    assert bool(found.first_rank[~known].isnan().all())
    for k in (1, 5, 300):
        assert found.recall[k] == pytest.approx((first[known] <= k).double().mean().item())


@pytest.mark.slow
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: type(g).__name__)
def test_results_do_not_depend_on_the_block_size(geometry, monkeypatch):
    module = sys.modules["spaceform.metrics.retrieval"]
    z, y = clusters(500, 30, dim=16, spread=2.0)
    whole = retrieval(z, y, geometry)
    for block, tile, kept in (
        (1, 512, 0),
        (3 * 500, 512, 0),
        (1 << 20, 512, 0),
        (1, 7, 1 << 30),
        (1, 160, 1 << 30),
    ):
        monkeypatch.setattr(module, "_STRIP_SCORES", block)
        monkeypatch.setattr(module, "_TILE", tile)
        monkeypatch.setattr(module, "_WAITING_BYTES", kept)
        parts = retrieval(z, y, geometry)
        assert parts.recall == whole.recall
        for name in ("average_precision", "precision", "first_rank"):
            assert torch.equal(getattr(parts, name), getattr(whole, name))


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 40), st.integers(1, 6), st.integers(0, 99), st.sampled_from(GEOMETRIES[:2]))
def test_laws(n, classes, seed, geometry):
    """Order is irrelevant, with ties too; 0 ≤ mAP@R ≤ R-precision ≤ 1; Recall@k grows with k."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    z = torch.randint(3, (n, 3), generator=g).double() + 1  # many exact ties
    found = retrieval(z, y, geometry, k=K)
    if int(torch.bincount(y).max()) < 2:
        assert math.isnan(found.map_at_r)
        return
    assert 0 <= found.map_at_r <= found.r_precision <= 1
    recalls = [found.recall[k] for k in K]
    assert recalls == sorted(recalls)
    shuffle = torch.randperm(n, generator=g)
    again = retrieval(z[shuffle], y[shuffle], geometry, k=K)
    torch.testing.assert_close(again.average_precision, found.average_precision[shuffle], equal_nan=True)
    torch.testing.assert_close(again.first_rank, found.first_rank[shuffle], equal_nan=True)
    relabelled = retrieval(z, 7 - 3 * y, geometry, k=K)
    assert relabelled.map_at_r == found.map_at_r
    if isinstance(geometry, Euclidean):
        agree(found, slow(z, y, geometry))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: type(g).__name__)
def test_a_collapsed_embedding_scores_nothing(geometry, dtype):
    g = torch.Generator().manual_seed(0)
    z = torch.randn(1, 64, generator=g, dtype=dtype).expand(400, 64)
    found = retrieval(z, torch.arange(400) % 10, geometry)
    assert found.map_at_r == found.r_precision == found.precision_at_1 == 0
    assert found.recall[1000] == 1
    assert bool((found.first_rank == 1 + 360).all())


def test_perfect_wrong_and_single_class():
    z = torch.eye(4).repeat_interleave(5, 0)
    y = torch.arange(4).repeat_interleave(5)
    assert map_at_r(z, y) == 1
    assert map_at_r(z, torch.zeros(20).long()) == 1
    assert map_at_r(z, torch.arange(20) % 5) == 0
    labels = torch.tensor([2**62, -5] * 10)  # integers stay integers
    assert map_at_r(torch.eye(2).repeat(10, 1), labels) == 1


def test_classes_of_one_and_absent_classes_are_left_out():
    z = torch.tensor([[0.0], [0.1], [5.0]])
    found = retrieval(z, torch.tensor([0, 0, 1]), Euclidean())
    assert found.average_precision.isnan().tolist() == [False, False, True]
    assert found.map_at_r == 1
    asked = (torch.tensor([[0.0], [5.0]]), torch.tensor([7, 1]))
    found = retrieval(z, torch.tensor([0, 0, 1]), Euclidean(), asked)
    assert found.average_precision.isnan().tolist() == [True, False]
    assert found.map_at_r == 1
    assert math.isnan(map_at_r(z, torch.arange(3), Euclidean()))


def test_expected_retrieval_is_the_mean_over_draws():
    z, y = clusters(80, 8, spread=1.5)
    g = torch.Generator().manual_seed(1)
    draws = z + 0.5 * torch.randn(4, *z.shape, generator=g, dtype=z.dtype)
    each = [retrieval(d, y) for d in draws]
    found = expected_retrieval(draws, y)
    assert found.map_at_r == pytest.approx(sum(r.map_at_r for r in each) / 4)
    assert found.recall[10] == pytest.approx(sum(r.recall[10] for r in each) / 4)
    lazily = expected_retrieval((d.numpy() for d in draws), y.numpy())
    assert torch.equal(lazily.average_precision, found.average_precision)
    with pytest.raises(ValueError, match="samples is empty"):
        expected_retrieval([], y)


PEAK = """
import torch
from spaceform.metrics import retrieval
def peak():  # of this program alone: ru_maxrss also remembers the process that started it
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
torch.set_num_threads(1)
for n in (29_000, 32_000):
    y = torch.arange(n) // 8
    z = torch.randn(n // 8 + 1, 4)[y] + 0.1 * torch.randn(n, 4)
    retrieval(z[:100], y[:100])
    before = peak()
    retrieval(z, y)
    print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the peak from /proc, which is Linux's")
def test_memory_stays_small():
    """The matrix of similarities would need 3.4 GB and more; the first size still uses its symmetry."""
    run = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    kibibytes = [int(line) for line in run.stdout.split()]
    assert kibibytes[0] > 2**19  # it was measured: a quarter of the matrix was held
    assert max(kibibytes) < 2**20


def test_bad_input_is_one_clear_sentence():
    z, y = clusters(10, 2)
    for wrong, message in (
        (lambda: retrieval(z, y[:9]), "y has 9 entries for 10 examples"),
        (lambda: retrieval(z[:0], y[:0]), "z is empty"),
        (lambda: retrieval(z.where(z != z.max(), torch.nan), y), "z must be finite"),
        (lambda: retrieval(z, y, k=(0,)), "k must be positive integers"),
        (lambda: retrieval(z, y, k=()), "k must be positive integers"),
        (lambda: retrieval(z, y, queries=(z[:, :3], y)), "queries have dimension 3, the gallery 8"),
        (lambda: retrieval(z[0], y), "z must have 2 axes"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            wrong()
        assert "\n" not in str(error.value)
    config.update("jaxtyping_disable", True)
    for geometry in ("sphere", Sphere):
        with pytest.raises(TypeError, match=r"geometry must be Sphere\(\), .* got .*phere"):
            retrieval(z, y, geometry)
    with pytest.raises(TypeError, match="y must hold integer labels"):
        retrieval(z, y.double())
