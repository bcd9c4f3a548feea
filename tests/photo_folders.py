"""Folders of small photos, and a small net of timm with weights in a file, for the tests of features."""

from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from PIL import Image

from spaceform import ensure_torchvision

NET = "test_resnet"
"""The smallest ResNet of timm: 160 pixels, 384 features."""


def write_photos(folder: Path, count: int = 12, classes: tuple[str, ...] = ("fine", "coarse")) -> Path:
    """So many photos of each class, of many sizes: noise of another grain for each class."""
    rng = np.random.default_rng(0)
    for k, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            grain = rng.integers(256, size=(40 >> 2 * k, 50 >> 2 * k, 3), dtype=np.uint8)
            size = (int(rng.integers(90, 140)), int(rng.integers(70, 120)))
            Image.fromarray(grain).resize(size, Image.Resampling.NEAREST).save(
                folder / name / f"{i:02d}.jpg", quality=95
            )
    return folder


def write_weights(path: Path, name: str = NET, seed: int = 0) -> Path:
    """Random weights of a net, with its classifier, as a safetensors file."""
    ensure_torchvision()
    import timm

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        safetensors.torch.save_file(timm.create_model(name).state_dict(), path)
    return path
