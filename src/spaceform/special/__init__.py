"""Bessel functions of the von Mises–Fisher distribution: exact, and the paper's bounds."""

from spaceform.special.functions import (
    concentration_from_mean_resultant_length,
    divergence_from_uniform,
    log_iv,
    log_normalizer,
    log_normalizer_difference,
    mean_resultant_length,
)

__all__ = [
    "concentration_from_mean_resultant_length",
    "divergence_from_uniform",
    "log_iv",
    "log_normalizer",
    "log_normalizer_difference",
    "mean_resultant_length",
]
