"""Accuracy, calibration, confidence and retrieval: pure functions on tensors or numpy arrays, any device.

Reductions over classes or pairs run where the tensors are; what is left, one number per example, is summed in
float64 on the CPU, so figures repeat to the last bit.
"""

from spaceform.metrics.accuracy import accuracy, brier, mean, nll
from spaceform.metrics.bootstrap import Interval, bootstrap
from spaceform.metrics.calibration import Reliability, calibration_error, reliability
from spaceform.metrics.confidence import RiskCoverage, aurc, auroc, ood_auroc, ood_fpr, risk_coverage
from spaceform.metrics.retrieval import Retrieval, expected_retrieval, map_at_r, retrieval

__all__ = [
    "Interval",
    "Reliability",
    "Retrieval",
    "RiskCoverage",
    "accuracy",
    "aurc",
    "auroc",
    "bootstrap",
    "brier",
    "calibration_error",
    "expected_retrieval",
    "map_at_r",
    "mean",
    "nll",
    "ood_auroc",
    "ood_fpr",
    "reliability",
    "retrieval",
    "risk_coverage",
]
