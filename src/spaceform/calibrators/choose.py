"""Which calibrator suits the data."""

import torch

from spaceform.calibrators.base import Calibrator, as_examples
from spaceform.calibrators.norm_aware import NormAwareTemperature, given
from spaceform.calibrators.temperature import TemperatureScaling
from spaceform.metrics.inputs import TensorOrArray

_FOLDS = 5


def choose(
    logits: TensorOrArray, y: TensorOrArray, confidence: TensorOrArray, weight: TensorOrArray | None = None
) -> Calibrator:
    """Plain temperature, or the one that depends on the norm where that is clearly better; fitted.

    Both are fitted without each fifth of the examples in turn. The norm enters where it lowers the negative
    log-likelihood of what was held out by more than two standard errors.
    """
    (L, labels, w), checked = as_examples(logits, y, confidence, weight)
    κ = given(checked)
    kinds: tuple[type[Calibrator], ...] = (TemperatureScaling, NormAwareTemperature)
    fold = (torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)) % _FOLDS).to(L.device)
    gain = torch.zeros_like(w)
    for k in range(min(_FOLDS, len(labels) - 1)):
        out, rest = fold == k, fold != k
        plain, aware = (
            kind().fit(L[:, rest], labels[rest], κ[rest], w[rest])(L[:, out], κ[out]) for kind in kinds
        )
        gain[out] = (aware - plain).gather(1, labels[out, None])[:, 0].double()
    mean = (w @ gain) / w.sum()
    error = (w @ (gain - mean).square()).sqrt() / w.sum()
    return kinds[bool(mean > 2 * error)]().fit(L, labels, κ, w)
