"""Embeddings in three dimensions, laid out as suits their geometry."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from spaceform.geometry import Geometry


@final
@dataclass(frozen=True, eq=False)
class Layout:
    """Three coordinates of each embedding, and how they were found."""

    points: Float[np.ndarray, "items 3"]
    how: str


def lay_out(z: NDArray[np.floating[Any]], geometry: Geometry | None) -> Layout:
    """Three coordinates of each embedding, before it enters its space.

    Spherical: the three principal axes of the directions z/‖z‖ about the origin, re-normalised to the sphere,
    times ‖z‖. Hyperbolic: z is the logarithm at the origin of its point in the ball; principal axes about the
    origin, then every vector gets its own length back, so distances from the origin are exact. Otherwise:
    principal components. Three dimensions are left as they are, one and two are filled up with zeros.
    """
    z = np.nan_to_num(z.astype(np.float64))
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
    """Coordinates along the three axes of largest second moment, and the share of it that they hold.

    Signs are fixed (the largest entry of an axis is positive), so that the same data gives the same picture.
    """
    values, vectors = np.linalg.eigh(z.T @ z)
    axes = vectors[:, ::-1][:, :3]
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), range(3)])
    total = values.clip(0).sum()
    return z @ axes, float(values[::-1][:3].clip(0).sum() / total) if total > 0 else 1.0


def _directions(z: Float[np.ndarray, "items dim"]) -> Float[np.ndarray, "items dim"]:
    length = np.linalg.norm(z, axis=1, keepdims=True)
    return np.divide(z, length, out=np.zeros_like(z), where=length > 0)
