"""Classification heads for Euclidean, hyperbolic and spherical embeddings."""

from spaceform._version import __version__

__all__ = ["__version__"]
