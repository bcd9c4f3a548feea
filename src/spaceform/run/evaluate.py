"""evaluate(): what a run is worth on validation and test data, and the files that reports read."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from spaceform import calibrators, data, metrics
from spaceform.geometry import Sphere
from spaceform.heads.base import Head, StochasticHead, log_mean_softmax
from spaceform.metrics.retrieval import Retrieval, expected_retrieval, retrieval
from spaceform.run import files
from spaceform.run.finished import Run
from spaceform.run.material import Material, material
from spaceform.run.model import Model
from spaceform.run.recipe import RecipeError

_ROWS = 512  # embeddings that meet the head at once
_COPIES = 10  # sampled copies of a data set, over which retrieval of a stochastic head is averaged
_RECALLS = (1, 2, 4, 8, 10, 100, 1000)
_SEARCHED = 3_000  # most test items that a classifier's embeddings are searched among


@torch.inference_mode()
def validation_score(model: Model, parts: Material, device: torch.device, workers: int = 0) -> float:
    """Accuracy on the validation split, or Recall@1 among its held-out classes for retrieval."""
    index = parts.split.val
    z = model.embed(
        data.evaluation_batches(
            parts.dataset, index, parts.how, device=device, workers=workers, batch_size=_ROWS
        )
    )
    if parts.dataset.task == "retrieval":
        return retrieval(z, parts.dataset.labels[index], model.head.geometry, k=(1,)).recall[1]
    generator = torch.Generator(z.device).manual_seed(0)
    probs = torch.cat([model.head.predict_proba(part, generator=generator) for part in z.split(_ROWS)])
    return float(metrics.accuracy(probs, parts.targets[index]))


def evaluate(
    run: Run | str | Path,
    *,
    dataset: data.Dataset | None = None,
    device: str | torch.device | None = None,
    workers: int = 0,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure a run on its test split; write `metrics.json`, `outputs.npz`, `calibrators.json` in its folder.

    Classification: accuracy, NLL, Brier score and calibration error in both norms (15 equal-mass bins), as
    trained and after each calibrator, fitted on the validation split, which also chooses one for predictions;
    AUROC and AURC of the confidence (the norm) and of the top probability; mAP@R and Recall@1 among 3,000
    test items at most, the same for every run. Retrieval: mAP@R and Recall@k by the geometry's own
    similarity, for a stochastic head the mean over 10 sampled copies of the test set; and by the cosine of
    what the net emits. What is drawn follows from `seed`. Data that changed since training are refused: the
    split would be another, and what trained would test.
    """
    run = run if isinstance(run, Run) else Run.load(run)
    if device is not None:
        run.model.to(device)
    parts = material(run.recipe, dataset)
    if run.result["data"] != parts.fingerprint:
        raise RecipeError(
            f"the data {run.recipe.data.name!r} is not what the run in {run.path} was trained on: "
            "bring it back, or train again in another folder"
        )
    measure = _retrieval if parts.dataset.task == "retrieval" else _classification
    with torch.inference_mode():
        found, outputs = measure(run, parts, workers, seed)
    found = {"task": parts.dataset.task, "data": parts.dataset.name, "head": run.recipe.head.name, **found}
    archive = io.BytesIO()
    np.savez(archive, allow_pickle=False, **outputs)
    files.write_bytes(run.path / "outputs.npz", archive.getvalue())
    files.write_json(run.path / "metrics.json", found)
    return found


def _classification(
    run: Run, parts: Material, workers: int, seed: int
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    head = run.model.head
    z = _embed(run, parts, parts.split.test, workers)
    y = parts.targets[parts.split.test]
    confidence = head.confidence(z).cpu()
    generator = torch.Generator(z.device).manual_seed(seed)
    logits = _logit_samples(head, z, generator)
    log_probs = log_mean_softmax(logits)
    correct = log_probs.argmax(1) == y
    found: dict[str, Any] = {
        "items": len(y),
        "validation_score": run.result["score"],
        **_quality(log_probs, y),
        "auroc_confidence": _number(metrics.auroc, confidence, correct),
        "auroc_probability": _number(metrics.auroc, log_probs.amax(1), correct),
        "aurc_confidence": _number(metrics.aurc, confidence, correct),
        "aurc_probability": _number(metrics.aurc, log_probs.amax(1), correct),
        "retrieval": _search_within_classes(head, z, y, seed),
        "calibrator": "",
        "calibrated": {},
    }
    outputs = {
        "embeddings": z,
        "labels": y,
        "probabilities": log_probs.exp(),
        "confidence": confidence,
        "index": parts.split.test,
        "classes": np.array(parts.classes),
    }
    z_val = _embed(run, parts, parts.split.val, workers)
    y_val, confidence_val = parts.targets[parts.split.val], head.confidence(z_val).cpu()
    logits_val = _logit_samples(head, z_val, generator)
    found["calibrator"] = chosen = calibrators.choose(logits_val, y_val, confidence_val).kind
    fitted: dict[str, Any] = {}
    for name in sorted(calibrators.CALIBRATORS, key=lambda name: name != chosen):  # it comes first
        calibrator = calibrators.CALIBRATORS[name]().fit(logits_val, y_val, confidence_val)
        fitted[name] = calibrator.to_dict()
        calibrated = calibrator(logits, confidence)
        found["calibrated"][name] = _quality(calibrated, y)
        outputs[f"probabilities_{name}"] = calibrated.exp()
    files.write_json(run.path / "calibrators.json", fitted)
    return found, {name: _array(value) for name, value in outputs.items()}


def _retrieval(
    run: Run, parts: Material, workers: int, seed: int
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    head = run.model.head
    index = parts.split.test
    z, y = _embed(run, parts, index, workers), parts.dataset.labels[index]
    generator = torch.Generator(z.device).manual_seed(seed)
    own = expected_retrieval(_copies(head, z, generator), y, head.geometry, k=_RECALLS)
    found = {
        "items": len(y),
        "validation_score": run.result["score"],
        **_ranks(own),
        "cosine": _ranks(retrieval(z, y, Sphere(), k=_RECALLS)),
    }
    outputs = {
        "embeddings": z,
        "labels": y,
        "confidence": head.confidence(z),
        "index": index,
        "classes": np.array(parts.dataset.classes),
    }
    return found, {name: _array(value) for name, value in outputs.items()}


def _search_within_classes(
    head: Head, z: Float[Tensor, "items dim"], y: Int64[Tensor, " items"], seed: int
) -> dict[str, float | int | None]:
    """How well the embeddings of a classifier find their own class, by its geometry and by the cosine."""
    some = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:_SEARCHED].sort().values
    z, y = z[some.to(z.device)], y[some]
    generator = torch.Generator(z.device).manual_seed(seed)
    own = expected_retrieval(_copies(head, z, generator), y, head.geometry, k=(1,))
    return {
        "items": len(y),
        "map_at_r": _number(float, own.map_at_r),
        "recall_at_1": _number(float, own.recall[1]),
        "cosine_map_at_r": _number(float, retrieval(z, y, Sphere(), k=(1,)).map_at_r),
    }


def _quality(
    log_probs: Float[Tensor, "items classes"], y: Int64[Tensor, " items"]
) -> dict[str, float | None]:
    probs = log_probs.exp()
    return {
        "accuracy": _number(metrics.accuracy, log_probs, y),
        "nll": _number(metrics.nll, log_probs, y),
        "brier": _number(metrics.brier, probs, y),
        "calibration_error_l1": _number(metrics.calibration_error, probs, y, norm="l1"),
        "calibration_error_l2": _number(metrics.calibration_error, probs, y, norm="l2"),
    }


def _ranks(found: Retrieval) -> dict[str, float]:
    return {
        "map_at_r": found.map_at_r,
        "r_precision": found.r_precision,
        **{f"recall_at_{k}": value for k, value in found.recall.items()},
    }


def _copies(
    head: Head, z: Float[Tensor, "items dim"], generator: torch.Generator
) -> Iterator[Float[Tensor, "items dim"]]:
    if not isinstance(head, StochasticHead):
        yield z
        return
    for _ in range(_COPIES):
        yield torch.cat([head.sample(part, 1, generator=generator)[0] for part in z.split(_ROWS)])


def _logit_samples(
    head: Head, z: Float[Tensor, "items dim"], generator: torch.Generator
) -> Float[Tensor, "draws items classes"]:
    return torch.cat([head.logit_samples(part, generator=generator).cpu() for part in z.split(_ROWS)], dim=1)


def _embed(
    run: Run, parts: Material, index: Int64[Tensor, " part"], workers: int
) -> Float[Tensor, "part dim"]:
    device = next(run.model.parameters()).device
    return run.model.embed(
        data.evaluation_batches(
            parts.dataset, index, parts.how, device=device, workers=workers, batch_size=_ROWS
        )
    )


def _number(metric: Any, *args: Any, **options: Any) -> float | None:
    """None where a metric does not exist, such as the AUROC of predictions that are all right."""
    value = float(metric(*args, **options))
    return value if np.isfinite(value) else None


def _array(value: Any) -> NDArray[Any]:
    return value.cpu().numpy() if isinstance(value, Tensor) else value
