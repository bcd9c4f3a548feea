"""What can be decided by the predictions: sets of classes, and whether two items are the same."""

from typing import Any

import torch

from spaceform.report.looks import display
from spaceform.report.records import Group, Record
from spaceform.report.tables.results import MISSING, Cell, Column, Line, Table
from spaceform.run.held_out import HELD_OUT_FILE, HeldOut

_COVERAGE = 0.9
_SHOWN = 15
"""How many classes are listed if there are more: those that the sets miss most often."""
_PAIRS = (
    ("eer", "EER, %", 100.0),
    ("cllr", "Cllr", 1.0),
    ("min_cllr", "least Cllr", 1.0),
    ("false_accept_at_1_percent", "false accepts at 1 %, %", 100.0),
    ("false_reject_at_1_percent", "false rejects there, %", 100.0),
)


def sets(group: Group, record: Record | None) -> Table | None:
    """Coverage and size of the sets of a run, by class; None where the run kept nothing to make sets from."""
    outputs = None if record is None else record.outputs
    if record is None or outputs is None or outputs.probabilities is None:
        return None
    if not (record.folder / HELD_OUT_FILE).exists():
        return None
    try:
        kind = HeldOut.read(record.folder, len(outputs.classes)).sets(_COVERAGE)
    except ValueError:  # too few validation items for the promise, or a damaged file
        return None
    members = kind(torch.from_numpy(outputs.probabilities))
    y = torch.from_numpy(outputs.labels)
    held = members.gather(1, y[:, None])[:, 0].double()
    size = members.sum(1).double()
    there = y.unique().tolist()
    by_class = {
        j: (int((y == j).sum()), held[y == j].mean().item(), size[y == j].mean().item()) for j in there
    }
    worst = sorted(there, key=lambda j: by_class[j][1])[:_SHOWN]
    some = "" if len(worst) == len(there) else f" The {_SHOWN} classes that are missed most often."
    lines = [
        _line("all", len(y), held.mean().item(), size.mean().item()),
        *(_line(outputs.classes[j], *by_class[j]) for j in (there if not some else worst)),
    ]
    return Table(
        f"{group.key}-sets",
        f"Sets of classes of {group.title}",
        f"Sets of the run {record.name}, made to hold the true class of {100 * _COVERAGE:g} % of all items: "
        f"how often they do so on the test split, and how many classes they have. The promise is about all "
        f"items together; a class may be covered less often.{some}",
        (Column("items"), Column("coverage, %"), Column("classes in a set")),
        tuple(lines),
        first="true class",
    )


def _line(name: str, items: int, coverage: float, size: float) -> Line:
    cells = (Cell(f"{items:,}", items), Cell(f"{100 * coverage:.1f}", coverage), Cell(f"{size:.2f}", size))
    return Line(name, "", cells)


def pairs(group: Group) -> Table | None:
    """How well pairs of unseen classes are told apart, head by head; None where no run has measured it."""
    found = {
        label: one.record.metrics["verification"]
        for label, one in group.shown.items()
        if one.record.metrics is not None and "verification" in one.record.metrics
    }
    if not found:
        return None
    return Table(
        f"{group.key}-pairs",
        f"Same or not, on {group.title}",
        "Whether two test items share a class, by the model of pairs that was fitted to the validation "
        "classes; spaceform match uses it. EER: the rate at which false accepts and false rejects are equal. "
        "Cllr: the cost of the stated ratios, 0 is perfect and 1 says nothing; its least value is what a "
        "perfect calibration would leave. First seed of each head.",
        tuple(Column(title) for _, title, _ in _PAIRS),
        tuple(Line(display(label), "", _cells(one)) for label, one in found.items()),
        first="head",
    )


def _cells(one: dict[str, Any]) -> tuple[Cell, ...]:
    values = ((one.get(name), factor) for name, _, factor in _PAIRS)
    return tuple(
        MISSING if value is None else Cell(f"{factor * value:.3g}", float(value)) for value, factor in values
    )
