"""Two heads of somebody else's package: all that such a package has to write, and how it registers them.

`registered(folder)` makes `folder` a site directory in which the package is installed: whatever interpreter
has it on its path finds the heads by the entry point `spaceform.heads`.
"""

import shutil
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from spaceform.geometry import Euclidean
from spaceform.heads import DeterministicHead, LogUniform, ReparametrizedHead, Start


@final
class CentreHead(DeterministicHead):
    """p(y | z) ∝ exp(−β ‖z − c_y‖²)."""

    name, title = "centre", "Centre"
    geometry = Euclidean()
    searched = {"beta": LogUniform(0.1, 10.0)}  # noqa: RUF012 (as a package would write it)
    defaults = {  # noqa: RUF012
        "features": Start(lr=0.03, weight_decay=1e-4, options={"beta": 0.5}),
        "pixels": Start(lr=0.03, weight_decay=1e-4),
    }

    def __init__(self, dim: int, num_classes: int, *, beta: float = 1.0, learn_beta: bool = True) -> None:
        super().__init__(dim, num_classes)
        self.centres = nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_classes, dim)))
        self._add_temperature(beta, learn_beta)

    def _logits(self, z: Tensor) -> Tensor:
        # ‖z‖² is the same for all classes and cancels in the softmax.
        c = self.centres.to(z.dtype)
        return self.beta * (2 * z @ c.T - c.square().sum(1))


@final
class BlurredHead(ReparametrizedHead):
    """Embeddings z + σx with x standard normal and σ learned, p(y | z) = E[softmax(w_y·(z + σx))]."""

    name, title = "blurred", "Blurred"
    geometry = Euclidean()
    confidence_symbol = "‖z‖/σ"

    def __init__(self, dim: int, num_classes: int, *, sigma: float = 0.5) -> None:
        super().__init__(dim, num_classes)
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_classes, dim)))
        self.log_sigma = nn.Parameter(torch.tensor(sigma).log())

    def _embed(self, z: Tensor, noise: Tensor) -> Tensor:
        return z + self.log_sigma.exp().to(z.dtype) * noise

    def _logits(self, embedding: Tensor) -> Tensor:
        return embedding @ self.weight.to(embedding.dtype).T

    def confidence(self, z: Tensor) -> Tensor:
        """How many σ the embedding is long."""
        return super().confidence(z) / self.log_sigma.exp()


def registered(folder: Path) -> Path:
    """The folder, with this file installed in it as the distribution `foreign-heads`."""
    shutil.copy(__file__, folder / "foreign_heads.py")
    information = folder / "foreign_heads-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-heads\nVersion: 1.0\n")
    entries = "centre = foreign_heads:CentreHead\nblurred = foreign_heads:BlurredHead\n"
    (information / "entry_points.txt").write_text(f"[spaceform.heads]\n{entries}")
    return folder
