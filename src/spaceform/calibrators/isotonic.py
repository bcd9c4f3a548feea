"""A monotone curve for each class."""

from typing import final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from spaceform.calibrators._fit import Examples
from spaceform.calibrators.base import Calibrator, check_classes
from spaceform.heads.base import log_mean_softmax
from spaceform.metrics.monotone import pool_adjacent_violators

_Numbers = NDArray[np.float64]


@final
class Isotonic(Calibrator):
    """Each class's probability through its own isotonic regression, then normalised (Zadrozny & Elkan 2002).

    The regressions see the probabilities averaged over the draws. Fitted values are kept at least 1/(2 N),
    half an example, so that no log-probability is infinite. Order, and so accuracy, may change.
    """

    name = "isotonic"
    shapes = {"x": 2, "y": 2}  # noqa: RUF012
    x: Float[Tensor, "classes corners"]
    y: Float[Tensor, "classes corners"]

    def _fit(self, examples: Examples, confidence: Tensor | None) -> dict[str, Tensor]:  # noqa: ARG002
        p = log_mean_softmax(examples.logits.double()).exp().cpu().numpy()
        labels, weight = examples.y.cpu().numpy(), examples.weight.cpu().numpy()
        curves = [isotonic_corners(p[:, j], labels == j, weight) for j in range(p.shape[1])]
        longest = max(len(x) for x, _ in curves)
        # The last corner is repeated, so that all curves have the same number; this changes no curve.
        x, y = (
            torch.from_numpy(np.stack([np.pad(c, (0, longest - len(c)), mode="edge") for c in corners]))
            for corners in zip(*curves, strict=True)
        )
        return {"x": x, "y": y.clamp_min(1 / (2 * examples.total))}

    def _log_probs(
        self,
        L: Float[Tensor, "draws batch classes"],
        confidence: Float[Tensor, " batch"] | None,  # noqa: ARG002
    ) -> Float[Tensor, "batch classes"]:
        check_classes(L, len(self.x))
        x, y, p = self.x.to(L), self.y.to(L), log_mean_softmax(L).exp().T
        # The first corner that is not left of p: `searchsorted`, in operations that ONNX has.
        right = (x[:, None] < p[..., None]).sum(-1).clamp_max(x.shape[1] - 1)
        left = (right - 1).clamp_min(0)
        x0, x1, y0, y1 = x.gather(1, left), x.gather(1, right), y.gather(1, left), y.gather(1, right)
        width = x1 - x0
        share = ((p - x0) / torch.where(width > 0, width, 1)).clamp(0, 1)
        q = y0 + torch.where(width > 0, share, 0) * (y1 - y0)
        return (q / q.sum(0)).log().T.contiguous()

    def _fault(self) -> str | None:
        if self.x.shape != self.y.shape:
            return f"its corners have shapes {tuple(self.x.shape)} and {tuple(self.y.shape)}"
        if not bool((self.x.diff(dim=1) >= 0).all()):
            return "the corners of a curve are not in order"
        return None if bool((self.y > 0).all()) else "a curve reaches zero"


def isotonic_corners(
    x: NDArray[np.floating], target: NDArray[np.bool_], weight: _Numbers
) -> tuple[_Numbers, _Numbers]:
    """The corners of the non-decreasing step function of x nearest to `target` in weighted squares.

    A block has two corners, at its first and its last x.
    """
    at, start, mean = pool_adjacent_violators(x, target, weight)
    end = np.append(start[1:], len(at)) - 1
    corners = np.unique(np.concatenate([start, end]))
    return at[corners], mean[np.searchsorted(start, corners, side="right") - 1]
