"""evaluate(): how good a run is on validation and test data, written into the files that reports read."""

import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from spaceform import data, metrics
from spaceform.calibrators import CALIBRATORS
from spaceform.data.stored_rows import StoredRows
from spaceform.decisions import Combined, Known
from spaceform.engine.judges import FITTED_TO
from spaceform.geometry import Sphere
from spaceform.heads.base import Head, log_mean_softmax
from spaceform.heads.stochastic import StochasticHead
from spaceform.metrics.retrieval import Retrieval, expected_retrieval, retrieval
from spaceform.run import calibrating as calibration
from spaceform.run import files, timing
from spaceform.run.allocator import give_back_freed_memory
from spaceform.run.calibrating import Calibration
from spaceform.run.feature_run import WATCHED, held_out, is_for_features, judge_of
from spaceform.run.finished import Run
from spaceform.run.held_out import HeldOut
from spaceform.run.material import Material
from spaceform.run.model import Model
from spaceform.run.pairs import fit_pairs, verification, write_pairs
from spaceform.run.predictor import Predictor, blocks_of_embeddings
from spaceform.run.quality import Tally, some_classes, some_items, value_or_none

Compared = Literal["sampled", "direction"]
"""How items of a stochastic head are compared: by sampled embeddings, as in the paper, or by the output of
the net. Other heads have the second way alone.
"""

_EMBEDDED_ROWS = 512  # inputs that the net sees at once
_COPIES = 10  # sampled copies of a data set, over which retrieval of a stochastic head is averaged
_FEW_COPIES = 3  # in classification: on 2,358 photo features copies differ by 0.02 points of mAP@R (SD)
_RECALLS = (1, 2, 4, 8, 10, 100, 1000)
_WAYS, _SHOTS, _QUERIES = 5, (1, 5), 15  # of few-shot episodes, if the classes are large enough
_SEARCHED = 3_000  # most test items that a classifier's embeddings are searched among
_MOST_KEPT, _FEWEST_KEPT, _KEPT_NUMBERS = 50_000, 5_000, 2**25
"""How many test items `outputs.npz` holds: at most the first number. With wide features or many classes
fewer, so that it holds about `_KEPT_NUMBERS` numbers, but at least `_FEWEST_KEPT` items. Metrics are of all
test items.
"""
_RETRIEVED, _VALIDATED = 64_000, 20_000  # most test and validation items of whole classes, for retrieval


@torch.inference_mode()
def validation_score(
    model: Model,
    parts: Material,
    device: torch.device,
    workers: int = 0,
    *,
    retrieval: Compared = "sampled",
) -> float:
    """Accuracy on the validation split, or Recall@1 among its held-out classes for retrieval.

    `evaluate` reports the same quantity on the test split: a run is selected by what it is judged by.
    """
    index = _searched(parts, parts.split.val, _VALIDATED)
    z = _embed(model, parts, index, device, workers)
    if parts.dataset.task == "retrieval":
        return _own_retrieval(model.head, z, parts.dataset.labels[index], retrieval, k=(1,)).recall[1]
    probabilities, _ = Predictor(model.head).predict(z)
    return float(metrics.accuracy(probabilities, parts.targets[index]))


def evaluate(
    run: Run | str | Path,
    *,
    dataset: data.Dataset | None = None,
    device: str | torch.device | None = None,
    workers: int = 0,
    seed: int = 0,
    retrieval: Compared | None = None,
) -> dict[str, Any]:
    """Measure a run on its test split, and write what was found into its folder.

    The files are `metrics.json`, `outputs.npz`, `calibrators.json`, `held_out.npz`, `pairs.safetensors` and
    `timing.json` (times alone, since a time is not the same twice).

    Classification: accuracy, NLL, Brier score and calibration error in both norms (15 equal-mass bins), as
    trained and after each calibrator, fitted on the validation split; predictions use `structured`. AUROC and
    AURC of the confidence (the norm) and of the top probability. mAP@R and Recall@1 among at most 3,000 test
    items, the same for every run; for a stochastic head the mean over 3 sampled copies of them. Probabilities
    are those that `Run.predict_proba` gives. Items are measured in blocks. If there are very many,
    `outputs.npz` has a random part of them (`outputs` says how many), the same for every run.

    Retrieval: mAP@R and Recall@k by the geometry's own similarity, and under `cosine` by the cosine of the
    net's outputs. For a stochastic head `sampled` is the mean over 10 sampled copies of the test set, which
    follow from `seed`, and `direction` compares the net's outputs; `retrieval` says by which of the two the
    run is judged (None: that of the recipe, by which the run was selected). Three more come from the net's
    outputs: `r_auroc`, whether the confidence tells if the nearest neighbour is right; `few_shot`, the
    accuracy of prototypes of 1 and of 5 items, with its 95 % interval; `verification`, how well pairs of one
    class are told from pairs of two classes, by a model that was fitted to pairs of the validation classes
    (`Run.pairs`). If there are more than 64,000 test items (`of_items`), random whole classes are searched,
    `items` in all, the same for every run.

    `device` and `workers` say where the net runs and how many processes decode photos. Data that have changed
    since training are refused: their split would differ, and test items could be training items.
    """
    give_back_freed_memory()  # what training took
    run = run if isinstance(run, Run) else Run.load(run)
    if device is not None:
        run.model.to(device)
    parts = run.material(dataset)
    with torch.inference_mode():
        if parts.dataset.task == "retrieval":
            found, outputs = _retrieval(run, parts, workers, seed, retrieval or run.recipe.retrieval)
        else:
            found, outputs = _classification(run, parts, workers, seed)
    found = {"task": parts.dataset.task, "data": parts.dataset.name, "head": run.recipe.head.name, **found}
    if numbers := run.model.head.numbers():
        found["numbers"] = numbers
    archive = io.BytesIO()
    np.savez(archive, allow_pickle=False, **outputs)
    files.write_bytes(run.path / "outputs.npz", archive.getbuffer())
    files.write_json(run.path / "metrics.json", found)
    run.refresh()
    return found


def _classification(
    run: Run, parts: Material, workers: int, seed: int
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    head = run.model.head
    samples, certain, held = _held_out(run, parts, workers)
    fitted = Calibration.fit(samples, held.labels, certain)
    held.write(run.path)
    y = parts.targets[parts.split.test]
    kept = kept_items(parts)
    tally, tallies = Tally(), {name: Tally() for name in fitted.fitted}
    confidences, outputs, seconds, at = [], [], 0.0, 0
    began = time.perf_counter()
    for z in run.model.embedded(_batches(parts, parts.split.test, run.device, workers)):
        log_probs, confidence, calibrated = _predictions(head, z, fitted)
        seconds += time.perf_counter() - began
        own, mask = y[at : at + len(z)], kept[at : at + len(z)]
        tally.add(log_probs, own)
        for name, found in calibrated.items():
            tallies[name].add(found, own)
        confidences.append(confidence)
        whole = {"embeddings": z.cpu(), "probabilities": log_probs.exp(), "confidence": confidence}
        whole |= {f"probabilities_{name}": found.exp() for name, found in calibrated.items()}
        outputs.append({name: value[mask] for name, value in whole.items()})
        at, began = at + len(z), time.perf_counter()
    timing.write(run.path, seconds, len(y))
    of_items = {name: torch.cat([part[name] for part in outputs]) for name in outputs[0]}
    correct, sure, z = tally.right, torch.cat(confidences), of_items["embeddings"].to(run.device)
    own_search = _own_retrieval(head, *_some(z, y[kept]), "sampled", k=(1,), seed=seed, copies=_FEW_COPIES)
    measured: dict[str, Any] = {
        "items": len(y),
        "validation_score": run.result["score"],
        **tally.quality,
        "auroc_confidence": value_or_none(metrics.auroc, sure, correct),
        "auroc_probability": value_or_none(metrics.auroc, tally.top, correct),
        "aurc_confidence": value_or_none(metrics.aurc, sure, correct),
        "aurc_probability": value_or_none(metrics.aurc, tally.top, correct),
        "retrieval": _of_search(own_search, z, y[kept]),
        "calibrator": fitted.chosen,
        "calibrated": {name: found.quality for name, found in tallies.items()},
    }
    if len(z) < len(y):
        measured["outputs"] = len(z)
    arrays = {
        **of_items,
        "labels": y[kept],
        "index": parts.split.test[kept],
        "classes": np.array(parts.classes),
        **_by_query(own_search),
    }
    files.write_json(run.path / calibration.CALIBRATORS_FILE, fitted.to_json())
    return measured, {name: _array(value) for name, value in arrays.items()}


def _held_out(run: Run, parts: Material, workers: int) -> tuple[Tensor, Tensor, HeldOut]:
    """Logit samples and confidences of rows that the model did not train on, and what is kept of them.

    A run on features was trained on its validation rows in the end. Then they come from the rehearsal, which
    was not.
    """
    if is_for_features(run.recipe):
        seen = list(held_out(run.path, run.recipe, parts))
        samples = torch.cat([one.logits for one in seen], dim=1)
        labels, certain, known = (
            torch.cat([getattr(one, name) for one in seen]) for name in ("y", "confidence", "known")
        )
        judge = judge_of(run.model, [one.judge for one in seen], parts)
    else:
        head, index = run.model.head, parts.split.val
        if isinstance(parts.dataset.inputs, StoredRows):
            index = index[some_items(len(index), WATCHED)]
        z = _embed(run.model, parts, index, run.device, workers)
        samples = torch.cat([head.logit_samples(part).cpu() for part in blocks_of_embeddings(head, z)], dim=1)
        labels, certain = parts.targets[index], head.confidence(z).cpu()
        train = parts.split.train[some_items(len(parts.split.train), FITTED_TO)]
        own = _embed(run.model, parts, train, run.device, workers).cpu()
        judge = Combined().fit(own, parts.targets[train], Known(z.cpu(), labels, samples, certain))
        known = judge(z.cpu(), samples)
    return samples, certain, HeldOut(log_mean_softmax(samples).exp(), labels, known, judge)


def _predictions(
    head: Head, z: Float[Tensor, "items dim"], fitted: Calibration
) -> tuple[Float[Tensor, "items classes"], Float[Tensor, " items"], dict[str, Tensor]]:
    """Log-probabilities as trained, the confidence, and log-probabilities by every calibrator."""
    plain: list[Tensor] = []
    calibrated: dict[str, list[Tensor]] = {name: [] for name in fitted.fitted}
    for part in blocks_of_embeddings(head, z):
        samples, confidence = head.logit_samples(part), head.confidence(part)
        plain.append(log_mean_softmax(samples).cpu())
        for name, calibrator in fitted.fitted.items():
            calibrated[name].append(calibrator(samples, confidence).cpu())
    joined = {name: torch.cat(found) for name, found in calibrated.items()}
    return torch.cat(plain), head.confidence(z).cpu(), joined


def _retrieval(
    run: Run, parts: Material, workers: int, seed: int, compared: Compared
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    head, index = run.model.head, _searched(parts, parts.split.test, _RETRIEVED)
    began = time.perf_counter()
    z, y = _embed(run.model, parts, index, run.device, workers), parts.dataset.labels[index]
    timing.write(run.path, time.perf_counter() - began, len(z))
    emitted = retrieval(z, y, head.geometry, k=_RECALLS)
    ranks = {"direction": _ranks(emitted)}
    ranks["cosine"] = (
        ranks["direction"]
        if isinstance(head.geometry, Sphere)
        else _ranks(retrieval(z, y, Sphere(), k=_RECALLS))
    )
    if isinstance(head, StochasticHead):
        ranks["sampled"] = _ranks(_own_retrieval(head, z, y, "sampled", k=_RECALLS, seed=seed))
    judged_by = compared if compared in ranks else "direction"
    found = {
        "items": len(y),
        **({} if len(y) == len(parts.split.test) else {"of_items": len(parts.split.test)}),
        "validation_score": run.result["score"],
        "judged_by": judged_by,
        **ranks[judged_by],
        **ranks,
        "r_auroc": value_or_none(metrics.r_auroc, head.confidence(z), emitted),
        "few_shot": _few_shot(head, z, y, seed),
        **_pairs(run, parts, workers, z, y),
    }
    outputs = {
        "embeddings": z,
        "labels": y,
        "confidence": head.confidence(z),
        "index": index,
        "classes": np.array(parts.dataset.classes),
    }
    return found, {name: _array(value) for name, value in outputs.items()}


def _pairs(
    run: Run, parts: Material, workers: int, z: Float[Tensor, "items dim"], y: Int64[Tensor, " items"]
) -> dict[str, Any]:
    """Fit a model of "same or not" to the validation classes, keep it, and measure it on the test classes."""
    index = _searched(parts, parts.split.val, _VALIDATED)
    held = _embed(run.model, parts, index, run.device, workers)
    with torch.inference_mode(False), torch.enable_grad():
        pairs = fit_pairs(run.model.head.geometry, held.clone(), parts.dataset.labels[index])
    if pairs is None:
        return {}
    write_pairs(pairs, run.path)
    kept = (z != 0).any(-1).cpu()
    sizes = y[kept].unique(return_counts=True)[1]
    if len(sizes) < 2 or int(sizes.max()) < 2:
        return {}
    return {"verification": verification(pairs, z.cpu()[kept], y[kept])}


def _few_shot(
    head: Head, z: Float[Tensor, "items dim"], y: Int64[Tensor, " items"], seed: int
) -> dict[str, float | int]:
    """Accuracy of the nearest prototype of 1 and of 5 items, if half of the classes have enough items."""
    sizes = y.unique(return_counts=True)[1]
    found: dict[str, float | int] = {"ways": min(_WAYS, (len(sizes) + 1) // 2)}
    for shots in _SHOTS:
        queries = min(_QUERIES, int(sizes.median()) - shots)
        if queries < 1 or found["ways"] < 2:
            continue
        generator = torch.Generator().manual_seed(seed)
        accuracy, low, high, _ = metrics.few_shot_accuracy(
            z, y, head.geometry, ways=int(found["ways"]), shots=shots, queries=queries, generator=generator
        )
        found |= {f"accuracy_{shots}": accuracy, f"low_{shots}": low, f"high_{shots}": high}
    return found


def _own_retrieval(
    head: Head,
    z: Float[Tensor, "items dim"],
    y: Int64[Tensor, " items"],
    compared: Compared,
    *,
    k: tuple[int, ...],
    seed: int = 0,
    copies: int = _COPIES,
) -> Retrieval:
    """Retrieval by the geometry's own similarity; with `sampled` over sampled copies of a stochastic head."""
    if compared == "direction" or not isinstance(head, StochasticHead):
        return retrieval(z, y, head.geometry, k=k)
    return expected_retrieval(_copies(head, z, seed, copies), y, head.geometry, k=k)


def found_within_classes(z: Float[Tensor, "items dim"], y: Int64[Tensor, " items"]) -> Retrieval:
    """How well vectors find their own class by the cosine, among as many items as for a classifier."""
    return retrieval(*_some(z, y), Sphere(), k=(1,))


def kept_items(parts: Material) -> Bool[Tensor, " test"]:
    """The test items whose predictions are kept, the same for every run on these data."""
    most = _MOST_KEPT
    if parts.dataset.kind == "features":
        numbers = parts.input_shape[0] + (1 + len(CALIBRATORS)) * len(parts.classes)
        most = min(_MOST_KEPT, max(_FEWEST_KEPT, _KEPT_NUMBERS // numbers))
    return some_items(len(parts.split.test), most)


def _some(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """At most 3,000 items to search among, the same for every run."""
    some = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:_SEARCHED].sort().values
    return z[some.to(z.device)], y[some]


def _of_search(own: Retrieval, z: Tensor, y: Tensor) -> dict[str, float | int | None]:
    """How well the embeddings of a classifier find their own class, by its geometry and by the cosine."""
    return {
        "items": len(own.average_precision),
        "map_at_r": value_or_none(float, own.map_at_r),
        "recall_at_1": value_or_none(float, own.recall[1]),
        "cosine_map_at_r": value_or_none(float, found_within_classes(z, y).map_at_r),
    }


def _by_query(own: Retrieval) -> dict[str, Tensor]:
    return {
        "average_precision": own.average_precision.float(),
        "nearest_is_own": torch.where(own.first_rank.isnan(), torch.nan, (own.first_rank <= 1).float()),
    }


def _ranks(found: Retrieval) -> dict[str, float]:
    return {
        "map_at_r": found.map_at_r,
        "r_precision": found.r_precision,
        **{f"recall_at_{k}": value for k, value in found.recall.items()},
    }


def _copies(
    head: StochasticHead, z: Float[Tensor, "items dim"], seed: int, copies: int
) -> Iterator[Float[Tensor, "items dim"]]:
    generator = torch.Generator(z.device).manual_seed(seed)
    for _ in range(copies):
        yield torch.cat([head.sample(part, 1, generator=generator)[0] for part in z.split(_EMBEDDED_ROWS)])


def _embed(
    model: Model, parts: Material, index: Int64[Tensor, " part"], device: torch.device, workers: int
) -> Float[Tensor, "part dim"]:
    return model.embed(_batches(parts, index, device, workers))


def _batches(
    parts: Material, index: Int64[Tensor, " part"], device: torch.device, workers: int
) -> Iterator[Tensor]:
    return data.evaluation_batches(
        parts.dataset, index, parts.how, device=device, workers=workers, batch_size=_EMBEDDED_ROWS
    )


def _searched(parts: Material, index: Int64[Tensor, " part"], most: int) -> Int64[Tensor, " some"]:
    """The items to search among in retrieval; in classification all items."""
    if parts.dataset.task != "retrieval":
        return index
    return some_classes(index, parts.dataset.labels[index], most)


def _array(value: Any) -> NDArray[Any]:
    return value.cpu().numpy() if isinstance(value, Tensor) else value
