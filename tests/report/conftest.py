"""Studies made of synthetic outputs: what `train` and `evaluate` leave in a folder, without the training."""

import io
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spaceform import metrics
from spaceform.run.recipe import PAPER, Recipe, load_recipe, replace
from spaceform.study.folder import Job, StudyFolder

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def write_run(
    folder: Path,
    recipe: Recipe,
    labels: np.ndarray,
    index: np.ndarray,
    classes: Sequence[str],
    *,
    dim: int,
    noise: float,
) -> None:
    """Gaussian clouds about random class means; probabilities from distances, too sure of themselves."""
    rng = np.random.default_rng([recipe.seed, len(recipe.head.name), dim])
    centres = rng.normal(size=(len(classes), dim)) * 3
    z = (centres[labels] + noise * rng.normal(size=(len(labels), dim))).astype(np.float32)
    logits = -((z[:, None] - centres) ** 2).sum(-1) / 2 if len(labels) < 5000 else 2 * z @ centres.T / 3
    probs = softmax(logits).astype(np.float32)
    scaled = softmax(logits / 1.7).astype(np.float32)
    confidence = np.linalg.norm(z, axis=1)
    right = probs.argmax(1) == labels

    def quality(p: np.ndarray) -> dict[str, float]:
        return {
            "accuracy": float(metrics.accuracy(p, labels)),
            "nll": float(metrics.nll(np.log(p.clip(1e-30)), labels)),
            "brier": float(metrics.brier(p, labels)),
            "calibration_error_l1": float(metrics.calibration_error(p, labels, norm="l1")),
            "calibration_error_l2": float(metrics.calibration_error(p, labels)),
        }

    auroc = float(metrics.auroc(confidence, right))
    found: dict[str, Any] = {
        "task": "classification",
        "data": recipe.data.name,
        "head": recipe.head.name,
        "items": len(labels),
        **quality(probs),
        "auroc_confidence": auroc if np.isfinite(auroc) else None,
        "calibrated": {"temperature": quality(scaled)},
    }
    if recipe.data.task == "retrieval":
        ranks = {"map_at_r": 0.4 + rng.uniform(0, 0.1), "recall_at_1": 0.7}
        found = {"task": "retrieval", "data": recipe.data.name, "items": len(labels), **ranks}
        found["cosine"] = {"map_at_r": 0.45 + rng.uniform(0, 0.1), "recall_at_1": 0.7}
    folder.mkdir(parents=True)
    epochs = [
        {"epoch": i, "loss": 2.0 / (i + 1), "score": 0.9 * i / (i + 1), "lr": 0.1, "seconds": 1.0}
        for i in range(5)
    ]
    for record in epochs:
        if recipe.head.name not in ("standard", "hyperbolic"):
            record["beta"] = 4.0 + record["epoch"]
    (folder / "recipe.json").write_text(recipe.to_json())
    (folder / "history.jsonl").write_text("".join(json.dumps(record) + "\n" for record in epochs))
    (folder / "result.json").write_text(json.dumps({"epochs": 5, "score": 0.72, "seconds": 5.0}))
    (folder / "metrics.json").write_text(json.dumps(found))
    arrays = {
        "embeddings": z,
        "labels": labels,
        "confidence": confidence,
        "index": index,
        "classes": np.array(classes),
    }
    if recipe.data.task != "retrieval":
        arrays |= {"probabilities": probs, "probabilities_temperature": scaled}
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    (folder / "outputs.npz").write_bytes(stream.getvalue())


MakeStudy = Callable[..., StudyFolder]


@pytest.fixture(scope="session")
def make_study() -> MakeStudy:
    """`make_study(folder, heads=..., seeds=2, data="digits", ...)` plans a study and fills it with runs."""

    def make(
        folder: Path,
        *,
        heads: Sequence[str] = ("standard", "hyperbolic", "cosine", "vmf"),
        seeds: int = 2,
        data: str = "digits",
        classes: Sequence[str] = tuple("0123456789"),
        items: int = 300,
        dim: int = 3,
        noise: float = 1.2,
        labels: np.ndarray | None = None,
        index: np.ndarray | None = None,
        task: str | None = None,
        net: str | None = None,
        jobs: Sequence[Job] | None = None,
    ) -> StudyFolder:
        changes = {"data.name": data, "data.task": task, "net.dim": dim}
        if net is None and f"{data}/standard" in PAPER:
            net = PAPER[f"{data}/standard"].net.name
        changes |= {} if net is None else {"net.name": net}
        if jobs is None:
            jobs = [
                Job(f"{head}-seed{seed}", head, replace(load_recipe(f"digits/{head}"), changes, seed=seed))
                for head in heads
                for seed in range(seeds)
            ]
        study = StudyFolder.plan(folder, jobs, {"budget": "synthetic"})
        y = np.arange(items) % len(classes) if labels is None else labels
        where = np.arange(len(y)) if index is None else index
        for job in jobs:
            write_run(study.path(job), job.recipe, y.astype(np.int64), where, classes, dim=dim, noise=noise)
        return study

    return make


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="pip install playwright runs the page in a browser"
    )
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(
            "no browser: install Debian's package chromium (apt-get install chromium) or Google Chrome"
        )
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS, timeout=0)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, html):
    """`opened(width=..., scheme=...)` is the page, ready; in the end nothing was logged or asked for."""
    contexts, troubles = [], []

    def open_page(width: int = 1200, scheme: str = "light", path: Path = html) -> Any:
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        contexts.append(context)
        context.set_default_timeout(0)  # the machine may be busy; pytest's own limit ends what hangs
        page = context.new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith("data:") or request.url == path.as_uri()
                else troubles.append(request.url)
            ),
        )
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []
