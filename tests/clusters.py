"""Embeddings of a few classes, in clusters."""

import math

import torch

CLASSES, DIM = 6, 5


def clusters(n: int, seed: int = 0, spread: float = 0.4) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings about one axis for each class; the last axis is nobody's where classes < dim."""
    g = torch.Generator().manual_seed(seed)
    centres = torch.eye(CLASSES, DIM + 1, dtype=torch.float64)[:, :DIM]
    centres[-1] = -1 / math.sqrt(DIM)
    y = torch.arange(n) % CLASSES
    return 3 * (centres[y] + spread * torch.randn(n, DIM, generator=g, dtype=torch.float64)), y
