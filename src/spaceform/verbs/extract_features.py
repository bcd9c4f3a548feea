"""The verb that makes features of photos and texts, by a pretrained net that is not trained."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from spaceform import data
from spaceform.data.formats.shards import About
from spaceform.data.formats.texts import has_texts, load_texts, require_texts
from spaceform.data.formats.write_features import write_npz, write_parquet
from spaceform.run.extraction import BrokenItem, Elsewhere, FeatureSource, PhotoSource, TextSource, extract
from spaceform.run.progress import PaceListener

if TYPE_CHECKING:
    from spaceform.run.cluster import Cluster

_WRITERS = {".npz": write_npz, ".parquet": write_parquet}


@final
@dataclass(frozen=True)
class Extracted:
    """Features that were written: where they are, what they are, and how long it took."""

    path: Path
    about: About
    """The net, a digest of its weights, classes, number of rows, names of broken items that were left out."""
    dim: int
    seconds: float
    origin: str
    """Where the weights come from."""

    @property
    def rows(self) -> int:
        """How many rows there are, views included."""
        return self.about.rows or 0

    def load(self) -> data.Dataset:
        """The features as a data set."""
        return data.load(self.path)


def extract_features(
    what: str | Path | data.Dataset,
    out: str | Path,
    *,
    net: str | None = None,
    weights: str | Path | None = None,
    text: str | None = None,
    label: str | None = None,
    views: int = 0,
    batch: int = 32,
    device: str = "cpu",
    workers: int | None = None,
    skip_broken: bool = False,
    on: "Cluster | None" = None,
    listener: PaceListener | None = None,
) -> Extracted:
    """Write the features of photos or texts by a pretrained net to `out`; the same call goes on after a kill.

    `what` is a folder of photos, a name of the catalog or a loaded data set; or texts: a table with
    the columns `text` and `label`, or a folder of `.txt` files with a sub-folder for each class. `out` ends
    in .npz or .parquet, or names a folder of Arrow shards, for what does not fit in memory.

    `net` is a model of timm, with its own preprocessing, and `weights` a local file for it (safetensors, or
    .pth of plain tensors); without a file the weights are those of an installed package or of the hub. For
    texts, `net` is a name or a local folder of sentence-transformers. `views` augmented views of each
    training photo are further rows, marked by `view` 1, 2, …. `workers` threads decode. `skip_broken` leaves
    out photos that cannot be decoded and texts that are empty, and counts them.

    With `on=sf.Ray(...)` actors of a Ray cluster encode the shards, on a GPU if they ask for one. The hosts
    must see the photos under the same paths; the net travels to them, and this process writes the shards.
    """
    began, path = time.monotonic(), Path(out).expanduser()
    if path.suffix and path.suffix not in _WRITERS and not path.is_dir():
        raise ValueError(
            f"the output must end in .npz or .parquet, or be the name of a folder, got {str(path)!r}"
        )
    if views < 0:
        raise ValueError(f"--views must be 0 or more, got {views}")
    source = _source(what, net, weights, text, label, views, device, workers, skip_broken)
    folder = path.with_name(f".{path.name}.parts") if path.suffix in _WRITERS else path
    try:
        shards = extract(
            source,
            folder,
            batch=batch,
            skip_broken=skip_broken,
            listener=listener,
            elsewhere=_elsewhere(on),
        )
    except BrokenItem as error:
        raise data.DataError(f"{str(error).rstrip('.')} (--skip-broken leaves it out).") from None
    dim = next(shards.blocks()).shape[1]
    if path.suffix in _WRITERS:
        _WRITERS[path.suffix](shards, path)
        shards.remove()
    return Extracted(path, shards.about, dim, time.monotonic() - began, source.origin)


def _elsewhere(on: "Cluster | None") -> Elsewhere | None:
    if on is None:
        return None
    from spaceform.run.on_ray import encoded_by  # Ray takes seconds to import

    return encoded_by(on)


def _source(
    what: str | Path | data.Dataset,
    net: str | None,
    weights: str | Path | None,
    text: str | None,
    label: str | None,
    views: int,
    device: str,
    workers: int | None,
    skip_broken: bool,
) -> FeatureSource:
    if not isinstance(what, data.Dataset) and _is_text(what, text):
        if weights is not None or views:
            option = "--weights" if weights is not None else "--views"
            raise ValueError(f"{option} is for photos; leave it out, and name a net for texts by --net")
        texts = load_texts(what, text, label)
        if not skip_broken:
            require_texts(texts)
        return TextSource(texts, net, device=device)
    if label is not None:
        raise ValueError("--label names a column beside --text; name the column of texts, too")
    if text is not None:
        raise ValueError("--text names a column of a table, and a loaded data set has none; give the file")
    dataset = what if isinstance(what, data.Dataset) else data.load(what)
    return PhotoSource(dataset, net, weights, views=views, device=device, workers=workers)


def _is_text(what: str | Path, text: str | None) -> bool:
    return text is not None or (str(what) not in data.CATALOG and has_texts(Path(what).expanduser()))
