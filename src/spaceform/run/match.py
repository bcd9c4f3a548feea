"""Which items share a class: row by row, or all against all. Pairs are written as they are found."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform.metrics.ranks import checked_share
from spaceform.run.finished import Run
from spaceform.run.predict import predict

_PAIRS_AT_ONCE = 1 << 20


class MatchCounts(NamedTuple):
    """How many pairs were compared and written."""

    compared: int
    written: int
    accepted: int | None
    """How many pairs are accepted; None if no rate of false accepts was given."""


def match(
    run: Run,
    a: str | Path,
    b: str | Path,
    out: Path,
    *,
    every: bool = False,
    at_least: float = 0.0,
    false_accept: float | None = None,
    prior: float = 0.5,
) -> MatchCounts:
    """Write a .csv with a line for each pair: the items, the log-likelihood ratio, the probability.

    `a` and `b` are images, folders or arrays, as for `predict`. Row i of `a` is compared with row i of `b`,
    or with `every`, all rows of `a` with all rows of `b`; then one block of pairs is in memory at a time.
    Pairs below the probability `at_least` are not written.

    `prior` is the share of pairs of one class among the pairs to come. With `false_accept` a column `accept`
    says which ratios reach a threshold; of pairs of two classes, at most this share reaches it.
    """
    if out.suffix != ".csv":
        raise ValueError(f"the output must end in .csv, got {str(out)!r}")
    if not 0 <= at_least <= 1:
        raise ValueError(f"at_least must be a probability between 0 and 1, got {at_least}")
    prior = checked_share(prior, "prior")
    threshold = None if false_accept is None else run.pairs.threshold(false_accept)
    one, other = (predict(run, [source], calibrator=None) for source in (a, b))
    if not every and len(one.items) != len(other.items):
        raise ValueError(
            f"{a} has {len(one.items)} items, {b} {len(other.items)}; pairs need as many, or compare each "
            "with each by --all"
        )
    odds = float(torch.tensor(prior, dtype=torch.float64).logit())
    compared = written = accepted = 0
    part = out.with_name(out.name + ".part")
    out.parent.mkdir(parents=True, exist_ok=True)
    with part.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["a", "b", "log_ratio", "probability", *(["accept"] if threshold is not None else [])])
        for i, j, ratio in _ratios(run, one.embedding, other.embedding, every):
            compared += len(ratio)
            p = torch.sigmoid(ratio.double() + odds)
            for row in (p >= at_least).nonzero()[:, 0].tolist():
                line = [one.items[i[row]], other.items[j[row]], f"{ratio[row]:.6g}", f"{p[row]:.6g}"]
                if threshold is not None:
                    line.append(str(bool(ratio[row] >= threshold)))
                    accepted += line[-1] == "True"
                table.writerow(line)
                written += 1
    part.replace(out)
    return MatchCounts(compared, written, None if threshold is None else accepted)


def _ratios(
    run: Run, one: Float[Tensor, "n dim"], other: Float[Tensor, "m dim"], every: bool
) -> Iterator[tuple[Sequence[int], Sequence[int], Float[Tensor, " pairs"]]]:
    """Row numbers of the first, row numbers of the second, and the ratios, block by block."""
    rows = max(1, _PAIRS_AT_ONCE // (len(other) if every else 1))
    for start in range(0, len(one), rows):
        some = one[start : start + rows]
        first = torch.arange(start, start + len(some))
        if not every:
            yield first.tolist(), first.tolist(), run.pairs(some, other[start : start + rows])
            continue
        second = torch.arange(len(other)).repeat(len(some))
        ratio = run.pairs.all_pairs(some, other).flatten()
        yield first.repeat_interleave(len(other)).tolist(), second.tolist(), ratio
