"""Check data: whether it is whole, and whether `compare` will take it."""

from pathlib import Path

from spaceform import data
from spaceform.data.catalog import Check
from spaceform.study import plan


def check_data(
    what: str | Path, *, label: str | None = None, text: str | None = None, photos: bool = True
) -> list[Check]:
    """Verify checksums, counts and the split, and plan a comparison with its defaults.

    Photos are decoded only with `photos`.
    """
    checks = data.check(what, label=label, text=text, photos=photos)
    return [*checks, _check_plan(what, label, text)] if all(found.ok for found in checks) else checks


def _check_plan(what: str | Path, label: str | None, text: str | None) -> Check:
    try:
        dataset = data.load(what, label=label, text=text, download=False)
        if dataset.kind == "texts":
            return Check("compare", True, "heads can be compared, on features of a net for texts")
        found = plan.recipes(str(what), plan.named_heads("default"), plan.Conditions(), dataset=dataset)
        plan.jobs(found, range(1))
    except ValueError as error:
        return Check("compare", False, str(error))
    return Check("compare", True, f"{len(found)} heads can be compared")
