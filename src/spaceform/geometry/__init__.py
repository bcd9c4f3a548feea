"""How two embeddings are compared: Euclidean distance, Poincaré distance, cosine. All are frozen values.

z is always the output of the net. The geometry itself normalises it or applies the exponential map.
"""

from spaceform.geometry.base import Geometry, Ranking
from spaceform.geometry.euclidean import Euclidean
from spaceform.geometry.hyperbolic import Hyperboloid, PoincareBall
from spaceform.geometry.sphere import Sphere

__all__ = ["Euclidean", "Geometry", "Hyperboloid", "PoincareBall", "Ranking", "Sphere"]
