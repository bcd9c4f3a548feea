"""Classification heads, by geometry."""

from spaceform.heads.arcface import ArcFaceHead
from spaceform.heads.base import DeterministicHead, Head, StochasticHead
from spaceform.heads.cosine import CosineHead
from spaceform.heads.hyperbolic import HyperbolicHead
from spaceform.heads.power_spherical import PowerSphericalHead
from spaceform.heads.standard import StandardHead
from spaceform.heads.von_mises_fisher import VonMisesFisherHead

HEADS: dict[str, type[Head]] = {
    "standard": StandardHead,
    "hyperbolic": HyperbolicHead,
    "cosine": CosineHead,
    "arcface": ArcFaceHead,
    "vmf": VonMisesFisherHead,
    "power_spherical": PowerSphericalHead,
}

__all__ = [
    "HEADS",
    "ArcFaceHead",
    "CosineHead",
    "DeterministicHead",
    "Head",
    "HyperbolicHead",
    "PowerSphericalHead",
    "StandardHead",
    "StochasticHead",
    "VonMisesFisherHead",
]
