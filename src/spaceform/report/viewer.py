"""The points of the 3-D viewer, packed into the page: int16 coordinates and one sheet of thumbnails."""

import base64
import json
from typing import Any

import numpy as np
from markupsafe import Markup

from spaceform.report.contents import Part
from spaceform.report.images import sheet
from spaceform.report.style import display

_POINTS = 10_000
"""Points of a panel; a larger test set is shown in part."""
_PHOTOS = 2_500
"""The same where every thumbnail is a photo to decode."""
_SHEET_BYTES = 3_000_000

_SPACES = {
    "euclidean": "Euclidean space",
    "hyperbolic": "Poincaré ball",
    "spherical": "unit sphere",
}


def packed(part: Part) -> dict[str, Any] | None:
    """Points of all heads, packed: int16 coordinates, one sheet of thumbnails."""
    group = part.group
    if not part.projections:
        return None
    labels = list(part.projections)
    first = group.shown[labels[0]].outputs
    assert first is not None
    most = _PHOTOS if part.photos else _POINTS
    pick = np.arange(len(first.labels))
    if len(pick) > most:
        pick = np.sort(np.random.default_rng(0).choice(pick, most, replace=False))
    heads = []
    for label in labels:
        record, projection = group.shown[label], part.projections[label]
        outputs = record.outputs
        assert outputs is not None
        if not np.array_equal(outputs.index, first.index):
            continue
        points = projection.points[pick]
        scale = float(np.abs(points).max()) or 1.0
        packet = {
            "label": display(label),
            "head": record.head,
            "geometry": record.geometry,
            "curvature": projection.curvature,
            "word": "κ" if record.head in ("vmf", "power_spherical") else "‖z‖",
            "scale": scale,
            "xyz": _packed(np.round(points / scale * 32767).astype("<i2")),
            "confidence": _packed(outputs.confidence[pick].astype("<f4")),
        }
        if outputs.probabilities is not None and outputs.predicted is not None:
            packet["predicted"] = _packed(outputs.predicted[pick].astype("<u2"))
            top = outputs.probabilities[pick].max(1)
            packet["probability"] = _packed(np.round(np.nan_to_num(top) * 65535).astype("<u2"))
        heads.append(
            {
                "packed": packet,
                "head": record.head,
                "label": display(label),
                "how": projection.how.rstrip("."),
                "space": _SPACES[record.geometry],
            }
        )
    thumbnails = None
    if part.pictures is not None:
        thumbnails = sheet(part.pictures.thumbnails(first.index[pick]), _SHEET_BYTES)
    data: dict[str, Any] = {
        "classes": first.classes,
        "labels": _packed(first.labels[pick].astype("<u2")),
        "index": _packed(first.index[pick].astype("<u4")),
        "heads": [head["packed"] for head in heads],
        "sheet": None,
    }
    if thumbnails is not None:
        data["sheet"] = {
            "id": f"{group.key}-sheet",
            "mime": thumbnails.image.mime,
            "side": thumbnails.side,
            "columns": thumbnails.columns,
        }
    return {
        "heads": heads,
        "classes": len(np.unique(first.labels[pick])),
        "json": script_json(data),
        "sheet": None if thumbnails is None else Markup(thumbnails.image.base64),
        "shown": len(pick),
        "all": len(first.labels),
        "missing": part.no_pictures,
    }


def caption(viewer: dict[str, Any] | None) -> str:
    if viewer is None:
        return ""
    count = f"{viewer['shown']:,} test items"
    if viewer["shown"] < viewer["all"]:
        count = f"{viewer['shown']:,} of {viewer['all']:,} test items, drawn at random"
    said = (
        f"{count}, coloured by class; first seed of each head. Drag to turn all panels together, hover or "
        "tap for an item: it is ringed in every panel. Click heads and classes to hide them, double-click a "
        "class to see it alone."
    )
    return f"{said} {viewer['missing']}".strip()


def script_json(value: Any) -> Markup:
    """JSON that no string inside can lead out of its script element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Markup(
        text.replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def _packed(values: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
