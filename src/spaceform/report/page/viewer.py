"""The points of the 3-D viewer as the page holds them: int16 coordinates and one sheet of thumbnails."""

import base64
import json
from typing import Any

import numpy as np
from jaxtyping import Int64
from markupsafe import Markup

from spaceform.geometry import Geometry, Hyperboloid, PoincareBall
from spaceform.report.contents import DataSetPart
from spaceform.report.figures.images import sheet
from spaceform.report.layout import Layout
from spaceform.report.looks import look
from spaceform.report.records import Shown

_POINTS = 10_000
"""The most points of a panel; a larger test set is shown in part."""
_PHOTOS = 2_500
"""The most points if every thumbnail is a photo that must be decoded."""
_SHEET_BYTES = 3_000_000


def packed(part: DataSetPart) -> dict[str, Any] | None:
    """What the template and the script need; None where there are no embeddings."""
    if not part.layouts:
        return None
    shown = part.group.shown
    first = next(iter(shown.values())).outputs
    pick = _picked(len(first.labels), _PHOTOS if part.photos else _POINTS)
    same = [label for label, one in shown.items() if np.array_equal(one.outputs.index, first.index)]
    data: dict[str, Any] = {
        "classes": first.classes,
        "labels": _bytes(first.labels[pick].astype("<u2")),
        "index": _bytes(first.index[pick].astype("<u4")),
        "heads": [_points(shown[label], part.layouts[label], pick) for label in same],
        "sheet": None,
    }
    pixels = None
    if part.pictures is not None:
        thumbnails = sheet(part.pictures.thumbnails(first.index[pick]), _SHEET_BYTES)
        pixels = Markup(thumbnails.image.base64)
        data["sheet"] = {
            "id": f"{part.group.key}-sheet",
            "mime": thumbnails.image.mime,
            "side": thumbnails.side,
            "columns": thumbnails.columns,
        }
    return {
        "heads": [_described(shown[label], part.layouts[label]) for label in same],
        "classes": len(np.unique(first.labels[pick])),
        "json": script_json(data),
        "sheet": pixels,
        "caption": _caption(len(pick), len(first.labels), part.no_pictures),
    }


def _picked(count: int, most: int) -> Int64[np.ndarray, " picked"]:
    every = np.arange(count)
    return every if count <= most else np.sort(np.random.default_rng(0).choice(every, most, replace=False))


def _points(one: Shown, layout: Layout, pick: Int64[np.ndarray, " picked"]) -> dict[str, Any]:
    """One panel, for the script."""
    outputs, geometry = one.outputs, one.record.geometry
    points = layout.points[pick]
    scale = float(np.abs(points).max()) or 1.0
    found = {
        "geometry": geometry.kind if geometry else "",
        "curvature": _shown_curvature(geometry),
        "symbol": look(one.record.head).symbol,
        "scale": scale,
        "xyz": _bytes(np.round(points / scale * 32767).astype("<i2")),
        "confidence": _bytes(outputs.confidence[pick].astype("<f4")),
    }
    if outputs.probabilities is not None and outputs.predicted is not None:
        top = outputs.probabilities[pick].max(1)
        found["predicted"] = _bytes(outputs.predicted[pick].astype("<u2"))
        found["probability"] = _bytes(np.round(np.nan_to_num(top) * 65535).astype("<u2"))
    return found


def _shown_curvature(geometry: Geometry | None) -> float:
    """The c of the Poincaré ball that shows an embedding z at tanh(√c‖z‖)/√c."""
    match geometry:
        case PoincareBall(curvature):
            return curvature
        case Hyperboloid(curvature):
            return (
                curvature / 4
            )  # in this ball z would lie half as far from the origin as in a ball of the same curvature
        case _:
            return 1.0


def _described(one: Shown, layout: Layout) -> dict[str, str]:
    """One panel, for the template."""
    geometry = one.record.geometry
    return {
        "head": one.record.head,
        "label": one.title,
        "how": layout.how,
        "space": geometry.title if geometry else "geometry unknown: this head is not installed here",
    }


def _caption(shown: int, count: int, no_pictures: str) -> str:
    items = f"{shown:,} test items" if shown == count else f"{shown:,} of {count:,} test items, at random"
    said = (
        f"{items}, coloured by class; first seed of each head. Drag to turn all panels together. Point at an "
        "item, or tap it, to see what it is; a ring marks it in every panel. Click a head or a class to hide "
        "it. Double-click a class to see it alone."
    )
    return f"{said} {no_pictures}".strip()


def script_json(value: Any) -> Markup:
    """JSON in which no string can end the script element that holds it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Markup(
        text.replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def _bytes(values: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
