"""What a run says of items that it did not train on. Promises about new items rest on it: sets, "unknown".

The values are those of the model as trained. A calibrator is fitted to the same items, so it is better on
them than on new items, and a promise that used it would be too bold.

A run on features trains on all of its rows in the end. Its held-out values come from the models of its
rehearsal, which saw fewer rows, so its promises are approximate. On noisy digits with 720 such rows and the
cosine head, sets for 80, 90 and 95 % held the true class of 82, 91 and 95 % of new items. For "unknown", each
of these models has its own score; the score of the run takes their weights and thresholds.
"""

import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from spaceform.decisions import Combined, LeastAmbiguousSets, Refusal
from spaceform.heads.base import Head, log_mean_softmax
from spaceform.metrics.inputs import as_finite, as_labels, as_probs
from spaceform.metrics.ranks import checked_share
from spaceform.run import files
from spaceform.run.predictor import blocks_of_embeddings
from spaceform.run.recipe import RecipeError

HELD_OUT_FILE = "held_out.npz"
_KEPT_ARRAYS = ("probabilities", "labels", "known")
_JUDGE = "judge."
_BROKEN_ARCHIVE = (zipfile.BadZipFile, zlib.error)


@final
@dataclass(frozen=True, eq=False)
class HeldOut:
    """Held-out items: probabilities as trained, labels, how known the items are, and who judges that."""

    probabilities: Float[Tensor, "items classes"]
    labels: Int64[Tensor, " items"]
    known: Float[Tensor, " items"]
    """A score that is higher for items of known classes."""
    judge: Combined
    """The same score for the model of the run."""

    def sets(self, coverage: float) -> LeastAmbiguousSets:
        """Sets that hold the true class with probability `coverage`, for items like these."""
        return LeastAmbiguousSets(coverage).fit(self.probabilities, self.labels)

    def refusal(self, share: float) -> Refusal:
        """A rule that refuses this share of items like these, by the score of `judge`."""
        return Refusal(checked_share(share, "--unknown")).fit(self.known)

    def write(self, folder: Path) -> None:
        """Write them into the folder of a run."""
        archive = io.BytesIO()
        arrays = {name: getattr(self, name).cpu().numpy() for name in _KEPT_ARRAYS}
        arrays |= {_JUDGE + name: value.cpu().numpy() for name, value in self.judge.state_dict().items()}
        np.savez(archive, allow_pickle=False, **arrays)
        files.write_bytes(folder / HELD_OUT_FILE, archive.getvalue())

    @classmethod
    def read(cls, folder: Path, num_classes: int, dim: int | None = None) -> "HeldOut":
        """Read what `write` wrote. The number of classes is checked, and also `dim` if it is given."""
        path = folder / HELD_OUT_FILE
        if not path.exists():
            raise RecipeError(
                f"there is no {path}, on which sets and refusals rest; `spaceform evaluate {folder}` writes "
                "it, but for a run that was trained for retrieval"
            )
        again = f"`spaceform evaluate {folder}` writes it again"
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as saved:
                p, y, known = (torch.from_numpy(saved[name]) for name in _KEPT_ARRAYS)
                judge = Combined()
                own = {name: saved[_JUDGE + name] for name in judge.state_dict()}
                judge.load_state_dict({name: torch.from_numpy(value) for name, value in own.items()})
        except (OSError, EOFError, KeyError, ValueError, TypeError, RuntimeError, *_BROKEN_ARCHIVE):
            raise RecipeError(f"{path} cannot be read; {again}") from None
        try:
            found = cls(*_checked(p, y, known, num_classes), judge.checked(dim).eval())
        except (ValueError, TypeError) as error:
            raise RecipeError(f"{path} is not of this run: {error}; {again}") from None
        return found


def _checked(p: Tensor, y: Tensor, known: Tensor, num_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """The arrays, after a check that they can be what their names say."""
    p = as_probs(p, "probabilities")
    if p.shape[1] != num_classes:
        raise ValueError(f"probabilities has {p.shape[1]} columns, and the run {num_classes} classes")
    labels, known = as_labels(y, "labels", len(p), num_classes), as_finite(known, "known", 1)
    if len(known) != len(p):
        raise ValueError(f"known has {len(known)} entries for {len(p)} items")
    return p, labels, known


@torch.inference_mode()
def as_trained(
    head: Head, z: Float[Tensor, "items dim"], judge: Combined, reach: Float[Tensor, " items"] | None = None
) -> tuple[Float[Tensor, "items classes"], Float[Tensor, " items"]]:
    """The probabilities of embeddings without a calibrator, and how known these items are.

    `reach` is that of their features, if the net takes features.
    """
    probabilities, known, start = [], [], 0
    for part in blocks_of_embeddings(head, z):
        samples = head.logit_samples(part)
        probabilities.append(log_mean_softmax(samples).exp())
        own = None if reach is None else reach[start : start + len(part)]
        known.append(judge(part, samples, reach=own))
        start += len(part)
    return torch.cat(probabilities), torch.cat(known)
