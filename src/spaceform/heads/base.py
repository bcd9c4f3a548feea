"""What every head is: embeddings and labels in, an objective out; embeddings in, probabilities out."""

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
from spaceform.heads._checks import check_embeddings, checked_labels, is_positive_integer
from spaceform.heads._kernels.fixed_noise import FixedNoise
from spaceform.heads._kernels.precision import no_autocast
from spaceform.heads.declaration import Range, Start
from spaceform.special._autograd import refuse_gradient

DRAWS = 64
"""Fixed draws of a stochastic head's prediction, unless its `draws` is set."""
# Numbers of a block of examples (its draws times its classes): 4 MiB in single precision.
_BLOCK = 2**20
_NO_GRADIENT = "random draws of a prediction have no gradient: leave out the generator to use the fixed ones"


class Head(nn.Module, ABC):
    """A classification head on embeddings `z` of shape (batch, dim), un-normalised, as a network emits them.

    A leaf gives `geometry`, `_objective` and `_logit_samples`; the base checks the input and takes care of
    precision: whatever autocast says and whatever type `z` has, both are called in float32 or better.

    Values are checked on the CPU only, where it costs no synchronisation: there a label out of range or an
    embedding that is not finite raises; on other devices it is a device-side assertion or a NaN.
    """

    name: ClassVar[str]
    """What recipes and commands call it; the key of `HEADS`."""
    title: ClassVar[str]
    """What people read in tables and figures."""
    confidence_symbol: ClassVar[str] = "‖z‖"
    searched: ClassVar[Mapping[str, Range]] = {}
    """Options of the constructor that a search may vary."""
    defaults: ClassVar[Mapping[str, Start]] = {}
    """Where a comparison starts, by kind of data: "features", "pixels"."""
    compared: ClassVar[bool] = True
    """Whether a comparison takes it where no heads are named. A close relative of another head says no, so
    that a comparison does not take longer with every variant.
    """

    warmup_epochs: int = 0
    """First epochs that train another objective than the later ones: they do not count when training asks
    which epoch was best and how long none was better.
    """
    _range: ClassVar[float] = 1.0
    """How much of the range of its type a coordinate of z may use."""
    log_beta: Tensor

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
        """The inverse temperature β = exp(τ); only heads that have one."""
        return self.log_beta.exp()

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

    def prepare(self, embeddings: Float[Tensor, "batch dim"]) -> None:
        """Look at the untrained network's embeddings of training data, once, before training."""

    def start_epoch(self, epoch: int) -> None:
        """Be told that epoch `epoch` (the first is 0) begins."""

    def confidence(self, z: Float[Tensor, "batch dim"]) -> Float[Tensor, " batch"]:
        """‖z‖: how sure the network is of its embedding; not a probability."""
        return torch.linalg.vector_norm(self._promote(self._checked(z)), dim=-1)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Parameters by their role, as optimiser groups; every parameter is in exactly one."""
        rest = [p for name, p in self.named_parameters() if name != "log_beta"]
        groups: list[dict[str, Any]] = [{"params": rest, "name": "class_weights"}]
        if isinstance(getattr(self, "log_beta", None), nn.Parameter):
            groups.append({"params": [self.log_beta], "name": "temperature"})
        return groups

    # What every caller meets.

    def forward(
        self,
        z: Float[Tensor, "batch dim"],
        y: Integer[Tensor, " batch"],
        *,
        generator: Generator | None = None,
    ) -> Float[Tensor, " batch"]:
        """The training objective of every example, margins included; average it, or weight it first."""
        z, y = self._checked(z), checked_labels(y, z, self.num_classes)
        with no_autocast(z):
            return self._objective(self._promote(z), y, generator)

    def logit_samples(
        self, z: Float[Tensor, "batch dim"], *, generator: Generator | None = None
    ) -> Float[Tensor, "draws batch classes"]:
        """Logits whose softmax, averaged over the draws, is `predict_proba`; one draw if deterministic.

        Stochastic heads use fixed draws, or random ones of the generator: see `StochasticHead`.
        """
        z = self._checked(z)
        with no_autocast(z):
            return self._logit_samples(self._promote(z), generator)

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

    def _over_draws(
        self, mean: Callable[[Tensor], Tensor], z: Float[Tensor, "batch dim"], generator: Generator | None
    ) -> Float[Tensor, "batch classes"]:
        return mean(self.logit_samples(z, generator=generator))

    def extra_repr(self) -> str:
        parts = [f"dim={self.dim}", f"num_classes={self.num_classes}"]
        if (tau := getattr(self, "log_beta", None)) is not None:
            parts += [] if tau.is_meta else [f"beta={math.exp(tau.item()):.4g}"]
            parts.append(f"learn_beta={isinstance(tau, nn.Parameter)}")
        if self.class_chunk is not None:
            parts.append(f"class_chunk={self.class_chunk}")
        return ", ".join(parts)

    # Checks and precision.

    def _promote(self, z: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
        """Embeddings in float32, or in the wider of its type and the parameters'."""
        own = torch.promote_types(next(self.parameters()).dtype, torch.float32)
        return z.to(torch.promote_types(z.dtype, own))

    def _checked(self, z: Tensor) -> Tensor:
        check_embeddings(z, self.dim, self._range)
        return z


class DeterministicHead(Head):
    """A head whose probabilities are one softmax of `logits`; a leaf gives `_logits` and may give `_loss`."""

    @abstractmethod
    def _logits(self, z: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]: ...

    def _loss(self, z: Float[Tensor, "batch dim"], y: Integer[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        return F.cross_entropy(self._logits(z), y, reduction="none")

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


class StochasticHead(Head):
    """A head whose embeddings are random: `z` parametrises a distribution, from which `sample` draws.

    A prediction is a mean over draws. With a generator they are `samples` random ones, without gradient.
    Without one they are `draws` fixed ones: the same for every embedding, in every batch, at every call, in
    `train()` and `eval()`, and in an exported graph; they follow the parameters and are differentiable. Set
    `draws` to another even number to have more or fewer.

    A leaf gives `_objective`, `_sample`, `_random_logit_samples`, `_fixed_logits` and `_fix_draws`;
    `ReparametrizedHead` derives all of them from two functions.
    """

    def __init__(
        self, dim: int, num_classes: int, *, samples: int = 10, class_chunk: int | None = None
    ) -> None:
        super().__init__(dim, num_classes, class_chunk=class_chunk)
        if not is_positive_integer(samples):
            raise ValueError(f"samples must be a positive integer, got {samples!r}")
        self.samples = samples
        self._draws = 0

    @property
    def draws(self) -> int:
        """How many fixed draws a prediction averages."""
        return self._draws

    @draws.setter
    def draws(self, number: int) -> None:
        if not (is_positive_integer(number) and number % 2 == 0):
            raise ValueError(f"draws must be a positive even number, got {number!r}")
        self._draws = number
        self._fix_draws(number)

    @abstractmethod
    def _sample(
        self, z: Float[Tensor, "batch dim"], n: int, generator: Generator | None
    ) -> Float[Tensor, "n batch dim"]: ...

    @abstractmethod
    def _random_logit_samples(
        self, z: Float[Tensor, "batch dim"], generator: Generator
    ) -> Float[Tensor, "samples batch classes"]: ...

    @abstractmethod
    def _fixed_logits(self, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        """The function from embeddings of this type to logit samples (draws, batch, classes).

        What depends on the parameters alone is computed here, once for all blocks of a batch.
        """

    @abstractmethod
    def _fix_draws(self, number: int) -> None:
        """Make the constants of this many fixed draws."""

    def sample(
        self, z: Float[Tensor, "batch dim"], n: int, *, generator: Generator | None = None
    ) -> Float[Tensor, "n batch dim"]:
        """`n` draws of the embedding."""
        if not is_positive_integer(n):
            raise ValueError(f"n must be a positive integer, got {n!r}")
        z = self._checked(z)
        with no_autocast(z):
            return self._sample(self._promote(z), n, generator)

    def _logit_samples(
        self, z: Float[Tensor, "batch dim"], generator: Generator | None
    ) -> Float[Tensor, "draws batch classes"]:
        if generator is None:
            return self._fixed_logits(z.dtype)(z)
        with torch.no_grad():
            logits = self._random_logit_samples(z, generator)
        return refuse_gradient(logits, _NO_GRADIENT, z, *self.parameters())

    def _over_draws(
        self, mean: Callable[[Tensor], Tensor], z: Float[Tensor, "batch dim"], generator: Generator | None
    ) -> Float[Tensor, "batch classes"]:
        # In blocks: the logits of all draws would be large, and out of the cache. A graph has no need of it.
        rows = max(1, _BLOCK // (self._draws * self.num_classes))
        if generator is not None or torch.compiler.is_compiling() or len(z) <= rows:
            return super()._over_draws(mean, z, generator)
        z = self._promote(self._checked(z))
        with no_autocast(z):
            logits = self._fixed_logits(z.dtype)
            return torch.cat([mean(logits(part)) for part in z.split(rows)])


class ReparametrizedHead(StochasticHead):
    """A stochastic head whose draws are functions of the embedding and of standard normal numbers.

    A leaf gives `_embed` and `_logits`, and `noise` if a draw takes another number of normal numbers than
    `dim`. From these come the objective (the mean cross entropy of `samples` draws), `sample`, and the
    prediction, with random numbers or with fixed ones.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        noise: int | None = None,
        samples: int = 10,
        class_chunk: int | None = None,
    ) -> None:
        super().__init__(dim, num_classes, samples=samples, class_chunk=class_chunk)
        self.noise = dim if noise is None else noise
        self.draws = DRAWS

    @abstractmethod
    def _embed(
        self, z: Float[Tensor, "batch dim"], noise: Float[Tensor, "draws #batch noise"]
    ) -> Float[Tensor, "draws batch dim"]:
        """Draws of the embedding; fixed noise has a second axis of 1, as all embeddings share it."""

    @abstractmethod
    def _logits(
        self, embedding: Float[Tensor, "draws batch dim"]
    ) -> Float[Tensor, "draws batch classes"]: ...

    def _objective(
        self, z: Float[Tensor, "batch dim"], y: Integer[Tensor, " batch"], generator: Generator | None
    ) -> Float[Tensor, " batch"]:
        logits = self._logits(self._sample(z, self.samples, generator))
        return -logits.log_softmax(-1).mean(0).gather(1, y[:, None])[:, 0]

    def _sample(
        self, z: Float[Tensor, "batch dim"], n: int, generator: Generator | None
    ) -> Float[Tensor, "n batch dim"]:
        return self._embed(z, z.new_empty(n, z.shape[0], self.noise).normal_(generator=generator))

    def _random_logit_samples(
        self, z: Float[Tensor, "batch dim"], generator: Generator
    ) -> Float[Tensor, "samples batch classes"]:
        return self._logits(self._sample(z, self.samples, generator))

    def _fixed_logits(self, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        noise = self.fixed.noise.to(dtype)
        return lambda z: self._logits(self._embed(z, noise))

    def _fix_draws(self, number: int) -> None:
        self.fixed = FixedNoise(number, self.noise).to(device_of(self))


def device_of(module: nn.Module) -> torch.device:
    """Where the module's parameters are; the default device before it has any."""
    return next((p.device for p in module.parameters()), torch.get_default_device())


def log_mean_softmax(logits: Float[Tensor, "draws batch classes"]) -> Float[Tensor, "batch classes"]:
    """The log of (1/S) Σₛ softmax(ℓₛ): a head's prediction from its logit samples."""
    draws = logits.log_softmax(-1)
    if len(draws) == 1:
        return draws[0]
    # `logsumexp` less log S would lose digits of a probability near 1, whose logarithm is far below log S.
    top = draws.detach().amax(0)
    return (draws - top).exp().mean(0).log() + top


def _mean_softmax(logits: Float[Tensor, "draws batch classes"]) -> Float[Tensor, "batch classes"]:
    return logits.softmax(-1).mean(0)
