"""Heads whose embeddings are random: predictions are means over draws."""

from abc import abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float, Integer
from torch import Generator, Tensor, nn

from spaceform.heads._checks import is_positive_integer
from spaceform.heads._kernels.fixed_noise import FixedNoise
from spaceform.heads.base import Head
from spaceform.heads.soft_labels import SoftLabels
from spaceform.special._autograd import refuse_gradient
from spaceform.special._precision import no_autocast

DRAWS = 64
"""How many fixed draws a stochastic head's prediction has, unless its `draws` is set."""
# Numbers in a block of examples (its draws times its classes): 4 MiB in single precision.
_BLOCK_NUMBERS = 2**20
_NO_GRADIENT = "random draws of a prediction have no gradient: leave out the generator to use the fixed ones"


class StochasticHead(Head):
    """A head whose embeddings are random: `z` parametrises a distribution, from which `sample` draws.

    A prediction is a mean over draws. With a generator there are `samples` random draws, without gradient.
    Without a generator there are `draws` fixed draws: the same for every embedding, in every batch, at every
    call, in `train()` and `eval()`, and in an exported graph. They depend on the parameters and are
    differentiable. Set `draws` to another even number to have more or fewer.

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

    def _prediction(self, dtype: torch.dtype) -> tuple[Callable[[Tensor], Tensor], int]:
        return self._fixed_logits(dtype), self._draws

    def _over_draws(
        self, mean: Callable[[Tensor], Tensor], z: Float[Tensor, "batch dim"], generator: Generator | None
    ) -> Float[Tensor, "batch classes"]:
        # In blocks: the logits of all draws would not fit into the cache. A graph does not need this.
        rows = max(1, _BLOCK_NUMBERS // (self._draws * self.num_classes))
        if generator is not None or torch.compiler.is_compiling() or len(z) <= rows:
            return super()._over_draws(mean, z, generator)
        z = self._promote(self._checked(z))
        with no_autocast(z):
            logits = self._fixed_logits(z.dtype)
            return torch.cat([mean(logits(part)) for part in z.split(rows)])


class ReparametrizedHead(StochasticHead):
    """A stochastic head whose draws are functions of the embedding and of standard normal numbers.

    A leaf gives `_embed` and `_logits`, and `noise` if a draw needs another number of normal numbers than
    `dim`. The objective (the mean cross entropy of `samples` draws), `sample` and the prediction, with random
    or with fixed numbers, follow from these.
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
        """Draws of the embedding. Fixed noise has a second axis of size 1, since all embeddings share it."""

    @abstractmethod
    def _logits(
        self, embedding: Float[Tensor, "draws batch dim"]
    ) -> Float[Tensor, "draws batch classes"]: ...

    def _objective(
        self, z: Float[Tensor, "batch dim"], y: Integer[Tensor, " batch"], generator: Generator | None
    ) -> Float[Tensor, " batch"]:
        logits = self._logits(self._sample(z, self.samples, generator))
        return -logits.log_softmax(-1).mean(0).gather(1, y[:, None])[:, 0]

    def _soft_objective(
        self,
        z: Float[Tensor, "batch dim"],
        labels: SoftLabels,
        generator: Generator | None,
    ) -> Float[Tensor, " batch"]:
        logits = self._logits(self._sample(z, self.samples, generator))
        return -(labels.target(labels.every_class) * logits.log_softmax(-1).mean(0)).sum(1)

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
    """The device of the module's parameters; the default device before it has any."""
    return next((p.device for p in module.parameters()), torch.get_default_device())
