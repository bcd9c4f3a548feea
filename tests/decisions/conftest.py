"""What tests of unknown items share."""

import pytest
import torch

from clusters import CLASSES, clusters


@pytest.fixture(scope="module")
def items() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Embeddings, labels, and three draws of logits that know nothing."""
    z, y = clusters(300)
    return z, y, torch.randn(3, 300, CLASSES, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
