"""What a run says about new data, as a table: classes, calibrated probabilities, confidence, embeddings."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, final

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from spaceform import data
from spaceform.data.formats import can_predict, read_unlabelled
from spaceform.data.formats.image_folder import EXTENSIONS, images_in
from spaceform.data.formats.texts import load_new_texts, require_texts
from spaceform.decisions import LeastAmbiguousSets, Refusal
from spaceform.foundation.messages import spelled
from spaceform.run import files
from spaceform.run.finished import Run
from spaceform.run.held_out import as_trained

if TYPE_CHECKING:
    from pandas import DataFrame


NewItems: TypeAlias = "NDArray[np.generic] | list[Path] | list[str]"
"""An array of features or of small images, photos by their paths, or texts."""


@final
@dataclass(frozen=True, eq=False)
class Prediction:
    """One row for each item, in the order of `items`."""

    items: tuple[str, ...]
    """Paths of images, or row numbers of an array."""
    classes: tuple[str, ...]
    probabilities: Float[Tensor, "items classes"]
    confidence: Float[Tensor, " items"]
    embedding: Float[Tensor, "items dim"]
    sets: Bool[Tensor, "items classes"] | None = None
    """Which classes are in the set of each item, if a coverage was given."""
    unknown: Bool[Tensor, " items"] | None = None
    """Which items are of no known class, if a share to refuse was given."""

    def table(self, *, top: int = 1, reject: float | None = None) -> "DataFrame":
        """Columns item, class, probability, confidence; `class_2`, `probability_2`, … up to `top`.

        With `reject`, a column `reject` is true where the probability is below it: send these items to a
        human. Since the probabilities are calibrated, the other items are right at least that often, on data
        like the run's validation split. `sets` and `unknown` have a column if they were asked for: `set` has
        the names of its classes, joined by `|`.
        """
        import pandas as pd

        if top < 1:
            raise ValueError(f"top must be at least 1, got {top}")
        check_rejection(reject)
        p, j = self.probabilities.topk(min(top, len(self.classes)), dim=1)
        names = np.array(self.classes, dtype=object)[j.numpy()].reshape(p.shape)
        columns = {
            "item": list(self.items),
            "class": names[:, 0],
            "probability": p[:, 0].numpy(),
            "confidence": self.confidence.numpy(),
        }
        if reject is not None:
            columns["reject"] = p[:, 0].numpy() < reject
        if self.sets is not None:
            columns["set"] = ["|".join(compress(self.classes, row)) for row in self.sets.tolist()]
        if self.unknown is not None:
            columns["unknown"] = self.unknown.numpy()
        for k in range(1, p.shape[1]):
            columns |= {f"class_{k + 1}": names[:, k], f"probability_{k + 1}": p[:, k].numpy()}
        return pd.DataFrame(columns)


def check_rejection(reject: float | None) -> None:
    """Raise an error unless `reject` is a probability or None."""
    if reject is not None and not 0 <= reject <= 1:
        raise ValueError(f"reject must be a probability between 0 and 1, got {reject:g}; such as 0.9")


def predict(
    run: Run,
    sources: Sequence[str | Path],
    *,
    calibrator: str | None = "auto",
    batch_size: int = 256,
    coverage: float | None = None,
    unknown: float | None = None,
) -> Prediction:
    """Predict images (files, folders), arrays (.npz with X, .npy, a table) or texts with a run.

    `calibrator` is one of the run's, None, or "auto": the one that `evaluate` chose. Probabilities are those
    of `evaluate` and of an exported graph. The columns of a table are taken by name if the run knows the
    names of its features.

    With a `coverage` each item gets a set of classes that holds the true one with this probability
    (`decisions.LeastAmbiguousSets`); some sets are empty if the model is right more often than that.
    `unknown` is the share of items of known classes that may be called unknown (`decisions.Combined`). Both
    promises come from the run's validation items and the model as trained. They hold for items like the
    validation items; for a run on features they are approximate (see `run/held_out.py`).
    """
    plan = PredictionPlan(calibrator, coverage, unknown, batch_size).for_run(run)
    items, inputs = read_items(sources, run.columns, run.recipe.data.text)
    try:
        said = plan.of(run, inputs)
    except ValueError as error:
        if isinstance(inputs, list):  # photos and texts: an error about these names the file itself
            raise
        raise ValueError(f"{sources[0]}: {error}") from None
    return Prediction(items, run.classes, **said)


@final
@dataclass(frozen=True)
class PredictionPlan:
    """The options of a prediction: see `predict`."""

    calibrator: str | None = "auto"
    coverage: float | None = None
    unknown: float | None = None
    batch_size: int = 256

    def for_run(self, run: Run) -> "PredictionPlan":
        """The options with the run's own calibrator for "auto"; what the run cannot give is refused."""
        self._decided(run)
        run.predictor(self.calibrator)
        chosen = run.best_calibrator if self.calibrator == "auto" else self.calibrator
        return replace(self, calibrator=chosen)

    def of(self, run: Run, inputs: NewItems) -> dict[str, Tensor]:
        """What the run says of these inputs, as fields of a `Prediction`."""
        sets, refusal = self._decided(run)
        if isinstance(inputs, list) and run.recipe.data.text is None:
            inputs = _pictures(run, [Path(path) for path in inputs])
        z, reach = run.embed_and_reach(inputs, batch_size=self.batch_size)
        probabilities, confidence = run.predictor(self.calibrator).predict(z)
        found = {"probabilities": probabilities, "confidence": confidence, "embedding": z}
        if sets is not None or refusal is not None:
            said = as_trained(run.model.head, z, run.held_out.judge, reach)
            trained, known = (x.cpu() for x in said)
            found |= {} if sets is None else {"sets": sets(trained)}
            found |= {} if refusal is None else {"unknown": refusal(known)}
        return {name: value.cpu() for name, value in found.items()}

    def _decided(self, run: Run) -> tuple[LeastAmbiguousSets | None, Refusal | None]:
        sets = None if self.coverage is None else run.held_out.sets(self.coverage)
        return sets, None if self.unknown is None else run.held_out.refusal(self.unknown)


def _pictures(run: Run, paths: list[Path]) -> NDArray[np.generic] | list[Path]:
    """Images as the run takes them."""
    if run.how is None and run.recipe.data.features is None:
        raise ValueError(f"{run.path} was trained on features, not images; give an .npz file with X")
    if isinstance(run.how, data.Pixels) and run.recipe.data.thumbnail is None:
        return _small_images(paths, run.input_shape)
    return paths


def read_items(
    sources: Sequence[str | Path], columns: Sequence[data.TableFeature] = (), text: str | None = None
) -> tuple[tuple[str, ...], NewItems]:
    """Names and inputs: one array, images that are named or lie anywhere in the named folders, or texts.

    In a table with a column for each feature, `columns` says which to take and in which order; `text` names a
    column of texts.
    """
    paths = [Path(source) for source in sources]
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(2, "there is no such file or folder", str(path))
    if text is not None:
        return _texts(paths, text)
    arrays = [path for path in paths if can_predict(path)]
    if arrays and len(paths) > 1:
        raise ValueError(f"give one array file alone, or images; got {arrays[0]} among {len(paths)} sources")
    if arrays:
        x = read_unlabelled(arrays[0], columns)
        return tuple(str(i) for i in range(len(x))), x
    images = [image for path in paths for image in (images_in(path) if path.is_dir() else [path])]
    if not images:
        raise ValueError(
            f"there is no image in {', '.join(map(str, paths))}; known are {', '.join(sorted(EXTENSIONS))}"
        )
    return tuple(spelled(str(image)) for image in images), images


def _texts(paths: Sequence[Path], column: str) -> tuple[tuple[str, ...], list[str]]:
    found = [load_new_texts(path, column) for path in paths]
    for texts in found:
        require_texts(texts)
    items = [item if len(found) == 1 else f"{texts.name}: {item}" for texts in found for item in texts.items]
    return tuple(items), [text for texts in found for text in texts.texts]


def _small_images(paths: list[Path], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Images of the size that the run was trained on, as (items, channels, height, width)."""
    channels, height, width = shape
    decoded = []
    for path in paths:
        image = data.photos.decode(path).convert("L" if channels == 1 else "RGB")
        if image.size != (width, height):
            raise ValueError(
                f"{path} has {image.width}x{image.height} pixels, but this run takes {width}x{height}; "
                "resize it"
            )
        decoded.append(np.asarray(image).reshape(height, width, channels).transpose(2, 0, 1))
    return np.stack(decoded)


def write_table(frame: "DataFrame", path: Path) -> None:
    """Write a table as CSV or Parquet, by the ending of the name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    match path.suffix:
        case ".csv":
            files.write_bytes(path, frame.to_csv(index=False).encode())
        case ".parquet":
            files.write_bytes(path, frame.to_parquet(index=False))
        case _:
            raise ValueError(f"the output must end in .csv or .parquet, got {str(path)!r}")


def write_embeddings(prediction: Prediction, path: Path) -> None:
    """Write `embedding`, `confidence` and `item`: as arrays of an .npz, or as columns of a Parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    z, confidence = prediction.embedding.numpy(), prediction.confidence.numpy()
    match path.suffix:
        case ".npz":
            archive = io.BytesIO()
            np.savez(archive, embedding=z, confidence=confidence, item=np.array(prediction.items))
            files.write_bytes(path, archive.getvalue())
        case ".parquet":
            import pandas as pd

            columns = {"item": list(prediction.items), "embedding": list(z), "confidence": confidence}
            files.write_bytes(path, pd.DataFrame(columns).to_parquet(index=False))
        case _:
            raise ValueError(f"the output must end in .npz or .parquet, got {str(path)!r}")
