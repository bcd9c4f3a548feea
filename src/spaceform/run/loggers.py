"""Loggers for training curves, beside the run's own folder. Their packages are imported when needed."""

import spaceform.foundation.fabric  # noqa: F401 (before lightning_fabric is imported)

import importlib
import importlib.util
from abc import ABC
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from lightning_fabric.loggers.logger import Logger, rank_zero_experiment
from lightning_fabric.utilities.rank_zero import rank_zero_only

from spaceform.run.recipe import Recipe, RecipeError, flatten, unknown


class _RunLogger(Logger, ABC):
    """A logger that has the name of the run's folder, and knows its recipe."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self._folder, self._recipe = folder, recipe
        self._run: Any = None

    @property
    def name(self) -> str:
        return "spaceform"

    @property
    def version(self) -> str:
        return self._folder.name


@final
class MLflowLogger(_RunLogger):
    """A run of MLflow, at the tracking server that MLFLOW_TRACKING_URI names, or in a local folder."""

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        mlflow = importlib.import_module("mlflow")
        if self._run is None:
            mlflow.set_experiment(self.name)
            self._run = mlflow.start_run(run_name=self.version)
            mlflow.log_params(flatten(self._recipe))
        return mlflow

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.experiment.log_metrics(metrics, step=step)

    @rank_zero_only
    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        self.experiment.log_params(params)

    @rank_zero_only
    def finalize(self, status: str) -> None:  # noqa: ARG002 (the base class has it)
        self.experiment.end_run()


@final
class WandbLogger(_RunLogger):
    """A run of Weights & Biases, resumed under the same name when training goes on."""

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        if self._run is None:
            wandb = importlib.import_module("wandb")
            self._run = wandb.init(
                project=self.name,
                name=self.version,
                id=f"{self.version}-{self._recipe.digest[:12]}",
                resume="allow",
                dir=str(self._folder),
                config=flatten(self._recipe),
            )
        return self._run

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.experiment.log(metrics, step=step)

    @rank_zero_only
    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        self.experiment.config.update(params)

    @rank_zero_only
    def finalize(self, status: str) -> None:  # noqa: ARG002 (the base class has it)
        self.experiment.finish()


def _tensorboard(folder: Path, recipe: Recipe) -> Logger:  # noqa: ARG001 (the others write the recipe)
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    return TensorBoardLogger(root_dir=folder, name="tensorboard", version="")


LOGGERS: dict[str, tuple[str, Callable[[Path, Recipe], Logger]]] = {
    "tensorboard": ("tensorboard", _tensorboard),
    "mlflow": ("mlflow", MLflowLogger),
    "wandb": ("wandb", WandbLogger),
}


def make_logger(name: str, folder: Path, recipe: Recipe) -> Logger:
    """The logger `name`; a sentence where its package is not installed."""
    if name not in LOGGERS:
        raise RecipeError(unknown("logger", name, LOGGERS))
    package, make = LOGGERS[name]
    if importlib.util.find_spec(package) is None:
        raise RecipeError(f"logging to {name} needs the package {package!r}: pip install {package}")
    return make(folder, recipe)
