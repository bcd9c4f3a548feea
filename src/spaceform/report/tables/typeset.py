"""Tables as Markdown, LaTeX (booktabs) and CSV."""

import csv
import io
from itertools import groupby
from pathlib import Path

from spaceform.report.tables.results import MISSING, Cell, Table


def save_table(table: Table, folder: Path) -> list[Path]:
    """Write `KEY.md`, `KEY.tex` and `KEY.csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix, render in (("md", markdown), ("tex", latex), ("csv", comma_separated)):
        paths.append(folder / f"{table.key}.{suffix}")
        paths[-1].write_text(render(table), "utf-8")
    return paths


def markdown(table: Table) -> str:
    """A table for GitHub, under its title and caption."""

    def clean(text: str) -> str:
        return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")

    heads = [table.first, *(f"{c.over}: {c.title}" if c.over else c.title for c in table.columns)]
    rows = [
        [
            f"*{line.label}*" if line.reference else line.label,
            *(f"**{cell.text}**" if cell.bold else cell.text for cell in line.cells),
        ]
        for line in table.lines
    ]
    body = "\n".join("| " + " | ".join(map(clean, row)) + " |" for row in rows)
    title = f"{table.number}: {table.title}" if table.number else table.title
    rule = "| --- |" + " ---: |" * len(table.columns)
    top = f"### {clean(title)}\n\n{clean(table.caption)}\n\n"
    return f"{top}| {' | '.join(map(clean, heads))} |\n{rule}\n{body}\n"


_TEX = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "β": r"$\beta$",
    "κ": r"$\kappa$",
    "λ": r"$\lambda$",
    "Δ": r"$\Delta$",
    "‖": r"$\|$",
    "—": "---",
    "–": "--",
    "−": "$-$",
    "\ufffd": "?",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "\n": " ",
}


def latex(table: Table) -> str:
    """A table in the style of booktabs; bold numbers need amsmath."""

    def clean(text: str) -> str:
        return "".join(_TEX.get(character, character) for character in text)

    def number(cell: Cell) -> str:
        if cell.mean is None:
            return clean(cell.text)
        inner = cell.text.replace("±", r"\pm").replace("−", "-")
        return f"$\\boldsymbol{{{inner}}}$" if cell.bold else f"${inner}$"

    lines = [
        r"\begin{table}",
        r"\centering",
        r"\begin{tabular}{@{}l" + "r" * len(table.columns) + r"@{}}",
        r"\toprule",
    ]
    if any(column.over for column in table.columns):
        spans, rules, place = [], [], 2
        for over, inside in groupby(table.columns, key=lambda column: column.over):
            width = len(list(inside))
            spans.append(f"\\multicolumn{{{width}}}{{c}}{{{clean(over)}}}")
            if over:
                rules.append(f"\\cmidrule(lr){{{place}-{place + width - 1}}}")
            place += width
        lines += [" & " + " & ".join(spans) + r" \\", " ".join(rules)]
    lines += [" & " + " & ".join(clean(column.title) for column in table.columns) + r" \\", r"\midrule"]
    before = False
    for line in table.lines:
        label = clean(line.label)
        if line.reference and not before:
            lines.append(r"\midrule")
        before = line.reference
        first = rf"\textit{{{label}}}" if line.reference else label
        lines.append(" & ".join([first, *map(number, line.cells)]) + r" \\")
    lines += [
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{clean(f'{table.title}. {table.caption}')}}}",
        rf"\label{{tab:{table.key}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def comma_separated(table: Table) -> str:
    """Numbers as measured (shares, not percent): for every column its mean, standard error and seeds.

    Where a column has marks, `bold` is 1 for what is bold elsewhere. Where there are references, `kind` tells
    heads from them.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = [f"{c.over}: {c.title}" if c.over else c.title for c in table.columns]
    kinds = any(line.reference for line in table.lines)
    marked = [any(line.cells[i].bold for line in table.lines) for i in range(len(table.columns))]
    parts = [("mean", "sem", "seeds", *(["bold"] if some else [])) for some in marked]
    first = [table.first, *(["kind"] if kinds else [])]
    writer.writerow([*first, *(f"{n} {part}" for n, own in zip(names, parts, strict=True) for part in own)])
    for line in table.lines:
        row: list[object] = [line.label, *(["reference" if line.reference else "head"] if kinds else [])]
        for cell, some in zip(line.cells, marked, strict=True):
            value = cell.text if cell.mean is None and cell is not MISSING else cell.mean
            row += [value, cell.sem, cell.seeds, *([int(cell.bold)] if some else [])]
        writer.writerow(["" if value is None else value for value in row])
    return stream.getvalue()
