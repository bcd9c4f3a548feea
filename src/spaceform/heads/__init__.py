"""Classification heads, by geometry.

`HEADS` has every head by name: first our own, then those of other packages, by the entry point
`spaceform.heads`.
"""

import warnings
from importlib.metadata import entry_points

from spaceform.heads.adaface import AdaFaceHead
from spaceform.heads.arcface import ArcFaceHead
from spaceform.heads.base import DeterministicHead, Head
from spaceform.heads.cosface import CosFaceHead
from spaceform.heads.cosine import CosineHead
from spaceform.heads.declaration import Choice, LogUniform, Start, Uniform
from spaceform.heads.hyperbolic import HyperbolicHead
from spaceform.heads.lorentz import LorentzHead
from spaceform.heads.power_spherical import PowerSphericalHead
from spaceform.heads.standard import StandardHead
from spaceform.heads.stochastic import ReparametrizedHead, StochasticHead
from spaceform.heads.subcentre_arcface import SubCentreArcFaceHead
from spaceform.heads.von_mises_fisher import VonMisesFisherHead

__all__ = [
    "HEADS",
    "AdaFaceHead",
    "ArcFaceHead",
    "Choice",
    "CosFaceHead",
    "CosineHead",
    "DeterministicHead",
    "Head",
    "HyperbolicHead",
    "LogUniform",
    "LorentzHead",
    "PowerSphericalHead",
    "ReparametrizedHead",
    "StandardHead",
    "Start",
    "StochasticHead",
    "SubCentreArcFaceHead",
    "Uniform",
    "VonMisesFisherHead",
]

HEADS: dict[str, type[Head]] = {
    head.name: head
    for head in (
        StandardHead,
        HyperbolicHead,
        CosineHead,
        ArcFaceHead,
        VonMisesFisherHead,
        PowerSphericalHead,
        CosFaceHead,
        SubCentreArcFaceHead,
        AdaFaceHead,
        LorentzHead,
    )
}


def _add_heads_of_other_packages() -> None:
    for found in entry_points(group="spaceform.heads"):
        try:
            head = found.load()
        except Exception as error:  # another package may raise anything, and ours must go on
            warnings.warn(
                f"the head {found.name!r} ({found.value}) cannot be imported: {error}", stacklevel=2
            )
            continue
        HEADS[head.name] = head


_add_heads_of_other_packages()
