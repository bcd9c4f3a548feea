"""A temperature that depends on the norm, scales and offsets of classes, a matrix: as far as they help."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform.calibrators._fit import Examples, all_right, fit_inverse_temperature
from spaceform.calibrators._objective import DesignRows
from spaceform.calibrators._structured import fit_joined
from spaceform.calibrators.base import Calibrator, check_classes, weighted_quantiles
from spaceform.heads.base import log_mean_softmax

_SPREAD_OF_LOG_TEMPERATURE = 1.0
"""The standard deviation of the prior of log β."""
_NO_FLOOR = 1e-30


@final
class StructuredScaling(Calibrator):
    """softmax(s log p + (a + b·u) X + A X + c): what predictions use, since it is best on new items.

    p are the probabilities as trained, averaged over the draws. X = log((1 − ε) softmax(β log p) + ε/K), with
    the β of plain scaling and ε = 1/(N + 1), since N items do not prove certainty. u has the entries x and x²
    − 1, where x is the logarithm of the norm or concentration: it has mean 0 and variance 1 on the fitting
    items, and is constant outside their range. Without a confidence b is 0. A is a full matrix for up to 128
    classes, and diagonal for more.

    Models of growing size are fitted with priors around plain scaling: temperature and norm; scales and
    offsets of the classes; matrices. They are joined with the probabilities as trained, by the shares of
    least loss in cross-validation. Then the result is shrunk towards the probabilities as trained, the more
    the less sure the gain is: if the folds show no gain, nothing is changed. If every example is right, the
    result is plain scaling, which is never certain.
    """

    name = "structured"
    shapes = {  # noqa: RUF012
        "as_trained": 0,
        "inverse_temperature": 0,
        "floor": 0,
        "log_confidence": 1,
        "line": 1,
        "matrix": 2,
        "offset": 1,
    }
    as_trained: Tensor
    """s."""
    inverse_temperature: Tensor
    floor: Tensor
    """ε."""
    log_confidence: Tensor
    """Lowest value, highest value, mean and spread of log confidence."""
    line: Tensor
    """a and b."""
    matrix: Tensor
    """The matrix A, or its diagonal as one row."""
    offset: Tensor

    def _fit(self, examples: Examples, confidence: Tensor | None) -> dict[str, Tensor]:
        plain = log_mean_softmax(examples.logits).double()
        w = examples.weight
        averaged = Examples(plain[None], examples.y, w)
        if all_right(averaged):
            return _one_temperature(fit_inverse_temperature(averaged), plain.shape[1])
        β = fit_inverse_temperature(averaged, _SPREAD_OF_LOG_TEMPERATURE)
        ε = torch.tensor(1 / (1 + examples.total)).to(plain)
        X = _floored(plain, torch.tensor(β).to(plain), ε)
        κ = torch.ones_like(w) if confidence is None else confidence.double()
        range_ = _range(κ, w)
        u = _place(κ, range_) if confidence is not None else torch.zeros(len(κ), 2).to(X)
        models, shares = fit_joined(DesignRows(X, u, examples.y, w), plain)
        K = X.shape[1]
        matrix = torch.zeros(K if models[-1].matrix is not None else 1, K).to(X)
        line, offset = torch.zeros(3).to(X), torch.zeros(K).to(X)
        for model, share in zip(models, shares, strict=True):
            line, offset = line + share * model.line, offset + share * model.offset
            own = model.scale[None] if len(matrix) == 1 and K > 1 else torch.diag(model.scale)
            matrix = matrix + share * (own if model.matrix is None else own + model.matrix)
        return {
            "as_trained": 1 - shares.sum(),
            "inverse_temperature": torch.tensor(β),
            "floor": ε,
            "log_confidence": range_,
            "line": line,
            "matrix": matrix,
            "offset": offset,
        }

    def _log_probs(
        self, L: Float[Tensor, "draws batch classes"], confidence: Float[Tensor, " batch"] | None
    ) -> Float[Tensor, "batch classes"]:
        check_classes(L, len(self.offset))
        plain = log_mean_softmax(L)
        line, matrix = self.line.to(L), self.matrix.to(L)
        X = _floored(plain, self.inverse_temperature.to(L), self.floor.to(L))
        scale = line[:1]
        if confidence is None:
            self._refuse_without_confidence()
        else:
            scale = scale + _place(confidence, self.log_confidence.to(L)) @ line[1:]
        f = self.as_trained.to(L) * plain + scale[:, None] * X + self.offset.to(L)
        return torch.log_softmax(f + (matrix * X if len(matrix) == 1 else X @ matrix.T), -1)

    def _refuse_without_confidence(self) -> None:
        if not torch.compiler.is_compiling() and bool((self.line[1:] != 0).any()):
            raise ValueError(
                "this calibrator was fitted with confidence=, one number per example; pass head.confidence(z)"
            )

    def _fault(self) -> str | None:
        K = len(self.offset)
        if len(self.log_confidence) != 4 or len(self.line) != 3:
            return f"it has {len(self.log_confidence)} numbers of the norm and {len(self.line)} of the line"
        if self.matrix.shape not in ((1, K), (K, K)):
            return f"its matrix has shape {tuple(self.matrix.shape)} for {K} classes"
        if not bool(self.log_confidence[3] > 0) or not bool(self.inverse_temperature > 0):
            return "a spread or a temperature is not positive"
        return None if 0 < float(self.floor) < 1 else f"floor is {self.floor.item():g}, not between 0 and 1"


def _one_temperature(β: float, classes: int) -> dict[str, Tensor]:
    """The buffers of plain scaling."""
    nothing = torch.zeros(classes)
    return {
        "as_trained": torch.zeros(()),
        "inverse_temperature": torch.tensor(β),
        "floor": torch.tensor(_NO_FLOOR),
        "log_confidence": torch.tensor([0.0, 0.0, 0.0, 1.0]),
        "line": torch.tensor([1.0, 0.0, 0.0]),
        "matrix": nothing[None],
        "offset": nothing,
    }


def _floored(
    plain: Float[Tensor, "n classes"], β: Float[Tensor, ""], ε: Float[Tensor, ""]
) -> Float[Tensor, "n classes"]:
    p = torch.softmax(β * plain, -1)
    return torch.log((1 - ε) * p + ε / plain.shape[1])


def _log(κ: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return κ.clamp_min(torch.finfo(κ.dtype).tiny).log()


def _range(κ: Float[Tensor, " n"], weight: Float[Tensor, " n"]) -> Float[Tensor, "4"]:
    x, share = _log(κ), weight / weight.sum()
    low, high = weighted_quantiles(x, weight, torch.tensor([0.02, 0.98]).to(x))
    x = torch.minimum(torch.maximum(x, low), high)
    mean = share @ x
    spread = (share @ (x - mean).square()).sqrt()
    # Norms that are equal up to rounding say nothing: a large spread makes u nearly 0.
    return torch.stack([low, high, mean, torch.where(spread > 1e-3, spread, torch.full_like(spread, 1e3))])


def _place(κ: Float[Tensor, " n"], range_: Float[Tensor, "4"]) -> Float[Tensor, "n 2"]:
    """The two entries of u."""
    low, high, mean, spread = range_
    x = (torch.minimum(torch.maximum(_log(κ), low), high) - mean) / spread
    return torch.stack([x, x.square() - 1], -1)
