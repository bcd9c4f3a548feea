"""Print the tables of README.md and docs/findings.md: python results/tables.py NAME...

For each study of classification kept in results/NAME, mean ± standard error over its finished seeds: the
main figures, beside the paper's where the study repeats the paper's, then both kinds of temperature.
"""

import sys
from pathlib import Path

from spaceform.published import PUBLISHED
from spaceform.study import Study
from spaceform.verdict import standard_error

L2 = "calibration_error_l2"
COLUMNS = {
    "accuracy": ("accuracy, %", 2),
    L2: ("l2 calibration error, %", 1),
    "calibration_error_l1": ("l1, %", 2),
    f"calibrated.temperature.{L2}": ("l2 after temperature scaling, %", 1),
    "chosen": ("with the chosen calibrator, %", 1),
    "auroc_confidence": ("AUROC of the norm", 3),
    "epochs": ("epochs", 0),
}
OF_TEMPERATURES = {
    f"calibrated.{kind}.{column}": (f"{title}{name}{unit}", digits)
    for column, title, unit, digits in (("nll", "NLL, ", "", 3), (L2, "l2, ", ", %", 2))
    for kind, name in (("temperature", "plain"), ("norm_aware_temperature", "norm-aware"))
}


def table(folder: Path, columns: dict[str, tuple[str, int]]) -> str:
    """One study, in Markdown."""
    study = Study.open(folder)
    found = study.results().dropna(subset=["accuracy"])
    found["chosen"] = [run[f"calibrated.{run['calibrator']}.{L2}"] for _, run in found.iterrows()]
    theirs = {(f.head, f.column): f for f in PUBLISHED if f.data == study.notes["data"]}
    repeats = study.notes["kind"] == "reproduce" and columns is COLUMNS
    compared = {column for _, column in theirs} if repeats else set()
    header = ["head", "seeds"]
    for column, (title, _) in columns.items():
        header += [f"{title}: paper", "ours"] if column in compared else [title]
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    for head, runs in found.groupby("label", sort=False):
        line = [f"`{head}`", str(len(runs))]
        for column, (title, digits) in columns.items():
            scale = 100 if "%" in title else 1
            if column in compared:
                figure = theirs.get((str(head), column))
                shown = 2 if column == "auroc_confidence" else digits
                line.append(_cell(figure.mean, figure.sem, scale, shown) if figure else "")
            values = runs[column].to_numpy(dtype=float)
            line.append(_cell(values.mean(), standard_error(values) if digits else None, scale, digits))
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(mean: float, error: float | None, scale: int, digits: int) -> str:
    spread = "" if error is None else f" ± {error * scale:.{digits}f}"
    return f"{mean * scale:.{digits}f}{spread}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for columns in (COLUMNS, OF_TEMPERATURES):
            print(f"{name}\n\n{table(Path(__file__).parent / name, columns)}\n")
