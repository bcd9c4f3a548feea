"""Projections keep what they say they keep."""

import numpy as np
import pytest
import torch

from spaceform.geometry import poincare
from spaceform.report.projection import project


@pytest.fixture
def z() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(200, 12)).astype(np.float32) * np.linspace(3, 0.1, 12)


@pytest.mark.parametrize("head", ["standard", "hyperbolic", "cosine", "vmf"])
def test_three_dimensions_are_left_alone(z, head) -> None:
    assert np.array_equal(project(z[:, :3], head).points, z[:, :3].astype(np.float64))


@pytest.mark.parametrize("head", ["hyperbolic", "cosine"])
def test_lengths_survive(z, head) -> None:
    found = project(z, head)
    assert np.allclose(np.linalg.norm(found.points, axis=1), np.linalg.norm(z, axis=1))


def test_spherical_points_lie_on_the_sphere_and_keep_close_directions_close(z) -> None:
    flat = np.zeros((200, 12))
    flat[:, 4:7] = z[:, :3]  # three dimensions in disguise: nothing may be lost
    found = project(flat, "arcface")
    assert np.allclose(np.linalg.norm(found.in_space, axis=1), 1)
    d = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    assert np.allclose(found.in_space @ found.in_space.T, d @ d.T, atol=1e-9)
    assert "100% of their squared length" in found.how


def test_hyperbolic_points_keep_their_distance_from_the_origin(z) -> None:
    c = 0.05
    found = project(z, "hyperbolic", c)
    ball = torch.from_numpy(found.in_space)
    assert torch.allclose(
        poincare.distance(ball, torch.zeros_like(ball), c), 2 * torch.from_numpy(np.linalg.norm(z, axis=1))
    )


def test_euclidean_is_the_best_linear_picture(z) -> None:
    found = project(z, "standard")
    centred = z - z.mean(0, dtype=np.float64)
    kept = np.linalg.svd(centred, compute_uv=False)[:3]
    assert np.allclose(np.linalg.norm(found.points, axis=0), kept)
    assert np.array_equal(found.points, project(z, "standard").points)


def test_fewer_dimensions_and_zeros_are_no_trouble() -> None:
    assert project(np.ones((4, 2), np.float32), "cosine").points.shape == (4, 3)
    found = project(np.zeros((4, 5), np.float32), "hyperbolic")
    assert np.array_equal(found.in_space, np.zeros((4, 3)))
