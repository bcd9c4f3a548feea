"""Classification heads, by geometry."""

from spaceform.heads.arcface import ArcFaceHead
from spaceform.heads.base import DeterministicHead, Head, StochasticHead
from spaceform.heads.cosine import CosineHead
from spaceform.heads.hyperbolic import HyperbolicHead
from spaceform.heads.standard import StandardHead

HEADS: dict[str, type[Head]] = {
    "standard": StandardHead,
    "hyperbolic": HyperbolicHead,
    "cosine": CosineHead,
    "arcface": ArcFaceHead,
}

__all__ = [
    "HEADS",
    "ArcFaceHead",
    "CosineHead",
    "DeterministicHead",
    "Head",
    "HyperbolicHead",
    "StandardHead",
    "StochasticHead",
]
