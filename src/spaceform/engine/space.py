"""What a search tries: the same nets and rates for every head, and the head's own options beside them.

Candidate i has the same net, dropout, rates, batch and epochs whatever the head; only its options differ.
The first candidate is the best guess. It is used where nothing is searched.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from spaceform.engine.candidate import Candidate
from spaceform.engine.rows import Rows
from spaceform.heads import HEADS, Choice, Head, LogUniform, Uniform
from spaceform.heads.declaration import Range

SIZE = 16
"""How many candidates a whole search has."""

NARROW, WIDE = 100, 1000
"""With fewer features than the first, the data are a table, whose columns each mean something. With more than
the second, a projection has more parameters than the rows can teach it.
"""

_Net: TypeAlias = tuple[tuple[int, ...], int | None, float, float, float, int]

# Hidden layers, dim, dropout, lr, weight decay, pieces. The first four differ most; eight cover all kinds.
_TABLE: list[_Net] = [
    ((128, 128), None, 0.1, 6e-3, 0.0, 8),
    ((), None, 0.0, 2e-2, 0.0, 0),
    ((128, 128), None, 0.3, 6e-3, 0.0, 32),
    ((128, 128), None, 0.5, 6e-3, 0.0, 8),
    ((128, 128), None, 0.1, 6e-3, 0.0, 0),
    ((), None, 0.1, 1e-2, 0.0, 8),
    ((256,), None, 0.3, 6e-3, 1.0, 8),
    ((256, 256), 16, 0.0, 2e-3, 0.0, 0),
    ((512, 512), None, 0.1, 2e-3, 1.0, 8),
    ((), 32, 0.1, 6e-3, 0.0, 8),
    ((256, 256, 256), None, 0.2, 3e-3, 0.0, 16),
    ((128,), 16, 0.0, 1e-2, 0.0, 0),
    ((384, 384, 384), None, 0.2, 6e-3, 1.0, 0),
    ((64,), None, 0.3, 1e-2, 3.0, 4),
    ((128, 128), None, 0.5, 6e-3, 3.0, 8),
    ((), None, 0.1, 5e-2, 0.1, 0),
]
_EMBEDDINGS: list[_Net] = [
    ((), 256, 0.3, 4e-3, 0.0, 0),
    ((), None, 0.3, 1e-2, 0.0, 0),
    ((512,), 128, 0.5, 3e-3, 0.0, 0),
    ((256, 256), 128, 0.3, 3e-3, 0.0, 0),
    ((), 256, 0.5, 4e-3, 0.01, 0),
    ((512,), 256, 0.5, 6e-3, 0.0, 0),
    ((), 128, 0.3, 6e-3, 0.01, 0),
    ((), None, 0.7, 2e-2, 0.0, 0),
    ((), 256, 0.5, 1e-2, 0.0, 0),
    ((256,), None, 0.3, 3e-3, 0.01, 0),
    ((), None, 0.3, 6e-3, 0.1, 0),
    ((), 256, 0.15, 2e-3, 0.0, 0),
    ((), 384, 0.3, 4e-3, 0.1, 0),
    ((), None, 0.1, 2e-2, 0.1, 0),
    ((), 384, 0.15, 3e-3, 0.0, 0),
    ((), 256, 0.3, 2e-3, 0.0, 0),
]
_WIDE_FEATURES: list[_Net] = [
    ((), None, 0.5, 8e-3, 0.0, 0),
    ((), None, 0.5, 1.5e-2, 0.0, 0),
    ((), 256, 0.5, 3e-3, 0.0, 0),
    ((), None, 0.3, 6e-3, 0.1, 0),
    ((), None, 0.7, 8e-3, 0.0, 0),
    ((256,), 128, 0.5, 3e-3, 0.0, 0),
    ((), None, 0.7, 1.5e-2, 0.01, 0),
    ((), 512, 0.7, 2e-3, 0.0, 0),
    ((), None, 0.5, 1e-2, 0.1, 0),
    ((), None, 0.3, 3e-3, 0.0, 0),
    ((), 256, 0.7, 6e-3, 0.01, 0),
    ((), None, 0.5, 6e-3, 1.0, 0),
    ((), None, 0.8, 1e-2, 0.0, 0),
    ((), 128, 0.5, 3e-3, 0.0, 0),
    ((), None, 0.1, 6e-3, 0.0, 0),
    ((512,), 256, 0.7, 6e-3, 0.01, 0),
]
_TABLE_SCHEDULE, _FEATURES_SCHEDULE = (8, 450, 15, 60), (32, 280, 8, 40)
"""Batches in an epoch (within limits), steps of the whole training, the fewest and the most epochs."""

_MEMBERS = 2
"""How many nets with hidden layers stand side by side for a table. On seven tables two nets of 128 units have
1.01 times the test loss of four nets of 256 (geometric mean) in a quarter of the time. One net of 256 units
has 1.10 times the loss in the same time. This was measured before training stopped by the calibrated loss.
"""

LOOKED_AT = 500
"""Rows that are looked at for repeated values."""

_INPUTS, _FEWEST_PIECES = 640, 4
"""The most features and pieces together, unless features alone are more: a step takes as much longer as there
are more of them. And the fewest pieces that are worth their time.
"""


class Columns(NamedTuple):
    """What features look like, which says which nets are tried."""

    table: bool
    """Whether columns mean something each, as those of tables, pixels and counts do."""
    uncut: int = 0
    """How many columns have at most two values: cut into pieces, they would say nothing new."""

    @staticmethod
    def of(rows: Rows) -> "Columns":
        """Few columns are a table, and columns that repeat their values.

        Coordinates of an embedding hardly ever repeat one. Thousands of columns are no table: too many for
        hidden layers.
        """
        features = rows.x.shape[1]
        if features >= WIDE:
            return Columns(False)
        x = rows.some(LOOKED_AT).features.sort(dim=0).values
        changes = x[1:] != x[:-1]
        table = features < NARROW or bool(((~changes).double().mean(0) > 0.5).double().mean() > 0.5)
        return Columns(table, int((changes.sum(0) < 2).sum()) if table else 0)


def space(
    head: str,
    features: int,
    classes: int,
    rows: int,
    *,
    columns: Columns | None = None,
    size: int = SIZE,
    searched: Mapping[str, Sequence[Any]] | None = None,
) -> list[Candidate]:
    """At least one candidate, at most `size`; every head gets the same number.

    Without `columns`, their number alone says whether they are a table. `searched` has the head's own options
    and their values, the default first; None takes what the head declares.
    """
    table, uncut = columns or Columns(features < NARROW)
    nets = _nets(features, uncut, table=table, size=size)
    kind = HEADS[head]
    choices = _declared(kind) if searched is None else searched
    fixed = {name: value for name, value in _start(kind).items() if name not in choices}
    fixed |= {"samples": 1} if "samples" in kind.options() else {}  # one draw trains as well as ten
    share, steps, fewest, most = _TABLE_SCHEDULE if table else _FEATURES_SCHEDULE
    batch = min(256, max(32, rows // share))
    epochs = min(most, max(fewest, round(steps * batch / rows)))
    return [
        Candidate(
            hidden=hidden,
            dim=dim if dim is None or hidden or pieces else min(dim, max(2, features, classes)),
            pieces=pieces,
            uncut=uncut,
            members=_MEMBERS if table and hidden else 1,
            gates=len(hidden) > 1 or (table and bool(hidden)),
            dropout=dropout,
            lr=lr,
            weight_decay=decay,
            batch_size=batch,
            epochs=epochs,
            options=fixed | _options(choices, i),
        )
        for i, (hidden, dim, dropout, lr, decay, pieces) in enumerate(nets)
    ]


def _nets(features: int, uncut: int, *, table: bool, size: int) -> list[_Net]:
    """The first nets of the list for such features, and the same at other rates as often as it takes."""
    listed = _TABLE if table else _EMBEDDINGS if features < WIDE else _WIDE_FEATURES
    found: list[_Net] = []
    round_ = 0
    while len(found) < size:
        for net in listed:
            hidden, dim, dropout, lr, decay, pieces = _varied(net, round_)
            one = hidden, dim, dropout, lr, decay, _affordable(pieces, features, uncut)
            found += [] if one in found else [one]
        round_ += 1
    return found[:size]


def _affordable(pieces: int, features: int, uncut: int) -> int:
    """As many pieces, as long as features and pieces are not too many; none rather than very few."""
    most = (_INPUTS - features) // max(1, features - uncut)
    fewest = min(pieces, _FEWEST_PIECES)
    return 0 if uncut == features or most < fewest else min(pieces, most)


def _declared(head: type[Head]) -> dict[str, Sequence[Any]]:
    """The options that a head declares in `searched`: the middle and the ends of a range, or all choices."""
    return {name: _values(found) for name, found in head.searched.items()}


def _start(head: type[Head]) -> Mapping[str, Any]:
    """The options with which the head starts on features."""
    return head.defaults["features"].options if "features" in head.defaults else {}


def _values(found: Range) -> tuple[Any, ...]:
    match found:
        case LogUniform(low, high):
            return math.sqrt(low * high), low, high
        case Uniform(low, high):
            return (low + high) / 2, low, high
        case Choice(values):
            return values


def _varied(net: _Net, round_: int) -> _Net:
    """The same net at other rates, for searches beyond the list."""
    if round_ == 0:
        return net
    hidden, dim, dropout, lr, decay, pieces = net
    rate = lr * (0.5 if round_ % 2 else 2.0)
    return hidden, dim, min(0.8, dropout + 0.1 * round_), rate, decay, pieces


def _options(choices: Mapping[str, Sequence[Any]], i: int) -> dict[str, Any]:
    """The head's options in candidate i. Every second candidate has the defaults.

    The others go through the values, the first option fastest and the second more slowly. A third option goes
    as fast as the first: otherwise its values would not appear among few candidates.
    """
    found = {name: values[0] for name, values in choices.items()}
    if i % 2 == 0:
        return found
    turn = first = i // 2 + 1
    varied = [(name, values) for name, values in choices.items() if len(values) > 1]
    for place, (name, values) in enumerate(varied):
        found[name] = values[(turn if place < 2 else first) % len(values)]
        turn //= len(values)
    return found
