"""Judges of how known a row is: one for each model of a rehearsal, and one for the final model.

A model of the rehearsal has not seen its held-out rows, so its judge finds the weights of its scores on them.
The final model has seen every row. Its judge uses the embeddings of this model and the weights of the others.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spaceform.decisions import Combined, Known
from spaceform.engine.fit import Rehearsal
from spaceform.engine.rows import Rows, TrainingSplit
from spaceform.engine.training import FeaturesModel
from spaceform.heads import Head

FITTED_TO = 10_000
"""The most training items that a judge is fitted to."""


def judge_of_part(net: Callable[[Tensor], Tensor], train: Rows, held_out: Known) -> Combined:
    """The judge of a net that was trained on `train` and has not seen `held_out`."""
    own = train.some(FITTED_TO)
    return Combined().fit(net(own.features), own.y, held_out)


def judge_of_all(
    net: Callable[[Tensor], Tensor], head: Head, rows: Rows, judges: Sequence[Combined]
) -> Combined:
    """The judge of a net and a head that have seen all rows; its weights come from `judges`."""
    own = rows.some(FITTED_TO)
    z = net(own.features)
    unweighed = Known(z[:2], own.y[:2], head.logit_samples(z[:2]), z[:2, 0])
    return Combined().fit(z, own.y, unweighed).weigh_as(judges)


@torch.no_grad()
def judged(
    rehearsal: Rehearsal, parts: Sequence[TrainingSplit], model: FeaturesModel, rows: Rows
) -> tuple[Combined, Tensor]:
    """The judge of a model of all rows; and the scores of held-out rows by the judges of the rehearsal."""
    judges: list[Combined] = []
    known: list[Tensor] = []
    logits = rehearsal.logits.split([len(part.held_out) for part in parts], dim=1)
    for one, part, said in zip(rehearsal.models, parts, logits, strict=True):
        x = part.held_out.features
        z = one.eval().net.body(x)
        held = Known(z, part.held_out.y, said, one.head.confidence(z), part.reach)
        judges.append(judge_of_part(one.net.body, part.train, held))
        known.append(judges[-1](z, said, reach=held.reach))
    return judge_of_all(model.embed, model.head, rows, judges), torch.cat(known)
