"""What to do with a probability: a set of classes that holds the true one as often as promised; "unknown";
the probability that two items share a class.
"""

from spaceform.decisions.choose_unknown import UNKNOWN_SCORES, ChosenScore, choose_unknown
from spaceform.decisions.norm_aware_sets import NormAwareSets
from spaceform.decisions.pairs import (
    PAIRS,
    Pairs,
    SimilarityPairs,
    VonMisesFisherPairs,
    learn_pairs,
    pairs_for,
    vmf_log_ratio,
)
from spaceform.decisions.prediction_sets import PredictionSets
from spaceform.decisions.refusal import Refusal
from spaceform.decisions.set_scores import AdaptiveSets, LeastAmbiguousSets, RegularizedAdaptiveSets
from spaceform.decisions.unknown import Energy, Known, OwnEvidence, UnknownScore
from spaceform.decisions.unknown_combined import Combined
from spaceform.decisions.unknown_distance import Mahalanobis, NearestNeighbours

__all__ = [
    "PAIRS",
    "SETS",
    "UNKNOWN_SCORES",
    "AdaptiveSets",
    "ChosenScore",
    "Combined",
    "Energy",
    "Known",
    "LeastAmbiguousSets",
    "Mahalanobis",
    "NearestNeighbours",
    "NormAwareSets",
    "OwnEvidence",
    "Pairs",
    "PredictionSets",
    "Refusal",
    "RegularizedAdaptiveSets",
    "SimilarityPairs",
    "UnknownScore",
    "VonMisesFisherPairs",
    "choose_unknown",
    "learn_pairs",
    "pairs_for",
    "vmf_log_ratio",
]

SETS: dict[str, type[PredictionSets]] = {
    kind.name: kind for kind in (LeastAmbiguousSets, AdaptiveSets, RegularizedAdaptiveSets, NormAwareSets)
}
