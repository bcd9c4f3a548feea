"""An engine for heads on features: candidates, a fast fit, a search that is equal for all, references.

    parts = parts_of(Rows.of(x, y), Rows.of(x_val, y_val), seed=0)   # one split, or three folds if small
    found = search("vmf", space("vmf", 384, 64, len(x)), parts, classes=64, seed=0)
    model = found.fitted.models[0]                                   # nn.Module: inputs, net, head
    again = rehearse("vmf", found.candidate, parts, seed=1, classes=64)
    whole = finish("vmf", found.candidate, again, rows, seed=1, classes=64)   # trained on all rows
    p = again.calibrator()(whole.logits(x_test)).exp()

A `Candidate` is a frozen value; a `Trial` is a plain record. It imports heads, calibrators and decisions, and
nothing of recipes, folders, studies or the command line.
"""

from spaceform.engine.candidate import Candidate
from spaceform.engine.fit import (
    EpochRecord,
    Rehearsal,
    finish,
    fit,
    refit,
    rehearse,
    temperature_of,
    weighted_nll,
)
from spaceform.engine.references import REFERENCES, Reference, Setting, reference
from spaceform.engine.rows import Rows, TrainingSplit, folds, joined, parted, parts_of
from spaceform.engine.search import Held, NothingTrained, Outcome, Trial, search
from spaceform.engine.space import LOOKED_AT, SIZE, Columns, space
from spaceform.engine.training import PREDICTION_DRAWS, CandidateDiverged, FeaturesModel, Training

__all__ = [
    "LOOKED_AT",
    "PREDICTION_DRAWS",
    "REFERENCES",
    "SIZE",
    "Candidate",
    "CandidateDiverged",
    "Columns",
    "EpochRecord",
    "FeaturesModel",
    "Held",
    "NothingTrained",
    "Outcome",
    "Reference",
    "Rehearsal",
    "Rows",
    "Setting",
    "Training",
    "TrainingSplit",
    "Trial",
    "finish",
    "fit",
    "folds",
    "joined",
    "parted",
    "parts_of",
    "reference",
    "refit",
    "rehearse",
    "search",
    "space",
    "temperature_of",
    "weighted_nll",
]
