"""The tests run with shapes checked: what is wrong is refused, by the same rules as jaxtyping's own."""

from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Float, Int, TypeCheckError, jaxtyped
from torch import Tensor

import shape_checks
from spaceform.geometry import Sphere
from spaceform.heads import CosineHead


def test_our_functions_are_checked():
    with pytest.raises(TypeCheckError):
        CosineHead(3, 2)(torch.ones(4, 3), torch.zeros(5, dtype=torch.long))
    with pytest.raises(TypeCheckError):
        Sphere().pairwise(torch.ones(4, 3), torch.ones(4, 2))


@pytest.mark.compiled
def test_they_are_not_where_a_test_says_so():
    with pytest.raises(ValueError, match="y must have shape"):
        CosineHead(3, 2)(torch.ones(4, 3), torch.zeros(5, dtype=torch.long))


def product(
    a: Float[Tensor, "*#rows inner"], b: Float[Tensor, "inner columns"] | float
) -> Float[Tensor, "*rows columns"]:
    return a @ b if isinstance(b, Tensor) else a[..., :2] * b


def pair(a: Float[Tensor, " n"], y: Int[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Float[Tensor, " m"]]:
    return a, a[y]


def wrong(a: Float[Tensor, "n m"]) -> Float[Tensor, "m n"]:
    return a


def rows(a: Float[Tensor, "n m"], count: int) -> Float[Tensor, "{count} m"]:
    return a[:count]


@pytest.mark.parametrize(
    ("function", "arguments", "holds"),
    [
        (product, (torch.ones(4, 3), torch.ones(3, 2)), True),
        (product, (torch.ones(5, 4, 3), torch.ones(3, 2)), True),
        (product, (torch.ones(3), torch.ones(3, 2)), True),
        (product, (torch.ones(4, 3), 2.0), True),
        (product, (torch.ones(4, 3), torch.ones(2, 2)), False),
        (product, (torch.ones(4, 3), torch.ones(3, 2, dtype=torch.long)), False),
        (product, (torch.ones(4, 3), "two"), False),
        (pair, (torch.ones(4), torch.zeros(4, dtype=torch.long)), True),
        (pair, (torch.ones(4), torch.zeros(3, dtype=torch.long)), False),
        (pair, (torch.ones(4), torch.zeros(4)), False),
        (wrong, (torch.ones(2, 2),), True),
        (wrong, (torch.ones(3, 2),), False),
        (rows, (torch.ones(3, 2), 2), True),
        (rows, (torch.ones(3, 2), 4), False),
    ],
)
def test_refused_is_what_jaxtyping_refuses(function, arguments, holds):
    for check in (shape_checks.checked, shape_checks.jaxtyped):
        checked = check(function, typechecker=shape_checks.beartype)
        if holds:
            checked(*arguments)
        else:
            with pytest.raises(TypeCheckError):
                checked(*arguments)
    assert jaxtyped is shape_checks.checked


def test_names_of_sizes_are_those_of_one_call():
    """A call inside another has its own, and the outer ones come back, also after an error."""

    @shape_checks.checked
    def outer(a: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        shape_checks.checked(wrong)(torch.ones(7, 7))
        with pytest.raises(TypeCheckError):
            shape_checks.checked(wrong)(torch.ones(7, 6))
        return a

    outer(torch.ones(4))


@shape_checks.checked
@dataclass
class Point:
    x: Float[Tensor, "3"]

    @property
    @shape_checks.checked
    def doubled(self) -> Float[Tensor, "6"]:
        return torch.cat([self.x, self.x])

    @property
    @shape_checks.checked
    def whole(self) -> Float[Tensor, "6"]:
        return self.x

    @staticmethod
    @shape_checks.checked
    def of(size: int) -> "Point":
        return Point(torch.ones(size))


def test_methods_properties_and_dataclasses_are_checked():
    assert len(Point.of(3).doubled) == 6
    with pytest.raises(TypeCheckError):
        _ = Point.of(3).whole
    with pytest.raises(TypeCheckError):
        Point.of(4)
    with pytest.raises(TypeCheckError):
        Point.of("three")
