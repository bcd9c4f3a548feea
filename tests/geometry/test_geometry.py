"""Similarities: larger for closer, exact for near neighbours, ordered the same by one gemm."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import config

from spaceform.geometry import Euclidean, Geometry, Hyperboloid, PoincareBall, Sphere
from spaceform.geometry.hyperbolic import MARGIN

GEOMETRIES = [Euclidean(), Sphere(), PoincareBall(1e-5), PoincareBall(0.1), PoincareBall(3.0)]
GEOMETRIES += [Hyperboloid(0.1), Hyperboloid(3.0, clip=2.0), PoincareBall(0.1, clip=0.5)]


def embeddings(n: int, dim: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, dim, generator=g, dtype=torch.float64).mul(0.7).to(dtype)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 12), st.floats(1e-3, 1e3))
def test_pairwise_is_similarity_of_every_pair(geometry: Geometry, n: int, m: int, dim: int, size: float):
    z, z2 = size * embeddings(n, dim), size * embeddings(m, dim, 1)
    torch.testing.assert_close(
        geometry.pairwise(z, z2), geometry.similarity(z[:, None], z2[None]), rtol=1e-11, atol=1e-14
    )


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 30), st.integers(2, 12), st.floats(1e-3, 1e3), st.integers(0, 1000))
def test_ranking_orders_like_pairwise(geometry: Geometry, n: int, dim: int, size: float, seed: int):
    z, z2 = size * embeddings(n, dim, seed), size * embeddings(40, dim, seed + 1)
    scores = geometry.ranking(z).scores(geometry.ranking(z2))
    similarity = geometry.pairwise(z, z2)
    ordered = similarity.gather(1, scores.argsort(1))
    # A pair may swap where the gemm cannot tell it apart, and nowhere else.
    tie = 1e-9 * similarity.abs().amax(1, keepdim=True)
    assert (ordered.diff(dim=1) >= -tie).all()


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_ranking_in_float32_keeps_the_order_of_real_neighbours(geometry: Geometry):
    z = embeddings(300, 32)
    exact = geometry.pairwise(z, z)
    prepared = geometry.ranking(z.float())
    ordered = exact.gather(1, prepared.scores(prepared).argsort(1))
    inversions = (ordered.cummax(1).values - ordered).amax()
    assert inversions <= 2e-5 * exact.abs().amax()


def test_ranking_can_be_sliced_into_blocks():
    prepared = PoincareBall(0.1).ranking(embeddings(10, 3))
    whole = prepared.scores(prepared)
    assert len(prepared[2:5]) == 3
    torch.testing.assert_close(prepared[2:5].scores(prepared[torch.tensor([9, 0])]), whole[2:5][:, [9, 0]])


def test_what_the_scores_are():
    z = embeddings(20, 4)
    flat, round_, ball = Euclidean().ranking(z), Sphere().ranking(z), PoincareBall(0.5).ranking(z)
    half = z.square().sum(-1, keepdim=True) / 2
    torch.testing.assert_close(flat.scores(flat), half - torch.cdist(z, z).square() / 2)
    torch.testing.assert_close(round_.scores(round_), Sphere().pairwise(z, z))
    d = -PoincareBall(0.5).pairwise(z, z) * math.sqrt(0.5)
    r = math.sqrt(0.5) * z.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(ball.scores(ball), 1 - torch.cosh(d) / torch.cosh(2 * r))


def test_hand_values():
    z, z2 = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.0], [6.0, 8.0], [-3.0, -4.0]])
    torch.testing.assert_close(Euclidean().pairwise(z, z2), torch.tensor([[-5.0, -5.0, -10.0]]))
    torch.testing.assert_close(Sphere().pairwise(z, z2), torch.tensor([[0.0, 1.0, -1.0]]))
    # A tangent vector at 0 is half as long as the geodesic it starts, and stays inside the projection radius.
    near = PoincareBall(0.01).pairwise(z, torch.zeros(1, 2))
    torch.testing.assert_close(near, torch.tensor([[-10.0]]))
    far = PoincareBall(1.0).pairwise(1e6 * z, torch.zeros(1, 2))
    torch.testing.assert_close(far, torch.tensor([[-2 * math.atanh(1 - MARGIN)]]), rtol=1e-4, atol=0)


def test_poincare_tends_to_twice_euclidean():
    z, z2 = embeddings(6, 5), embeddings(7, 5, 1)
    torch.testing.assert_close(
        PoincareBall(1e-13).pairwise(z, z2), 2 * Euclidean().pairwise(z, z2), rtol=1e-9, atol=0
    )


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_similarity_is_largest_with_itself_and_invariant_to_rotation(geometry: Geometry):
    z = embeddings(30, 6)
    q = torch.linalg.qr(embeddings(6, 6, 2)).Q
    s = geometry.pairwise(z, z)
    assert (s.diag() >= s.amax(1) - 1e-14).all()
    torch.testing.assert_close(geometry.pairwise(z @ q, z @ q), s, rtol=1e-11, atol=1e-7)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e15])
def test_extreme_embeddings_give_finite_values_and_gradients(geometry: Geometry, size: float):
    z = (size * embeddings(5, 3, dtype=torch.float32)).requires_grad_()
    for value in (geometry.pairwise(z, z), geometry.similarity(z, z.detach().flip(0))):
        assert value.isfinite().all()
        assert torch.autograd.grad(value.sum(), z, retain_graph=True)[0].isfinite().all()
    prepared = geometry.ranking(z.detach())
    assert prepared.scores(prepared).isfinite().all()


def test_geometries_are_frozen_values():
    assert PoincareBall(0.1) == PoincareBall(0.1) != PoincareBall(0.2)
    assert len({Sphere(), Sphere(), Euclidean()}) == 2
    assert repr(PoincareBall(0.1)) == "PoincareBall(curvature=0.1, clip=None)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        PoincareBall(0.1).curvature = 1.0
    with pytest.raises(ValueError, match=r"curvature must be a positive finite number, got -1\.0"):
        PoincareBall(-1.0)


@pytest.mark.parametrize("geometry", GEOMETRIES[:3], ids=str)
def test_embeddings_that_cannot_be_compared_are_one_sentence(geometry: Geometry):
    config.update("jaxtyping_disable", True)
    z = embeddings(3, 4)
    for wrong, error, said in (
        (z[:, :3], ValueError, "z and z2 must have one dimension, got 4 and 3; embed both by one net"),
        (z.numpy(), TypeError, "z2 must be a tensor, got ndarray; pass torch.as_tensor(z2)"),
        (z.long(), TypeError, "z2 must be floating point, got torch.int64; pass z2.float()"),
    ):
        for compare in (geometry.pairwise, geometry.similarity):
            with pytest.raises(error) as told:
                compare(z, wrong)
            assert str(told.value) == said
    with pytest.raises(ValueError, match=r"z2 must have shape \(items, dim\), got \(4,\)"):
        geometry.pairwise(z, z[0])
    assert geometry.pairwise(z, z.float()).dtype == torch.float64


def test_every_geometry_says_what_it_is():
    assert [(g.kind, g.title) for g in (Euclidean(), PoincareBall(1.0), Sphere())] == [
        ("euclidean", "Euclidean space"),
        ("hyperbolic", "Poincaré ball"),
        ("spherical", "unit sphere"),
    ]


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_the_midpoint_of_two_is_half_way(geometry):
    g = torch.Generator().manual_seed(0)
    z = torch.randn(50, 2, 4, generator=g, dtype=torch.float64)
    middle = geometry.midpoint(z)
    first, second, whole = (
        geometry.similarity(a, b) for a, b in ((middle, z[:, 0]), (middle, z[:, 1]), (z[:, 0], z[:, 1]))
    )
    torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-12)
    half = torch.cos(torch.acos(whole) / 2) if geometry.kind == "spherical" else whole / 2
    torch.testing.assert_close(first, half, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_the_midpoint_turns_with_its_points_and_knows_no_order(geometry):
    g = torch.Generator().manual_seed(1)
    z = torch.randn(3, 7, 4, generator=g, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=g, dtype=torch.float64)).Q
    middle = geometry.midpoint(z)
    torch.testing.assert_close(geometry.midpoint(z @ turn), middle @ turn)
    torch.testing.assert_close(geometry.midpoint(z.flip(1)), middle)
    torch.testing.assert_close(geometry.midpoint(z.float()), middle.float(), rtol=1e-5, atol=1e-6)
    same = geometry.midpoint(z[:, :1].expand(-1, 5, -1))
    at_its_place = torch.ones(3).double() if geometry.kind == "spherical" else torch.zeros(3).double()
    torch.testing.assert_close(geometry.similarity(same, z[:, 0]), at_its_place, rtol=0, atol=1e-7)
    assert geometry.midpoint(torch.zeros(2, 3)).tolist() == [0, 0, 0]
    assert geometry.midpoint(torch.full((2, 3), 1e4)).isfinite().all()
