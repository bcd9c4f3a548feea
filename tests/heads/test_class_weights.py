"""How class weights start: as the text of the paper says, or as torch starts a linear layer."""

import pytest
import torch

from spaceform.heads import ArcFaceHead, CosineHead, HyperbolicHead, StandardHead

DIM, CLASSES = 512, 2000


@pytest.mark.parametrize(("init", "bound"), [("xavier", (6 / (DIM + CLASSES)) ** 0.5), ("torch", DIM**-0.5)])
@pytest.mark.parametrize("kind", [StandardHead, CosineHead, ArcFaceHead, HyperbolicHead])
def test_class_weights_are_uniform_up_to_a_bound(kind, init, bound):
    torch.manual_seed(0)
    head = kind(DIM, CLASSES, init=init)
    for name in ("points", "normals") if kind is HyperbolicHead else ("weight",):
        weight = getattr(head, name)
        assert weight.shape == (CLASSES, DIM)
        assert 0.999 * bound < weight.abs().max() <= bound  # of a million uniform numbers
        assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.005)
