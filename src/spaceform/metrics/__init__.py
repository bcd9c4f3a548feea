"""Accuracy, calibration, confidence, distances in a tree of classes, retrieval and verification.

All are pure functions of tensors, on any device, or of numpy arrays. Sums over classes or pairs run on the
device of the tensors. The rest, one number for each example, is summed in float64 on the CPU, so values
repeat to the last bit.
"""

from spaceform.metrics.accuracy import accuracy, brier, mean, nll
from spaceform.metrics.bootstrap import Interval, bootstrap
from spaceform.metrics.calibration import Reliability, calibration_error, reliability, top_label_error
from spaceform.metrics.confidence import RiskCoverage, aurc, auroc, ood_auroc, ood_fpr, risk_coverage
from spaceform.metrics.few_shot import few_shot_accuracy, r_auroc
from spaceform.metrics.hierarchy import expected_tree_distance, mistake_distance, tree_distances
from spaceform.metrics.retrieval import Retrieval, expected_retrieval, map_at_r, retrieval
from spaceform.metrics.sets import set_coverage, set_size
from spaceform.metrics.verification import (
    DetCurve,
    accept_threshold,
    cllr,
    det_curve,
    eer,
    min_cllr,
    min_dcf,
)

__all__ = [
    "DetCurve",
    "Interval",
    "Reliability",
    "Retrieval",
    "RiskCoverage",
    "accept_threshold",
    "accuracy",
    "aurc",
    "auroc",
    "bootstrap",
    "brier",
    "calibration_error",
    "cllr",
    "det_curve",
    "eer",
    "expected_retrieval",
    "expected_tree_distance",
    "few_shot_accuracy",
    "map_at_r",
    "mean",
    "min_cllr",
    "min_dcf",
    "mistake_distance",
    "nll",
    "ood_auroc",
    "ood_fpr",
    "r_auroc",
    "reliability",
    "retrieval",
    "risk_coverage",
    "set_coverage",
    "set_size",
    "top_label_error",
    "tree_distances",
]
