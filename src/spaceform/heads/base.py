"""The base of all heads: embeddings and labels in, an objective out; embeddings in, probabilities out."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Generator, Tensor, nn

from spaceform.geometry import Geometry
from spaceform.heads._checks import (
    check_label_options,
    checked_embeddings,
    checked_labels,
    checked_soft_labels,
    is_positive_integer,
    values_readable,
)
from spaceform.heads._kernels.class_shard import ClassShard, TopK
from spaceform.heads._kernels.softmax import chunk_size
from spaceform.heads.declaration import Range, Start
from spaceform.heads.soft_labels import SoftLabels, TrainingLogits, soft_cross_entropy
from spaceform.special._precision import no_autocast

_TAU = math.log(1e8)


class Head(nn.Module, ABC):
    """A classification head on embeddings `z` of shape (batch, dim), un-normalised, as networks output them.

    A leaf gives `geometry`, `_objective` and `_logit_samples`. The base checks the input and takes care of
    precision: whatever autocast says and whatever type `z` has, both functions are called in float32 or
    better.

    Values are checked on the CPU only, where that needs no synchronisation. There a label out of range or an
    embedding that is not finite raises an error; on other devices it gives a device-side assertion or NaN.
    """

    name: ClassVar[str]
    """The name in recipes and commands; the key in `HEADS`."""
    title: ClassVar[str]
    """The name in tables and figures."""
    confidence_symbol: ClassVar[str] = "‖z‖"
    searched: ClassVar[Mapping[str, Range]] = {}
    """Options of the constructor that a search may vary."""
    defaults: ClassVar[Mapping[str, Start]] = {}
    """Where training starts in a comparison, by kind of data: "features", "pixels"."""
    compared: ClassVar[bool] = True
    """Whether a comparison takes it if no heads are named: not, if it is a close relative of another head."""

    warmup_epochs: int = 0
    """First epochs that train another objective: training does not look for the best epoch among them."""
    largest: ClassVar[float] = math.inf
    """A coordinate of `z` beyond ± this counts as this and has no gradient."""
    finds_norms: ClassVar[bool] = False
    """Whether `_objective` itself refuses a `z` that is not finite, by norms that it needs anyway."""
    shardable: ClassVar[bool] = False
    """Whether `sf.shard` can split its classes over processes: a leaf takes its weights by `_rows`."""

    log_beta: Tensor
    shard: ClassShard | None = None
    """Which classes this process has, if they are split over processes."""

    def __init__(self, dim: int, num_classes: int, *, class_chunk: int | None = None) -> None:
        super().__init__()
        for name, value in {"dim": dim, "num_classes": num_classes, "class_chunk": class_chunk}.items():
            if value is not None and not is_positive_integer(value):
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        self.dim = dim
        self.num_classes = num_classes
        self.class_chunk = class_chunk

    @classmethod
    def options(cls) -> dict[str, Any]:
        """What the constructor takes beside `dim` and `num_classes`, with the default values."""
        parameters = list(inspect.signature(cls).parameters.values())
        return {parameter.name: parameter.default for parameter in parameters[2:]}

    def _add_temperature(self, beta: float, learn_beta: bool) -> None:
        """The inverse temperature β = exp(τ): `log_beta` = τ is a parameter, or a buffer if fixed."""
        if not (math.isfinite(beta) and beta > 0):
            raise ValueError(f"beta must be positive and finite, got {beta!r}")
        tau = torch.tensor(math.log(beta))
        if learn_beta:
            self.log_beta = nn.Parameter(tau)
        else:
            self.register_buffer("log_beta", tau)

    @property
    def beta(self) -> Float[Tensor, ""]:
        """The inverse temperature β = exp(τ). Only some heads have one."""
        return self.tau.exp()

    @property
    def tau(self) -> Float[Tensor, ""]:
        """τ = `log_beta`, kept so that β lies between 10⁻⁸ and 10⁸, even with a rate that is too large."""
        tau = self.log_beta if self.shard is None else self.shard.summed(self.log_beta)
        within = values_readable(tau) and -_TAU <= tau.item() <= _TAU
        return tau if within else tau.clamp(-_TAU, _TAU)

    # What a leaf gives.

    @property
    @abstractmethod
    def geometry(self) -> Geometry:
        """How two embeddings are compared at retrieval; a class attribute or a property."""

    @abstractmethod
    def _objective(
        self, z: Float[Tensor, "batch dim"], y: Integer[Tensor, " batch"], generator: Generator | None
    ) -> Float[Tensor, " batch"]: ...

    @abstractmethod
    def _logit_samples(
        self, z: Float[Tensor, "batch dim"], generator: Generator | None
    ) -> Float[Tensor, "draws batch classes"]: ...

    def _soft_objective(
        self,
        z: Float[Tensor, "batch dim"],  # noqa: ARG002 (refused)
        labels: SoftLabels,  # noqa: ARG002
        generator: Generator | None,  # noqa: ARG002
    ) -> Float[Tensor, " batch"]:
        """Σ_c target_c × the objective of label c; a margin goes to the classes by their share."""
        raise TypeError(f"{type(self).__name__} takes no soft labels and no smoothing: give _soft_objective")

    def prepare(self, embeddings: Float[Tensor, "batch dim"]) -> None:
        """Look once, before training, at the untrained network's embeddings of training data."""

    def start_epoch(self, epoch: int) -> None:
        """Called at the beginning of each epoch; the first is 0."""

    def confidence(self, z: Float[Tensor, "batch dim"]) -> Float[Tensor, " batch"]:
        """‖z‖: how sure the network is of its embedding; not a probability."""
        return torch.linalg.vector_norm(self._promote(self._checked(z)), dim=-1)

    def numbers(self) -> dict[str, float]:
        """Single numbers of the head as it is now, learned or given: β, a margin, a curvature."""
        return {"beta": self.beta.item()} if hasattr(self, "log_beta") else {}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Parameters by their role, as optimiser groups; every parameter is in exactly one."""
        rest = [p for name, p in self.named_parameters() if name != "log_beta"]
        groups: list[dict[str, Any]] = [{"params": rest, "name": "class_weights"}]
        if isinstance(getattr(self, "log_beta", None), nn.Parameter):
            groups.append({"params": [self.log_beta], "name": "temperature"})
        return groups

    # What callers use.

    def forward(
        self,
        z: Float[Tensor, "batch dim"],
        y: Integer[Tensor, " batch"] | Float[Tensor, "batch classes"],
        *,
        label_smoothing: float = 0.0,
        class_weight: Float[Tensor, " classes"] | None = None,
        ignore_index: int | None = None,
        generator: Generator | None = None,
    ) -> Float[Tensor, " batch"]:
        """The training objective of every example, margins included; average it, or weight it first.

        Labels `y` are integers, or probabilities of all classes (mixup, distillation). `label_smoothing`,
        `class_weight` and `ignore_index` mean what they mean in `F.cross_entropy` with reduction "none": an
        ignored example has the objective 0. A weight of each example is a factor of what this returns.

        With soft labels each class has its share of a margin; with smoothing the label has all of it. If
        there are many classes, both are streamed over the classes, as everything else is.
        """
        z = checked_embeddings(z, self.dim, self.largest, values=not self.finds_norms)
        soft = isinstance(y, Tensor) and y.is_floating_point() and y.ndim == 2
        if not (soft or label_smoothing or class_weight is not None or ignore_index is not None):
            with no_autocast(z):
                return self._of_labels(z, y, generator)
        check_label_options(soft, label_smoothing, class_weight, ignore_index, self.num_classes)
        ignored = None
        if ignore_index is not None:
            ignored = y == ignore_index
            y = y.masked_fill(ignored, 0)
        with no_autocast(z):
            if soft or label_smoothing:
                self._require_all_classes("soft labels and smoothing need")
                objective = self._of_soft_labels(z, y, label_smoothing, class_weight, generator)
            else:
                objective = self._of_labels(z, y, generator)
                if class_weight is not None:
                    objective = objective * class_weight.to(objective.dtype)[y.long()]
        return objective if ignored is None else objective.masked_fill(ignored, 0)

    def _of_labels(
        self, z: Float[Tensor, "batch dim"], y: Integer[Tensor, " batch"], generator: Generator | None
    ) -> Float[Tensor, " batch"]:
        y, z = checked_labels(y, z, self.num_classes), self._promote(z)
        if self.shard is None:
            return self._objective(z, y, generator)
        z_all, y_all, sizes = self.shard.gathered(z, y)
        generator = self.shard.generator if generator is None else generator
        return self.shard.own(self._objective(z_all, y_all, generator), sizes)

    def _of_soft_labels(
        self,
        z: Float[Tensor, "batch dim"],
        y: Integer[Tensor, " batch"] | Float[Tensor, "batch classes"],
        smoothing: float,
        class_weight: Float[Tensor, " classes"] | None,
        generator: Generator | None,
    ) -> Float[Tensor, " batch"]:
        z = self._promote(self._checked(z))
        check = checked_soft_labels if y.is_floating_point() else checked_labels
        weight = None if class_weight is None else class_weight.to(z.dtype)
        labels = SoftLabels(check(y, z, self.num_classes), self.num_classes, z.dtype, smoothing, weight)
        return self._soft_objective(z, labels, generator)

    def logit_samples(
        self, z: Float[Tensor, "batch dim"], *, generator: Generator | None = None
    ) -> Float[Tensor, "draws batch classes"]:
        """Logits whose softmax, averaged over the draws, is `predict_proba`; one draw if deterministic.

        Stochastic heads use fixed draws, or random draws from the generator: see `StochasticHead`.
        """
        self._require_all_classes("logit samples and probabilities need")
        z = self._checked(z)
        with no_autocast(z):
            return self._logit_samples(self._promote(z), generator)

    @torch.no_grad()
    def top_k(self, z: Float[Tensor, "batch dim"], k: int) -> TopK:
        """The k largest of `predict_proba` and their classes, also if classes are split over processes.

        Then every process gives its own rows, and all processes must call it.
        """
        if not 1 <= k <= self.num_classes:
            raise ValueError(f"k must lie in 1..{self.num_classes}, the number of classes, got {k!r}")
        if self.shard is None:
            return TopK(*self.predict_proba(z).topk(k))
        z = self._promote(self._checked(z))
        with no_autocast(z):
            return self.shard.top_k(*self._prediction(z.dtype), z, k)

    def _prediction(self, dtype: torch.dtype) -> tuple[Callable[[Tensor], Tensor], int]:  # noqa: ARG002
        """The function from embeddings of this type to logit samples, and the number of draws."""
        return lambda z: self._logit_samples(z, None), 1

    def log_probs(
        self, z: Float[Tensor, "batch dim"], *, generator: Generator | None = None
    ) -> Float[Tensor, "batch classes"]:
        """The logarithm of p(y | z), margins and training tricks left out."""
        return self._over_draws(log_mean_softmax, z, generator)

    def predict_proba(
        self, z: Float[Tensor, "batch dim"], *, generator: Generator | None = None
    ) -> Float[Tensor, "batch classes"]:
        """p(y | z), margins and training tricks left out."""
        return self._over_draws(_mean_softmax, z, generator)

    def same(
        self, z1: Float[Tensor, "..."], z2: Float[Tensor, "..."], *, prior: float = 0.5
    ) -> Float[Tensor, " batch"]:
        """The probability that aligned embeddings share a class, if a share `prior` of all pairs does.

        Several embeddings of one thing (an enrolment) have the shape (batch, items, dim). The model of pairs
        is `head.pairs`: `spaceform.decisions.learn_pairs` fits it to items of held-out classes and gives it
        to the head. Its `threshold(false_accept=1e-3)` is the least log-likelihood ratio to accept.
        """
        pairs: Any = self._modules.get("pairs")
        if pairs is None:
            raise ValueError(
                "the head has no model of pairs; fit one to embeddings z and labels y of held-out classes by "
                "spaceform.decisions.learn_pairs(head, z, y)"
            )
        for name, z in (("z1", z1), ("z2", z2)):
            if z.shape[-1] != self.dim:
                raise ValueError(
                    f"{name} has dimension {z.shape[-1]}, and this head was made with dim={self.dim}; "
                    "embed both by its net"
                )
        found: Tensor = pairs.same(z1, z2, prior=prior)
        return found

    def _over_draws(
        self, mean: Callable[[Tensor], Tensor], z: Float[Tensor, "batch dim"], generator: Generator | None
    ) -> Float[Tensor, "batch classes"]:
        return mean(self.logit_samples(z, generator=generator))

    def extra_repr(self) -> str:
        parts = [f"dim={self.dim}", f"num_classes={self.num_classes}"]
        if (tau := getattr(self, "log_beta", None)) is not None:
            parts += [] if tau.is_meta else [f"beta={self.beta.item():.4g}"]
            parts.append(f"learn_beta={isinstance(tau, nn.Parameter)}")
        if self.class_chunk is not None:
            parts.append(f"class_chunk={self.class_chunk}")
        return ", ".join(parts)

    # Checks and precision.

    def _promote(self, z: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
        """Embeddings in float32, or in the wider of its type and the parameters'."""
        own = self._own_type()
        if own == z.dtype == torch.float32:
            return z
        return z.to(torch.promote_types(z.dtype, torch.promote_types(own, torch.float32)))

    def _own_type(self) -> torch.dtype:
        for parameter in self._parameters.values():
            if parameter is not None:
                return parameter.dtype
        return next(self.parameters()).dtype

    def _checked(self, z: Tensor) -> Tensor:
        return checked_embeddings(z, self.dim, self.largest)

    # Classes split over processes.

    def _rows(self, dtype: torch.dtype) -> Tensor:
        """The class weights that this process has: all of them, or its part."""
        weight: Any = self.weight
        weight = weight if self.shard is None else weight.to_local()
        return weight if weight.dtype == dtype else weight.to(dtype)

    def _start(self, weight: Tensor, num_classes: int) -> None:
        """Fill the weights of some of `num_classes` classes with start values, in a shardable leaf."""
        raise NotImplementedError

    def _of_all_ranks(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "_ dim"]:
        z = self._promote(self._checked(embeddings))
        return z if self.shard is None else self.shard.gathered_rows(z)

    def _require_all_classes(self, what: str) -> None:
        if self.shard is not None:
            raise TypeError(
                f"{what} all classes, and this head has {self.shard.rows} of {self.num_classes}: "
                "use hard labels and top_k, or sf.unshard(head)"
            )


class DeterministicHead(Head):
    """A head whose probabilities are one softmax of `logits`; a leaf gives `_logits` and may give `_loss`."""

    @abstractmethod
    def _logits(self, z: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]: ...

    def _loss(self, z: Float[Tensor, "batch dim"], y: Integer[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        return F.cross_entropy(self._logits(z), y, reduction="none")

    def _training_logits(self, z: Float[Tensor, "batch dim"]) -> TrainingLogits:
        """The logits of a block of classes, whose cross entropy is the objective of soft labels."""
        logits = self._logits(z)
        return lambda _share, block: logits[:, block]

    def _soft_objective(
        self,
        z: Float[Tensor, "batch dim"],
        labels: SoftLabels,
        generator: Generator | None,  # noqa: ARG002 (nothing is drawn)
    ) -> Float[Tensor, " batch"]:
        chunk = chunk_size(z.shape[0], self.num_classes, self.class_chunk)
        return soft_cross_entropy(self._training_logits(z), labels, chunk)

    def logits(self, z: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """The logits of prediction, margins left out."""
        return self.logit_samples(z)[0]

    def _objective(
        self,
        z: Float[Tensor, "batch dim"],
        y: Integer[Tensor, " batch"],
        generator: Generator | None,  # noqa: ARG002 (nothing is drawn)
    ) -> Float[Tensor, " batch"]:
        return self._loss(z, y)

    def _logit_samples(
        self,
        z: Float[Tensor, "batch dim"],
        generator: Generator | None,  # noqa: ARG002 (nothing is drawn)
    ) -> Float[Tensor, "1 batch classes"]:
        return self._logits(z)[None]


def log_mean_softmax(logits: Float[Tensor, "draws batch classes"]) -> Float[Tensor, "batch classes"]:
    """The log of (1/S) Σₛ softmax(ℓₛ): a head's prediction from its logit samples."""
    draws = logits.log_softmax(-1)
    if len(draws) == 1:
        return draws[0]
    # `logsumexp` less log S would lose digits of a probability near 1, whose logarithm is near 0.
    top = draws.detach().amax(0)
    return (draws - top).exp().mean(0).log() + top


def _mean_softmax(logits: Float[Tensor, "draws batch classes"]) -> Float[Tensor, "batch classes"]:
    return logits.softmax(-1).mean(0)
