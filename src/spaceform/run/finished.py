"""A finished run, read from its folder.

`train` writes `recipe.json`, `history.jsonl`, `model.safetensors` and, last, `result.json`; `evaluate` adds
`metrics.json`, `calibrators.json`, `held_out.npz`, `pairs.safetensors` and `outputs.npz`. Checkpoints, and
then `result.json`, keep a fingerprint of the data.
"""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from spaceform import data
from spaceform.calibrators import Calibrator
from spaceform.decisions import Pairs
from spaceform.foundation.messages import at_row, counted
from spaceform.nets.pretrained import FrozenNet, frozen_net
from spaceform.nets.sentences import SentenceNet, sentence_net
from spaceform.run import stored
from spaceform.run.calibrating import CALIBRATORS_FILE, Calibration, read_calibration
from spaceform.run.frozen import features_of, read_by
from spaceform.run.held_out import HeldOut
from spaceform.run.material import Material, material, read_preprocessing
from spaceform.run.model import Model
from spaceform.run.pairs import read_pairs
from spaceform.run.predictor import Predictor
from spaceform.run.recipe import Recipe, RecipeError, unknown

Inputs: TypeAlias = "Tensor | NDArray[Any] | Sequence[str | Path] | str | Path"


@final
class Run:
    """A finished run, read from its folder: `Run.load(path).predict_proba(images)`."""

    def __init__(
        self, path: Path, recipe: Recipe, result: stored.Result, state: stored.WeightsState, model: Model
    ) -> None:
        self.path = path
        self.recipe = recipe
        self.result = result
        """`epochs`, `best_epoch`, `score` (of validation), `seconds`; `data`, the fingerprint of the data;
        `made_with`, the versions and the commit.
        """
        self.classes: tuple[str, ...] = tuple(state["classes"])
        self.input_shape: tuple[int, ...] = tuple(state["input_shape"])
        self.columns: tuple[data.TableFeature, ...] = tuple(
            data.TableFeature(**one) for one in state["columns"]
        )
        """The features in order, if the file that the run was trained on has names for them."""
        self.made_by = state["made_by"]
        """A digest of the weights of `frozen` or `reader`."""
        self.model = model.eval()
        self.how = read_preprocessing(state["preprocessing"])

    @classmethod
    def load(
        cls, path: str | Path, *, net: nn.Module | None = None, device: str | torch.device = "cpu"
    ) -> "Run":
        """Read a run. `net` is needed if it was trained with a module of your own."""
        path = Path(path)
        if not path.is_dir():
            raise RecipeError(
                f"there is no run {str(path)!r}; give the folder that `spaceform train --out` wrote"
            )
        recipe = stored.read_recipe(path)
        if recipe is None or not (path / "result.json").exists():
            if (path / "study.json").exists():
                inside = sorted(found.parent for found in path.glob("runs/*/result.json"))
                example = f", for example {inside[0]}" if inside else ""
                raise RecipeError(f"{path} is a study of many runs; give one of {path / 'runs'}{example}")
            raise RecipeError(f"{path} holds no finished run; train it first, with --out {path}")
        result = stored.read_result(path)
        model, state = stored.read_model(path, recipe, result["digests"]["weights"], net)
        return cls(path, recipe, result, state, model.to(device))

    @cached_property
    def frozen(self) -> FrozenNet | None:
        """The pretrained net whose features of photos the run was trained on, or None."""
        wanted = self.recipe.data
        if wanted.features is None or wanted.text is not None:
            return None
        net = frozen_net(wanted.features, wanted.weights)
        self._require_same(net)
        return net.to(self.device)

    @cached_property
    def reader(self) -> SentenceNet | None:
        """The pretrained net whose features of texts the run was trained on, or None."""
        wanted = self.recipe.data
        if wanted.text is None:
            return None
        net = sentence_net(wanted.features, str(self.device))
        self._require_same(net)
        return net

    def _require_same(self, net: FrozenNet | SentenceNet) -> None:
        if net.digest != self.made_by:
            raise RecipeError(
                f"{self.path} was trained on features of {net.name!r} with other weights than those of "
                f"{net.origin}; get the weights that it was trained with"
            )

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record for each epoch: loss, validation score, learning rate, seconds."""
        return stored.read_history(self.path)

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """What `evaluate` measured."""
        return stored.read_metrics(self.path)

    @cached_property
    def _calibration(self) -> Calibration | None:
        there = (self.path / CALIBRATORS_FILE).exists()
        return read_calibration(self.path, len(self.classes)) if there else None

    @cached_property
    def held_out(self) -> HeldOut:
        """What the run says of the validation items, for sets of classes and "unknown"; from `evaluate`."""
        return HeldOut.read(self.path, len(self.classes), self.model.head.dim)

    @cached_property
    def pairs(self) -> Pairs:
        """Whether two embeddings share a class: `run.pairs.same(z1, z2)`; the model comes from `evaluate`."""
        return read_pairs(self.path, self.model.head.geometry)

    @property
    def calibrators(self) -> Mapping[str, Calibrator]:
        """The calibrators that `evaluate` fitted on the validation split, by name; none for retrieval."""
        return {} if self._calibration is None else self._calibration.fitted

    @property
    def best_calibrator(self) -> str | None:
        """The name of the calibrator that predictions use; None if there is no calibrator."""
        return None if self._calibration is None else self._calibration.chosen

    def material(self, dataset: data.Dataset | None = None) -> Material:
        """The data of the run, or `dataset` for them; what has changed since training is refused."""
        parts = material(self.recipe, dataset)
        if self.result["data"] != parts.fingerprint:
            raise RecipeError(
                f"the data {self.recipe.data.name!r} is not what the run in {self.path} was trained on: "
                "bring it back, or train again in another folder"
            )
        return parts

    def refresh(self) -> None:
        """Forget what was read of the files of `evaluate`, so that they are read again."""
        for name in ("metrics", "_calibration", "held_out", "pairs"):
            self.__dict__.pop(name, None)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    def predictor(self, calibrator: str | None = "auto") -> Predictor:
        """The head with one of `calibrators`: "auto" is `best_calibrator`, None takes no calibrator.

        If the run has no calibrators, "auto" takes none, with a warning.
        """
        if calibrator == "auto":
            calibrator = self.best_calibrator
            if calibrator is None:
                warnings.warn(self._uncalibrated(), stacklevel=3)
        if calibrator is None:
            return Predictor(self.model.head)
        if calibrator not in self.calibrators:
            if self.calibrators:
                raise RecipeError(unknown("calibrator", calibrator, self.calibrators))
            raise RecipeError(f"there is no calibrator {calibrator!r}: {self._uncalibrated()}")
        return Predictor(self.model.head, self.calibrators[calibrator])

    def _uncalibrated(self) -> str:
        path = self.path / "metrics.json"
        if path.exists() and self.metrics.get("task") == "retrieval":
            return f"probabilities of {self.path} are uncalibrated: it was trained for retrieval"
        return f"probabilities of {self.path} are uncalibrated: run `spaceform evaluate {self.path}` first"

    def embed(self, inputs: Inputs, *, batch_size: int = 512) -> Float[Tensor, "items dim"]:
        """Embeddings of images (uint8, or float in 0..1), features, paths of photos, or texts.

        A single path or text is a list of one.
        """
        return self.model.embed(self._batches(inputs, batch_size))

    def embed_and_reach(
        self, inputs: Inputs, *, batch_size: int = 512
    ) -> tuple[Float[Tensor, "items dim"], Float[Tensor, " items"] | None]:
        """`embed`, and how far rows of features lie from the training rows, which "unknown" needs."""
        return self.model.embed_and_reach(self._batches(inputs, batch_size))

    def predict_proba(
        self,
        inputs: Inputs,
        *,
        calibrator: str | None = "auto",
        batch_size: int = 512,
        seed: int | None = None,
    ) -> Float[Tensor, "items classes"]:
        """p(y | input) in the order of `classes`, by one of `calibrators`, or as trained with None.

        "auto" is `best_calibrator`. The probabilities of an item do not depend on the other items. They are
        those of `evaluate`, `spaceform predict` and exported graphs: stochastic heads predict from fixed
        draws. With a `seed` the draws are random.
        """
        predictor = self.predictor(calibrator)
        z = self.embed(inputs, batch_size=batch_size)
        generator = None if seed is None else torch.Generator(z.device).manual_seed(seed)
        return predictor.predict(z, generator)[0]

    @torch.inference_mode()
    def confidence(self, inputs: Inputs, *, batch_size: int = 512) -> Float[Tensor, " items"]:
        """How sure the net is of each embedding."""
        return self.model.head.confidence(self.embed(inputs, batch_size=batch_size))

    def _batches(self, inputs: Inputs, batch_size: int) -> Iterator[Tensor]:
        inputs = [inputs] if isinstance(inputs, str | Path) else inputs
        if not isinstance(inputs, Tensor | np.ndarray) and self.reader is not None:
            yield from (x.to(self.device) for x in read_by([str(text) for text in inputs], self.reader))
            return
        if not isinstance(inputs, Tensor | np.ndarray) and self.frozen is not None:
            yield from features_of([Path(path) for path in inputs], self.frozen)
            return
        if isinstance(self.how, data.Photos) and not isinstance(inputs, Tensor | np.ndarray):
            for start in range(0, len(inputs), batch_size):
                yield torch.stack([self.how.evaluate(Path(p)) for p in inputs[start : start + batch_size]])
            return
        if not isinstance(inputs, Tensor | np.ndarray) and self.recipe.data.thumbnail is not None:
            inputs = data.shrunk([Path(path) for path in inputs], self.recipe.data.thumbnail)
        if not isinstance(inputs, Tensor | np.ndarray):
            raise TypeError(
                f"this run takes arrays of shape (items, {', '.join(map(str, self.input_shape))})"
            )
        x = torch.as_tensor(inputs)
        if tuple(x.shape[1:]) != self.input_shape:
            wanted = ", ".join(map(str, ("items", *self.input_shape)))
            raise ValueError(
                f"inputs must have shape ({wanted}), got {tuple(x.shape)}; {self._remedy(tuple(x.shape))}"
            )
        if len(x) == 0:
            raise ValueError("inputs are empty; give at least one item")
        if isinstance(self.how, data.Pixels):
            x = _pixels(x)
        elif x.is_floating_point() and not x.isfinite().all():
            first = at_row(int((~x.isfinite()).flatten(1).any(1).nonzero()[0]))
            raise ValueError(
                f"inputs must be finite, but {first} has NaN or infinite values; remove or fill such rows"
            )
        for part in x.split(batch_size):
            yield self.how.evaluate(part) if isinstance(self.how, data.Pixels) else part.float()

    def _remedy(self, shape: tuple[int, ...]) -> str:
        """What to do with inputs of this shape."""
        wanted = self.input_shape
        if shape == wanted:
            return "give a single item as x[None]"
        if len(wanted) == 1:
            if math.prod(shape[1:]) == wanted[0]:
                return "give one row of features an item, by x.reshape(len(x), -1)"
            same = "made by the same program" if not self.columns else "of the same columns"
            return f"give the {wanted[0]:,} features {same} in the same order as in training"
        channels, height, width = wanted
        if shape[1:] == (height, width, channels):
            return "put channels first, by np.moveaxis(x, -1, 1) or x.permute(0, 3, 1, 2)"
        if shape[1:] == (height, width):
            return "add the axis of channels, by x[:, None]"
        if len(shape) == 2 and shape[1] == math.prod(wanted):
            return f"give images, by x.reshape(-1, {channels}, {height}, {width})"
        return f"give images of {width}x{height} pixels with {counted(channels, 'channel')}, channels first"


def _pixels(x: Tensor) -> Tensor:
    """Images as floats of 0 to 1. Integers are pixels of 0 to 255, other numbers are shares of white."""
    if x.dtype == torch.uint8 or len(x) == 0:
        return x
    most = 1.0 if x.is_floating_point() else 255
    low, high = x.amin().item(), x.amax().item()
    if math.isnan(low):
        raise ValueError("images must not hold NaN; remove such images, or fill the gaps")
    if not (low >= 0 and high <= most):
        kind = (
            "floating-point images must lie in 0 to 1" if most == 1 else "integer images must lie in 0 to 255"
        )
        remedy = "; divide by the largest possible value" if math.isfinite(high) and low >= 0 else ""
        raise ValueError(f"{kind}, got values from {low:g} to {high:g}{remedy}")
    return (x * 255).round().to(torch.uint8) if most == 1 else x.to(torch.uint8)
