"""The one prediction of a run: a head and a calibrator, from embeddings to probabilities.

`evaluate`, `Run.predict_proba`, `spaceform predict` and exported graphs all use it, so that an item has the
same probabilities everywhere.
"""

from typing import final

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from spaceform.calibrators import Calibrator
from spaceform.heads.base import Head, log_mean_softmax
from spaceform.heads.stochastic import StochasticHead

_NUMBERS = 2**20
"""The most logits in a block: a stochastic head has many draws of many classes."""


@final
class Predictor(nn.Module):
    """Embeddings in; probabilities and confidence out. Without a calibrator, probabilities as trained.

    Stochastic heads predict from fixed draws: the same item gives the same probabilities in every batch.
    """

    def __init__(self, head: Head, calibrator: Calibrator | None = None) -> None:
        super().__init__()
        self.head = head
        self.calibrator = calibrator

    def forward(
        self, z: Float[Tensor, "batch dim"], generator: Generator | None = None
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, " batch"]]:
        """(probabilities, confidence); with a generator the draws are random."""
        samples = self.head.logit_samples(z, generator=generator)
        return self.of_samples(samples, z)

    def of_samples(
        self, samples: Float[Tensor, "draws batch classes"], z: Float[Tensor, "batch dim"]
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, " batch"]]:
        """(probabilities, confidence) if the head's logit samples are known already."""
        confidence = self.head.confidence(z)
        if self.calibrator is None:
            return log_mean_softmax(samples).exp(), confidence
        return self.calibrator(samples, confidence).exp(), confidence

    @torch.inference_mode()
    def predict(
        self, z: Float[Tensor, "items dim"], generator: Generator | None = None
    ) -> tuple[Float[Tensor, "items classes"], Float[Tensor, " items"]]:
        """(probabilities, confidence) of any number of embeddings, block by block."""
        probabilities, confidence = zip(
            *(self(part, generator) for part in blocks_of_embeddings(self.head, z)), strict=True
        )
        return torch.cat(probabilities), torch.cat(confidence)


def blocks_of_embeddings(head: Head, z: Float[Tensor, "items dim"]) -> tuple[Float[Tensor, "block dim"], ...]:
    """Parts of the embeddings that fit into memory with all their draws."""
    draws = head.draws if isinstance(head, StochasticHead) else 1
    return z.split(max(1, _NUMBERS // (draws * head.num_classes)))
