"""Distributions on the unit sphere, as citizens of torch.distributions."""

from spaceform.distributions.von_mises_fisher import sample_von_mises_fisher, von_mises_fisher_angle

__all__ = ["sample_von_mises_fisher", "von_mises_fisher_angle"]
