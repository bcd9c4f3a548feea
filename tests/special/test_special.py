"""The special functions against mpmath, their derivatives, and torch's transformations."""

import math
from types import ModuleType

import mpmath as mp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap

from reference import bessel
from spaceform import special
from spaceform.special import bounds, exact

DIMS = [
    *(2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 24, 33, 63, 64, 100, 127, 128, 129, 200, 202, 203, 204),
    *(255, 300, 512, 777, 1000, 2048, 4097, 10_000, 32_768, 65_535, 65_536),
]
METHODS = ["exact", "bounds"]
EPS = torch.finfo(torch.float64).eps


def test_the_grid_has_more_than_a_thousand_points():
    assert sum(len(bessel.concentrations(dim)) for dim in DIMS) >= 1000


@pytest.mark.parametrize("order", [0.0, 0.5, 1.7, 10.5, 63.0, 100.0])
@pytest.mark.parametrize("x", [1e-3, 3.0, 250.0, 1e5])
def test_the_two_oracles_agree(order: float, x: float):
    one, other = bessel.by_besseli(order, x), bessel.by_integral(order, x)
    with mp.workdps(bessel.DIGITS):
        for a, b in zip(one, other, strict=True):
            assert abs(a / b - 1) < 1e-18


@pytest.mark.parametrize("dim", DIMS)
def test_mean_resultant_length_is_exact(dim: int):
    k = bessel.concentrations(dim)
    true = [bessel.values(dim / 2 - 1, x).mean for x in k.tolist()]
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        computed = special.mean_resultant_length(k.to(dtype), dim)
        assert computed.dtype == dtype
        assert computed[0] == 0
        assert (bessel.errors(computed[1:], true[1:]) / bessel.floats(true[1:])).max() <= tolerance


@pytest.mark.parametrize("dim", DIMS)
def test_log_normalizer_is_exact(dim: int):
    k = bessel.concentrations(dim)
    true = [bessel.log_normalizer(x, dim) for x in k.tolist()]
    mean = bessel.floats([bessel.values(dim / 2 - 1, x).mean for x in k.tolist()])
    error = bessel.errors(special.log_normalizer(k, dim), true)
    assert (error <= 1e-12 * bessel.floats(true).abs().clamp_min(1) + 4 * EPS * k * mean).all()
    single = bessel.errors(special.log_normalizer(k.float(), dim), true)
    assert (single <= 1e-6 * (bessel.floats(true).abs().clamp_min(1) + k * mean)).all()


@pytest.mark.parametrize("dim", DIMS)
def test_derivative_of_the_mean_is_exact(dim: int):
    k = bessel.concentrations(dim)
    true = bessel.floats([bessel.values(dim / 2 - 1, x).slope for x in k.tolist()])
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-6)):
        x = k.to(dtype).requires_grad_()
        (slope,) = torch.autograd.grad(special.mean_resultant_length(x, dim).sum(), x)
        (curvature,) = torch.autograd.grad(first_derivative(x, dim).sum(), x)
        torch.testing.assert_close(slope.double(), true, rtol=tolerance, atol=0)
        torch.testing.assert_close(curvature, -slope, rtol=8 * torch.finfo(dtype).eps, atol=0)


def first_derivative(x: Tensor, dim: int) -> Tensor:
    return torch.autograd.grad(special.log_normalizer(x, dim).sum(), x, create_graph=True)[0]


@pytest.mark.parametrize("dim", DIMS)
def test_differences_in_single_precision(dim: int):
    k = bessel.concentrations(dim)
    log_c = [bessel.log_normalizer(x, dim) for x in k.tolist()]
    generator = torch.Generator().manual_seed(dim)
    i = torch.arange(len(k)).repeat(4)
    j = torch.cat([i[: len(k)].roll(1), *torch.randint(len(k), (3, len(k)), generator=generator)])
    with mp.workdps(bessel.DIGITS):
        true = [log_c[a] - log_c[b] for a, b in zip(i.tolist(), j.tolist(), strict=True)]
    error = bessel.errors(special.log_normalizer_difference(k[i].float(), k[j].float(), dim), true)
    assert (error / (1 + bessel.floats(true).abs())).max() <= 2e-6
    error = bessel.errors(special.log_normalizer_difference(k[i], k[j], dim), true)
    assert (error / (1 + bessel.floats(true).abs())).max() <= 4e-15


@pytest.mark.parametrize("dim", [2, 3, 16, 129, 512, 2048, 65_536])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_differences_by_squares_do_not_cancel(dim: int, dtype: torch.dtype):
    """A step of β along a unit vector: other² − concentration² = 2β w·z + β², far below concentration²."""
    k = torch.tensor([0.0, 0.5, 3.0, 40.0, 701.0, 2e4, 1e6])
    delta = torch.tensor([2.0**-20, 2.0**-7, 1.0, 37.5, 1e3])
    k, delta = (t.flatten() for t in torch.meshgrid(k, delta, indexing="ij"))
    with mp.workdps(bessel.DIGITS):
        other = [mp.sqrt(mp.mpf(a) ** 2 + mp.mpf(b)) for a, b in zip(k.tolist(), delta.tolist(), strict=True)]
        true = [
            bessel.log_normalizer(a, dim) - bessel.log_normalizer(b, dim)
            for a, b in zip(k.tolist(), other, strict=True)
        ]
    computed = special.log_normalizer_difference(k.to(dtype), None, dim, squared_difference=delta.to(dtype))
    error = bessel.errors(computed, true)
    assert (error / (1 + bessel.floats(true).abs())).max() <= 4 * torch.finfo(dtype).eps
    for law, tolerance in ((exact, 2e-6), (bounds, 2e-6)):
        value, weight = law.difference_and_weight(k * k, delta, dim / 2 - 1)
        ours = torch.tensor([float(x) for x in other])
        expected = special.mean_resultant_length(ours, dim, method=law.__name__.rpartition(".")[2]) / ours
        torch.testing.assert_close(weight, expected, rtol=tolerance, atol=0)
        assert value.shape == delta.shape


@pytest.mark.parametrize("order", [0, 0.1, 0.5, 1, math.pi, 7.5, 33, 100.25, 255, 1023.5, 32_767])
def test_log_iv(order: float):
    x = bessel.concentrations(int(2 * order + 2))[1:]
    true = [bessel.log_iv(order, value) for value in x.tolist()]
    # The condition number of log I_v in x is x I_v'/I_v = v + xA; its terms are as large.
    scale = bessel.floats(true).abs().clamp_min(1) + order + x * special.mean_resultant_length(x, 4)
    assert (bessel.errors(special.log_iv(order, x), true) <= 4 * EPS * scale).all()
    assert (bessel.errors(special.log_iv(order, x.float()), true) <= 1e-6 * scale).all()


def test_log_iv_at_zero_and_its_slope():
    zero = torch.zeros((), dtype=torch.float64)
    assert special.log_iv(0, zero) == 0
    assert special.log_iv(0.5, zero) == -math.inf
    assert special.log_iv(700, zero) == -math.inf
    x = torch.tensor([0.3, 2.0, 40.0], dtype=torch.float64, requires_grad=True)
    for order in (0, 0.5, 3.25, 64):
        torch.autograd.gradcheck(lambda x, v=order: special.log_iv(v, x), x)
        torch.autograd.gradgradcheck(lambda x, v=order: special.log_iv(v, x), x)
    assert grad(lambda x: special.log_iv(0, x))(zero) == 0


def test_closed_forms_in_three_dimensions():
    k = torch.tensor([1e-3, 0.4, 3.0, 50.0], dtype=torch.float64)
    torch.testing.assert_close(special.log_normalizer(k, 3), (k / (4 * math.pi * k.sinh())).log())
    torch.testing.assert_close(special.mean_resultant_length(k, 3), 1 / k.tanh() - 1 / k, rtol=1e-9, atol=0)
    torch.testing.assert_close(special.log_iv(0.5, k), ((2 / (math.pi * k)).sqrt() * k.sinh()).log())


def test_bounds_are_the_papers_equations():
    for n in (2, 3, 8, 128, 2048):
        k = torch.tensor([0.0, 0.3, 2.0, 50.0, 4e3], dtype=torch.float64)
        h = k / ((n - 1) / 2 + (((n - 1) / 2) ** 2 + k**2).sqrt())
        g = k / ((n - 1) / 2 + (((n + 1) / 2) ** 2 + k**2).sqrt())
        torch.testing.assert_close(special.mean_resultant_length(k, n, method="bounds"), (g + h) / 2)
        log_c = sum(
            (n - 1) / 4 * ((n - 1) / 2 + (b**2 + k**2).sqrt()).log() - (b**2 + k**2).sqrt() / 2
            for b in ((n - 1) / 2, (n + 1) / 2)
        )
        torch.testing.assert_close(special.log_normalizer(k, n, method="bounds"), log_c)
        torch.testing.assert_close(
            special.log_normalizer_difference(k, k.flip(0), n, method="bounds"), log_c - log_c.flip(0)
        )
        true = special.mean_resultant_length(k, n)
        assert ((g <= true) & (true <= h)).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dim", [2, 3, 17, 512])
def test_gradients_of_first_and_second_order(dim: int, method: str):
    """Under vmap no values are read, so that gradcheck may step below 0, where every function is smooth."""
    k = torch.tensor([0.0, 0.4, 3.0, 150.0], dtype=torch.float64, requires_grad=True)
    r = torch.tensor([0.0, 0.3, 0.7, 0.95], dtype=torch.float64, requires_grad=True)
    other = k.detach().flip(0).requires_grad_()
    delta = torch.tensor([0.5, 1.0, -3.0, 90.0], dtype=torch.float64, requires_grad=True)

    def difference(k: Tensor, other: Tensor) -> Tensor:
        return special.log_normalizer_difference(k, other, dim, method=method)

    def by_squares(k: Tensor, delta: Tensor) -> Tensor:
        return special.log_normalizer_difference(k, None, dim, squared_difference=delta, method=method)

    for function, inputs in (
        (lambda k: special.log_normalizer(k, dim, method=method), (k,)),
        (lambda k: special.mean_resultant_length(k, dim, method=method), (k,)),
        (lambda r: special.concentration_from_mean_resultant_length(r, dim, method=method), (r,)),
        (difference, (k, other)),
        (by_squares, (k, delta)),
    ):
        assert torch.autograd.gradcheck(vmap(function), inputs)
        assert torch.autograd.gradgradcheck(vmap(function), inputs)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [2, 3, 16, 512, 65_536])
def test_everything_is_finite_from_zero_to_1e8(dim: int, dtype: torch.dtype, method: str):
    k = torch.cat([torch.zeros(1), torch.logspace(-30, 8, 150)]).to(dtype).requires_grad_()
    for function in (special.log_normalizer, special.mean_resultant_length):
        value = function(k, dim, method=method)
        (first,) = torch.autograd.grad(value.sum(), k, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), k)
        assert all(t.isfinite().all() for t in (value, first, second))
    pairs = special.log_normalizer_difference(k[:, None], k[None], dim, method=method)
    assert pairs.shape == (151, 151)
    assert pairs.isfinite().all()
    assert (pairs.diagonal() == 0).all()
    squares = special.log_normalizer_difference(
        k[:, None], None, dim, squared_difference=k**2 - k[:, None] ** 2
    )
    assert squares.isfinite().all()


@pytest.mark.parametrize("dim", [2, 3, 8, 65, 512, 4096])
def test_no_splice_that_a_gradient_can_feel(dim: int):
    """A' is smooth: over a fine grid its steps are as even as a smooth function's, with no jump anywhere."""
    k = torch.logspace(-3, 6, 20_000, dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad(special.mean_resultant_length(k, dim).sum(), k)
    # Where the curve bends most, the third difference of log A' at this spacing (1e-3) is far below 1e-8.
    assert slope.log().diff(n=3).abs().max() < 1e-8


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dim", [2, 3, 4, 8, 17, 128, 512, 4097, 65_536])
def test_the_inverse_over_the_whole_range(dim: int, method: str):
    ends = torch.logspace(-15, math.log10(0.5), 300, dtype=torch.float64)
    for dtype, tolerance in ((torch.float64, 1e-13), (torch.float32, 2e-6)):
        r = torch.cat([ends, 1 - ends]).to(dtype)
        r = r[r < 1]
        k = special.concentration_from_mean_resultant_length(r, dim, method=method).double()
        law, order = (exact, bounds)[method == "bounds"], dim / 2 - 1
        low = law.mean(k, order) / r.double() - 1
        high = law.shortfall(k, order) / (1 - r.double()) - 1
        assert torch.where(r < 0.5, low, high).abs().max() <= tolerance
        edges = special.concentration_from_mean_resultant_length(torch.tensor([0.0, 1.0]).to(dtype), dim)
        assert edges.tolist() == [0, math.inf]


@settings(max_examples=25, deadline=None)
@given(dim=st.integers(2, 3000), log_k=st.floats(-4, 5))
def test_laws_at_any_dim(dim: int, log_k: float):
    """The recurrence between orders, and the inverse undoes the mean."""
    k = torch.tensor(10.0**log_k, dtype=torch.float64)
    below, above = special.mean_resultant_length(k, dim), special.mean_resultant_length(k, dim + 2)
    torch.testing.assert_close(1 / below, dim / k + above, rtol=1e-13, atol=0)
    if below < 1 - 1e-6:
        inverse = special.concentration_from_mean_resultant_length(below, dim)
        torch.testing.assert_close(inverse, k, rtol=1e-9, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_transformations_compose(method: str):
    k = torch.tensor([0.0, 0.2, 3.0, 800.0], dtype=torch.float64)

    def f(k: Tensor) -> Tensor:
        return special.log_normalizer(k, 9, method=method)

    torch.testing.assert_close(vmap(f)(k), f(k))
    torch.testing.assert_close(vmap(grad(f))(k), -special.mean_resultant_length(k, 9, method=method))
    slope = vmap(grad(lambda k: special.mean_resultant_length(k, 9, method=method)))(k)
    torch.testing.assert_close(vmap(grad(grad(f)))(k), -slope)
    assert vmap(grad(grad(grad(f))))(k).isfinite().all()
    torch.testing.assert_close(vmap(vmap(f))(k.view(2, 2)), f(k).view(2, 2))


@pytest.fixture(scope="module")
def unhooked(import_unhooked) -> ModuleType:
    """A second copy of the module without the shape checks, whose wrappers torch cannot trace."""
    return import_unhooked("spaceform.special")


def compiled_cases(special: ModuleType, method: str) -> list:
    return [
        lambda k: special.log_normalizer(k, 3, method=method),
        lambda k: special.mean_resultant_length(k, 512, method=method),
        lambda k: special.concentration_from_mean_resultant_length(k / 10, 512, method=method),
        lambda k: special.log_normalizer_difference(k, k.flip(0), 512, method=method),
        lambda k: special.log_normalizer_difference(
            k, None, 512, squared_difference=2 * k + 1, method=method
        ),
        lambda k: special.log_iv(300, k),
    ]


@pytest.mark.compiled
@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # torch's own, in tracing
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", range(6))
def test_compiles_without_a_break(case: int, method: str, unhooked: ModuleType):
    torch.compiler.reset()
    function = compiled_cases(unhooked, method)[case]
    k = torch.linspace(0.3, 9, 6).requires_grad_()
    ours, theirs = function(k), torch.compile(function, fullgraph=True, backend="aot_eager")(k)
    torch.testing.assert_close(theirs, ours)
    torch.testing.assert_close(torch.autograd.grad(theirs.sum(), k), torch.autograd.grad(ours.sum(), k))


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiles_for_a_dim_that_is_a_size(unhooked: ModuleType):
    torch.compiler.reset()
    compiled = torch.compile(
        lambda z: unhooked.log_normalizer(z.norm(dim=-1), z.shape[-1]),
        fullgraph=True,
        backend="aot_eager",
        dynamic=True,
    )
    for dim in (200, 300):
        z = torch.ones(3, dim)
        torch.testing.assert_close(compiled(z), special.log_normalizer(z.norm(dim=-1), dim))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype):
    k = torch.tensor([0.0, 1.0, 30.0], dtype=dtype)
    torch.testing.assert_close(
        special.mean_resultant_length(k, 16), special.mean_resultant_length(k.float(), 16).to(dtype)
    )


def test_no_values_are_read_where_there_are_none():
    """The meta device has no values: anything that waits for one raises."""
    k = torch.rand(4, device="meta")
    assert special.log_normalizer(k, 5).shape == (4,)
    assert special.concentration_from_mean_resultant_length(k, 5).shape == (4,)
    assert special.log_normalizer_difference(k, k, 5).shape == (4,)
    assert special.log_iv(0.5, k).shape == (4,)
    assert special.log_normalizer(torch.rand(0), 5).shape == (0,)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda k: special.log_normalizer(k, 1), ValueError, r"dim must be an integer of at least 2, got 1"),
        (lambda k: special.log_normalizer(k, 0), ValueError, r"dim must be an integer of at least 2, got 0"),
        (lambda k: special.log_normalizer(k, -3), ValueError, r"dim must be .* got -3"),
        (lambda k: special.mean_resultant_length(k, 2.5), ValueError, r"dim must be .* got 2\.5"),
        (lambda k: special.mean_resultant_length(k, True), ValueError, r"dim must be .* got True"),
        (lambda k: special.log_normalizer(-k, 3), ValueError, r"concentration must be non-negative, got -2"),
        (lambda k: special.log_normalizer(k / 0 * 0, 3), ValueError, r"concentration must .* got nan"),
        (lambda k: special.log_normalizer(k.long(), 3), TypeError, r"concentration must .* torch\.int64"),
        (lambda k: special.log_normalizer(k.tolist(), 3), TypeError, r"concentration must .* got \[1\.0"),
        (lambda k: special.log_normalizer(k, 3, method="bound"), ValueError, r"method must .* got 'bound'"),
        (lambda k: special.log_normalizer_difference(k, -k, 3), ValueError, r"other must .* got -2"),
        (lambda k: special.log_normalizer_difference(k, None, 3), ValueError, r"other is None"),
        (
            lambda k: special.log_normalizer_difference(k, None, 3, squared_difference=k.long()),
            TypeError,
            r"squared_difference must .* torch\.int64",
        ),
        (
            lambda k: special.concentration_from_mean_resultant_length(k, 3),
            ValueError,
            r"r must be between 0 and 1, got 2",
        ),
        (lambda k: special.concentration_from_mean_resultant_length(-k, 3), ValueError, r"r must .* got -2"),
        (lambda k: special.log_iv(-0.5, k), ValueError, r"order must be .* got -0\.5"),
        (lambda k: special.log_iv(math.nan, k), ValueError, r"order must be .* got nan"),
        (lambda k: special.log_iv(1, -k), ValueError, r"x must be non-negative, got -2"),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.tensor([1.0, 2.0]))


def test_nan_comes_out_where_values_are_not_read():
    k = torch.tensor([math.nan, 1.0])
    out = vmap(lambda k: special.log_normalizer(k, 3))(k)
    assert out[0].isnan()
    assert out[1].isfinite()
