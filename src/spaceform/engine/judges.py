"""Judges of known rows, behind "unknown": of the models of a rehearsal, and of the model of all rows.

A model of the rehearsal has not seen the rows held out from it, so its judge weighs its answers by them. The
model of all rows has seen every row; its judge looks at its own embeddings and takes the weights of theirs.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spaceform.decisions import Combined, Known
from spaceform.engine.fit import Rehearsal
from spaceform.engine.rows import Rows, TrainingSplit
from spaceform.engine.training import FeaturesModel
from spaceform.heads import Head
from spaceform.nets.features import reach

FITTED_TO = 10_000
"""Training items that a judge looks at, at most."""


def judge_of_part(net: Callable[[Tensor], Tensor], train: Rows, held_out: Known) -> Combined:
    """Of a net that has seen the first rows, and not the others."""
    own = train.some(FITTED_TO)
    return Combined().fit(net(own.features), own.y, held_out)


def judge_of_all(
    net: Callable[[Tensor], Tensor], head: Head, rows: Rows, judges: Sequence[Combined]
) -> Combined:
    """Of a net and a head that have seen all rows, with the weights of those that have not."""
    own = rows.some(FITTED_TO)
    z = net(own.features)
    unweighed = Known(z[:2], own.y[:2], head.logit_samples(z[:2]), z[:2, 0])
    return Combined().fit(z, own.y, unweighed).weigh_as(judges)


@torch.no_grad()
def judged(
    rehearsal: Rehearsal, parts: Sequence[TrainingSplit], model: FeaturesModel, rows: Rows
) -> tuple[Combined, Tensor]:
    """The judge of a model of all rows, and what those of the rehearsal say of the rows held out."""
    judges: list[Combined] = []
    known: list[Tensor] = []
    logits = rehearsal.logits.split([len(part.held_out) for part in parts], dim=1)
    for one, part, said in zip(rehearsal.models, parts, logits, strict=True):
        x = part.held_out.features
        z = one.eval().net.body(x)
        held = Known(z, part.held_out.y, said, one.head.confidence(z), reach(x))
        judges.append(judge_of_part(one.net.body, part.train, held))
        known.append(judges[-1](z, said, reach=held.reach))
    return judge_of_all(model.embed, model.head, rows, judges), torch.cat(known)
