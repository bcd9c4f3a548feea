"""Layouts keep what they say they keep."""

import numpy as np
import pytest
import torch

from spaceform.geometry import Euclidean, PoincareBall, Sphere
from spaceform.geometry.hyperbolic import distance
from spaceform.report.layout import lay_out


@pytest.fixture
def z() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(200, 12)).astype(np.float32) * np.linspace(3, 0.1, 12)


@pytest.mark.parametrize("geometry", [Euclidean(), PoincareBall(1.0), Sphere(), None])
def test_three_dimensions_are_left_alone(z, geometry) -> None:
    assert np.array_equal(lay_out(z[:, :3], geometry).points, z[:, :3].astype(np.float64))


@pytest.mark.parametrize("geometry", [PoincareBall(1.0), Sphere()])
def test_lengths_survive(z, geometry) -> None:
    found = lay_out(z, geometry)
    assert np.allclose(np.linalg.norm(found.points, axis=1), np.linalg.norm(z, axis=1))


def test_close_directions_stay_close_on_the_sphere(z) -> None:
    flat = np.zeros((200, 12))
    flat[:, 4:7] = z[:, :3]  # three dimensions in disguise: nothing may be lost
    found = lay_out(flat, Sphere())
    d, e = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (flat, found.points))
    assert np.allclose(e @ e.T, d @ d.T, atol=1e-9)
    assert "100% of their squared length" in found.how


def test_hyperbolic_points_keep_their_distance_from_the_origin(z) -> None:
    geometry = PoincareBall(0.05)
    ball = geometry.point(torch.from_numpy(lay_out(z, geometry).points))
    origin = torch.zeros_like(ball)
    assert torch.allclose(distance(ball, origin, 0.05), 2 * torch.from_numpy(np.linalg.norm(z, axis=1)))


@pytest.mark.parametrize("geometry", [Euclidean(), None])
@pytest.mark.parametrize("dim", [12, 300])
def test_euclidean_is_the_best_linear_picture(z, dim, geometry) -> None:
    z = z @ np.linalg.qr(np.random.default_rng(1).normal(size=(dim, 12)))[0].T if dim > 12 else z
    found = lay_out(z, geometry)
    centred = z - z.mean(0, dtype=np.float64)
    kept = np.linalg.svd(centred, compute_uv=False)[:3]
    assert np.allclose(np.linalg.norm(found.points, axis=0), kept)
    assert np.array_equal(found.points, lay_out(z, geometry).points)


def test_fewer_dimensions_and_zeros_are_no_trouble() -> None:
    assert lay_out(np.ones((4, 2), np.float32), Sphere()).points.shape == (4, 3)
    found = lay_out(np.zeros((4, 5), np.float32), PoincareBall(1.0))
    assert np.array_equal(found.points, np.zeros((4, 3)))
