"""The stereographic model of geoopt, imported without the warning torch gives for its scripted functions."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from geoopt.manifolds.stereographic.math import (
        dist,
        dist2plane,
        expmap0,
        lambda_x,
        logmap0,
        mobius_add,
        project,
    )

__all__ = ["dist", "dist2plane", "expmap0", "lambda_x", "logmap0", "mobius_add", "project"]
