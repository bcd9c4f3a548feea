"""Embeddings in three dimensions, by a projection that keeps what their geometry is about."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from spaceform.report.style import geometry


@final
@dataclass(frozen=True, eq=False)
class Projection:
    """Points as the net emits them, and the words that say how they came to three dimensions."""

    points: Float[np.ndarray, "items 3"]
    how: str
    geometry: str
    curvature: float

    @property
    def in_space(self) -> Float[np.ndarray, "items 3"]:
        """On the unit sphere, in the ball of radius 1/√c, or as they are."""
        match self.geometry:
            case "spherical":
                return _directions(self.points)
            case "hyperbolic":
                r = np.sqrt(self.curvature) * np.linalg.norm(self.points, axis=1, keepdims=True)
                return self.points * np.divide(np.tanh(r), r, out=np.ones_like(r), where=r > 0)
            case _:
                return self.points


def project(z: NDArray[np.floating[Any]], head: str, curvature: float = 1.0) -> Projection:
    """Three coordinates of each embedding.

    Spherical: the three principal axes of the directions z/‖z‖ about the origin, re-normalised to the sphere,
    times ‖z‖. Hyperbolic: z is the logarithm at the origin of its point in the ball; principal axes about the
    origin, then every vector gets its own length back, so distances from the origin are exact. Euclidean:
    principal components. Three dimensions are left as they are, one and two are filled up with zeros.
    """
    kind = geometry(head)
    z = np.nan_to_num(z.astype(np.float64))
    if z.shape[1] == 3:
        return Projection(z, "The three coordinates the net emits, as they are.", kind, curvature)
    if z.shape[1] < 3:
        padded = np.pad(z, ((0, 0), (0, 3 - z.shape[1])))
        return Projection(padded, f"The net emits {z.shape[1]} coordinates; all are shown.", kind, curvature)
    n = z.shape[1]
    if kind == "euclidean":
        centred = z - z.mean(0)
        points, kept = _principal(centred, centred)
        how = f"Principal components of the {n} dimensions: {kept:.0%} of the variance"
        return Projection(points, how, kind, curvature)
    directions = _directions(z)
    length = np.linalg.norm(z, axis=1, keepdims=True)
    if kind == "spherical":
        points, kept = _principal(directions, directions)
        how = (
            f"Principal axes of the directions in {n} dimensions ({kept:.0%} of their squared length), "
            "re-normalised to the sphere; radius ‖z‖"
        )
    else:
        points, kept = _principal(z, z)
        how = (
            f"Logarithm at the origin, principal axes of the {n} dimensions ({kept:.0%} of the squared "
            "length), each point at its exact distance from the origin"
        )
    return Projection(_directions(points) * length, how, kind, curvature)


def _principal(
    fitted: Float[np.ndarray, "items dim"], moved: Float[np.ndarray, "items dim"]
) -> tuple[Float[np.ndarray, "items 3"], float]:
    """Coordinates along the three axes of largest second moment, and the share of it that they hold.

    Signs are fixed (the largest entry of an axis is positive), so that the same data gives the same picture.
    """
    values, vectors = np.linalg.eigh(fitted.T @ fitted)
    axes = vectors[:, ::-1][:, :3]
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), range(3)])
    total = values.clip(0).sum()
    return moved @ axes, float(values[::-1][:3].clip(0).sum() / total) if total > 0 else 1.0


def _directions(z: Float[np.ndarray, "items dim"]) -> Float[np.ndarray, "items dim"]:
    length = np.linalg.norm(z, axis=1, keepdims=True)
    return np.divide(z, length, out=np.zeros_like(z), where=length > 0)
