"""Post-hoc calibration: probabilities that keep their promise, fitted on held-out logits.

A calibrator is a module. `fit` takes logits of shape (batch, classes), or (draws, batch, classes) from a
stochastic head; `forward` takes such logits and returns log-probabilities. An inverse temperature β = 1/T
acts inside the average over draws,

    p(y | x) = (1/S) Σₛ softmax(β ℓₛ)_y,

as it would if the head itself had been trained at that temperature: scaling the logarithm of the averaged
probabilities instead would undo the averaging.

A fit minimises the mean negative log-likelihood. With one draw it is convex in β, and in everything that β is
linear in. With several draws the search starts from the best point of a wide scan, and every step must
decrease it. `StructuredScaling` is what runs predict with: it starts from the averaged probabilities,
checks each of its parts by cross-validation, and leaves alone what it cannot improve.
"""

from spaceform.calibrators.base import Calibrator
from spaceform.calibrators.isotonic import Isotonic
from spaceform.calibrators.norm_aware import NormAwareTemperature
from spaceform.calibrators.structured import StructuredScaling
from spaceform.calibrators.temperature import TemperatureScaling
from spaceform.calibrators.vector import VectorScaling

__all__ = [
    "CALIBRATORS",
    "Calibrator",
    "Isotonic",
    "NormAwareTemperature",
    "StructuredScaling",
    "TemperatureScaling",
    "VectorScaling",
]

CALIBRATORS: dict[str, type[Calibrator]] = {
    kind.name: kind
    for kind in (TemperatureScaling, NormAwareTemperature, VectorScaling, Isotonic, StructuredScaling)
}
