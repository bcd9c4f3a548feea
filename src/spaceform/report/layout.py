"""Embeddings in three dimensions, laid out as suits their geometry."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

from spaceform.geometry import Geometry

_SMALL = 64
"""Up to this many dimensions, to find all eigenvectors is as fast as to find three."""


@final
@dataclass(frozen=True, eq=False)
class Layout:
    """Three coordinates of each embedding, and how they were found."""

    points: Float[np.ndarray, "items 3"]
    how: str


def lay_out(z: NDArray[np.floating[Any]], geometry: Geometry | None) -> Layout:
    """Three coordinates of each embedding, as it is before it enters its space.

    Spherical: the three principal axes of the directions z/‖z‖ about the origin, re-normalised to the sphere,
    times ‖z‖. Hyperbolic: z is the logarithm at the origin of its point in the ball. It is projected on the
    principal axes about the origin and then gets its own length back, so distances from the origin are exact.
    Otherwise: principal components. Three dimensions stay as they are; one or two are filled up with zeros.
    """
    z = np.nan_to_num(z.astype(np.float64), copy=False)
    n = z.shape[1]
    if n == 3:
        return Layout(z, "The three coordinates that the net emits")
    if n < 3:
        return Layout(np.pad(z, ((0, 0), (0, 3 - n))), f"All coordinates that the net emits ({n})")
    length = np.linalg.norm(z, axis=1, keepdims=True)
    match geometry.kind if geometry else "":
        case "spherical":
            points, kept = _principal(_directions(z))
            return Layout(
                _directions(points) * length,
                f"Principal axes of the directions in {n} dimensions ({kept:.0%} of their squared length), "
                "brought back to the sphere; the radius is ‖z‖",
            )
        case "hyperbolic":
            points, kept = _principal(z)
            return Layout(
                _directions(points) * length,
                f"Logarithm at the origin, then principal axes of its {n} dimensions ({kept:.0%} of the "
                "squared length); distances from the origin are exact",
            )
        case _:
            points, kept = _principal(z - z.mean(0))
            return Layout(points, f"Principal components of {n} dimensions ({kept:.0%} of the variance)")


def _principal(z: Float[np.ndarray, "items dim"]) -> tuple[Float[np.ndarray, "items 3"], float]:
    """Coordinates along the three axes of largest second moment, and the share of the moment on these axes.

    Signs are fixed (the largest entry of an axis is positive), so that the same data give the same picture.
    """
    total = float(np.square(z).sum())
    if total == 0:
        return z[:, :3], 1.0
    values, vectors = _largest(z)
    axes = vectors * np.sign(vectors[np.abs(vectors).argmax(0), range(3)])
    return z @ axes, float(values.clip(0).sum() / total)


def _largest(
    z: Float[np.ndarray, "items dim"],
) -> tuple[Float[np.ndarray, " 3"], Float[np.ndarray, "dim 3"]]:
    """The three largest eigenvalues of zᵀz and their vectors; a large zᵀz is never formed."""
    n = z.shape[1]
    if n <= _SMALL:
        values, vectors = np.linalg.eigh(z.T @ z)
    else:
        moment = LinearOperator((n, n), matvec=lambda v: z.T @ (z @ v), dtype=np.float64)
        values, vectors = eigsh(moment, k=3, v0=np.random.default_rng(0).standard_normal(n))
    order = values.argsort()[::-1][:3]
    return values[order], vectors[:, order]


def _directions(z: Float[np.ndarray, "items dim"]) -> Float[np.ndarray, "items dim"]:
    length = np.linalg.norm(z, axis=1, keepdims=True)
    return np.divide(z, length, out=np.zeros_like(z), where=length > 0)
