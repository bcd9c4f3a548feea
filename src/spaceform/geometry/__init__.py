"""How two embeddings compare: Euclidean distance, Poincaré distance, cosine. Final, frozen values.

z is always what the net emits. A geometry normalises or exponential-maps it itself.
"""

from spaceform.geometry.base import Geometry, Ranking
from spaceform.geometry.euclidean import Euclidean
from spaceform.geometry.hyperbolic import Hyperboloid, PoincareBall
from spaceform.geometry.sphere import Sphere

__all__ = ["Euclidean", "Geometry", "Hyperboloid", "PoincareBall", "Ranking", "Sphere"]
