"""Classification heads for Euclidean, hyperbolic and spherical embeddings, and what to measure them by."""

from typing import TYPE_CHECKING, Any

from spaceform import calibrators, distributions, metrics, poincare, special
from spaceform._version import __version__
from spaceform.distributions import HypersphericalUniform, PowerSpherical, VonMisesFisher
from spaceform.geometry import Euclidean, PoincareBall, Sphere
from spaceform.heads import (
    HEADS,
    ArcFaceHead,
    CosineHead,
    Head,
    HyperbolicHead,
    PowerSphericalHead,
    StandardHead,
    VonMisesFisherHead,
)

if TYPE_CHECKING:
    from spaceform.estimator import SpaceformClassifier
    from spaceform.run import Run

__all__ = [
    "HEADS",
    "ArcFaceHead",
    "CosineHead",
    "Euclidean",
    "Head",
    "HyperbolicHead",
    "HypersphericalUniform",
    "PoincareBall",
    "PowerSpherical",
    "PowerSphericalHead",
    "Run",
    "SpaceformClassifier",
    "Sphere",
    "StandardHead",
    "VonMisesFisher",
    "VonMisesFisherHead",
    "__version__",
    "calibrators",
    "distributions",
    "metrics",
    "poincare",
    "special",
]

_LAB = {"SpaceformClassifier": "spaceform.estimator", "Run": "spaceform.run"}
"""Names that need the extra `lab`; they are imported when first asked for."""


def __getattr__(name: str) -> Any:
    if name not in _LAB:
        raise AttributeError(f"module 'spaceform' has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(_LAB[name]), name)
    except ModuleNotFoundError as error:
        remedy = "install it with: pip install 'spaceform[lab]'"
        raise ImportError(f"spaceform.{name} needs the package {error.name!r}; {remedy}") from error
