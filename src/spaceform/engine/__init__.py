"""An engine for heads on features: candidates, a fast fit, a search that is equal for all, references.

    parts = parts_of(Rows.of(x, y), Rows.of(x_val, y_val), seed=0)   # one split, or three folds if small
    found = search("vmf", space("vmf", 384, 64, len(x)), parts, classes=64, seed=0)
    model = found.fitted.models[0]                                   # nn.Module: inputs, net, head
    again = rehearse("vmf", found.candidate, parts, seed=1, classes=64)
    whole = refit("vmf", found.candidate, rows, epochs=found.best.best_epoch, seed=0, classes=64)
    p = log_mean_softmax(model.logits(x_test)).exp()

A `Candidate` is a frozen value; a `Trial` is a plain record. It imports heads and calibrators and nothing of
recipes, folders, studies or the command line.
"""

from spaceform.engine.candidate import Candidate
from spaceform.engine.fit import (
    DRAWS,
    Diverged,
    Look,
    Model,
    Part,
    Rehearsal,
    Rows,
    fit,
    fit_temperature,
    refit,
    rehearse,
    weighted_nll,
)
from spaceform.engine.references import REFERENCES, Reference, Setting, reference
from spaceform.engine.search import NothingTrained, Outcome, Trial, folds, joined, parts_of, search
from spaceform.engine.space import space

__all__ = [
    "DRAWS",
    "REFERENCES",
    "Candidate",
    "Diverged",
    "Look",
    "Model",
    "NothingTrained",
    "Outcome",
    "Part",
    "Reference",
    "Rehearsal",
    "Rows",
    "Setting",
    "Trial",
    "fit",
    "fit_temperature",
    "folds",
    "joined",
    "parts_of",
    "reference",
    "refit",
    "rehearse",
    "search",
    "space",
    "weighted_nll",
]
