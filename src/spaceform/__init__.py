"""Classification heads for Euclidean, hyperbolic and spherical embeddings, and metrics for them.

Names are imported when they are first used, so that `spaceform --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from spaceform import calibrators, decisions, distributions, geometry, metrics, special
    from spaceform.distributions import HypersphericalUniform, PowerSpherical, VonMisesFisher
    from spaceform.estimator import SpaceformClassifier
    from spaceform.foundation.torchvision import ensure_torchvision
    from spaceform.geometry import Euclidean, Hyperboloid, PoincareBall, Sphere
    from spaceform.heads import (
        HEADS,
        AdaFaceHead,
        ArcFaceHead,
        CosFaceHead,
        CosineHead,
        Head,
        HyperbolicHead,
        LorentzHead,
        PowerSphericalHead,
        StandardHead,
        SubCentreArcFaceHead,
        VonMisesFisherHead,
    )
    from spaceform.heads.sharding import shard, unshard
    from spaceform.run.finished import Run
    from spaceform.study.processes import Processes
    from spaceform.study.ray import Ray
    from spaceform.verbs.compare import compare, reproduce, search
    from spaceform.verbs.extract_features import extract_features
    from spaceform.verbs.outcome import Study

__all__ = [
    "HEADS",
    "AdaFaceHead",
    "ArcFaceHead",
    "CosFaceHead",
    "CosineHead",
    "Euclidean",
    "Head",
    "HyperbolicHead",
    "Hyperboloid",
    "HypersphericalUniform",
    "LorentzHead",
    "PoincareBall",
    "PowerSpherical",
    "PowerSphericalHead",
    "Processes",
    "Ray",
    "Run",
    "SpaceformClassifier",
    "Sphere",
    "StandardHead",
    "Study",
    "SubCentreArcFaceHead",
    "VonMisesFisher",
    "VonMisesFisherHead",
    "__version__",
    "calibrators",
    "compare",
    "decisions",
    "distributions",
    "ensure_torchvision",
    "extract_features",
    "geometry",
    "metrics",
    "reproduce",
    "search",
    "shard",
    "special",
    "unshard",
]

_HOMES = {
    "foundation.torchvision": ("ensure_torchvision",),
    "distributions": ("HypersphericalUniform", "PowerSpherical", "VonMisesFisher"),
    "estimator": ("SpaceformClassifier",),
    "geometry": ("Euclidean", "Hyperboloid", "PoincareBall", "Sphere"),
    "heads": (
        "HEADS",
        "AdaFaceHead",
        "ArcFaceHead",
        "CosFaceHead",
        "CosineHead",
        "Head",
        "HyperbolicHead",
        "LorentzHead",
        "PowerSphericalHead",
        "StandardHead",
        "SubCentreArcFaceHead",
        "VonMisesFisherHead",
    ),
    "heads.sharding": ("shard", "unshard"),
    "run": ("Run",),
    "verbs.compare": ("compare", "reproduce", "search"),
    "verbs.extract_features": ("extract_features",),
    "verbs.outcome": ("Study",),
    "study.processes": ("Processes",),
    "study.ray": ("Ray",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = ("calibrators", "decisions", "distributions", "geometry", "metrics", "special")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"spaceform.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'spaceform' has no attribute {name!r}")
    try:
        value = getattr(import_module(f"spaceform.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("spaceform"):
            raise
        from spaceform.foundation.messages import source

        remedy = f"install it with: pip install {source(error.name)}"
        raise ImportError(f"spaceform.{name} needs the package {error.name!r}; {remedy}") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
