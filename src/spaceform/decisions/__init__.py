"""What to do with a probability: a set of classes that holds the true one as often as promised."""

from spaceform.decisions.norm_aware_sets import NormAwareSets
from spaceform.decisions.set_scores import AdaptiveSets, LeastAmbiguousSets, RegularizedAdaptiveSets
from spaceform.decisions.sets import PredictionSets

__all__ = [
    "SETS",
    "AdaptiveSets",
    "LeastAmbiguousSets",
    "NormAwareSets",
    "PredictionSets",
    "RegularizedAdaptiveSets",
]

SETS: dict[str, type[PredictionSets]] = {
    kind.name: kind for kind in (LeastAmbiguousSets, AdaptiveSets, RegularizedAdaptiveSets, NormAwareSets)
}
