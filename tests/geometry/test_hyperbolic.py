"""The laws of the ball, its peers, its boundary."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reference import gyro
from reference.poincare import eq2_logits, exact_distance
from reference.poincare import mobius_add as textbook_add
from spaceform.geometry import hyperbolic as ball

CURVATURES = [1e-5, 0.1, 1.0, 7.0]


def points(
    c: float, n: int, dim: int, seed: int, reach: float = 3.0, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Points with √c × distance from 0 uniform up to `reach`."""
    g = torch.Generator().manual_seed(seed)
    u = torch.nn.functional.normalize(torch.randn(n, dim, generator=g, dtype=torch.float64), dim=-1)
    r = reach / 2 * torch.rand(n, 1, generator=g, dtype=torch.float64)
    return (torch.tanh(r) * u / math.sqrt(c)).to(dtype)


def plain(c: float) -> Tensor:
    return torch.tensor(-c, dtype=torch.float64)


laws = settings(max_examples=60, deadline=None, derandomize=True)
seeds, curvatures, dims = st.integers(0, 10_000), st.floats(1e-6, 20.0), st.integers(1, 40)


@laws
@given(seeds, curvatures, dims)
def test_left_cancellation(seed: int, c: float, dim: int):
    x, y = points(c, 8, dim, seed), points(c, 8, dim, seed + 1)
    torch.testing.assert_close(
        ball.mobius_add(-x, ball.mobius_add(x, y, c), c), y, rtol=0, atol=1e-12 / c**0.5
    )


@laws
@given(seeds, curvatures, dims)
def test_zero_is_neutral_and_minus_x_is_the_inverse(seed: int, c: float, dim: int):
    x = points(c, 8, dim, seed)
    zero = torch.zeros_like(x)
    for sum_ in (ball.mobius_add(x, zero, c), ball.mobius_add(zero, x, c)):
        torch.testing.assert_close(sum_, x, rtol=1e-14, atol=0)
    assert torch.equal(ball.mobius_add(x, -x, c), zero)


@laws
@given(seeds, curvatures, dims)
def test_left_translation_is_an_isometry(seed: int, c: float, dim: int):
    x, y, w = (points(c, 8, dim, seed + i, reach=2.0) for i in range(3))
    moved = ball.distance(ball.mobius_add(w, x, c), ball.mobius_add(w, y, c), c)
    torch.testing.assert_close(moved, ball.distance(x, y, c), rtol=1e-11, atol=1e-13 / c**0.5)


@laws
@given(seeds, curvatures, dims)
def test_distance_is_a_metric(seed: int, c: float, dim: int):
    x, y, w = (points(c, 8, dim, seed + i, reach=8.0) for i in range(3))
    d = ball.distance(x, y, c)
    assert torch.equal(d, ball.distance(y, x, c))
    assert torch.equal(ball.distance(x, x, c), torch.zeros(8, dtype=x.dtype))
    assert (d <= (ball.distance(x, w, c) + ball.distance(w, y, c)) * (1 + 1e-12)).all()


@laws
@given(seeds, curvatures, dims)
def test_exponential_and_logarithm_are_inverse(seed: int, c: float, dim: int):
    x = points(c, 8, dim, seed, reach=8.0)
    v = ball.logmap0(x, c)
    torch.testing.assert_close(ball.expmap0(v, c), x, rtol=1e-11, atol=0)
    torch.testing.assert_close(
        2 * v.norm(dim=-1), ball.distance(x, torch.zeros_like(x), c), rtol=1e-12, atol=0
    )


@laws
@given(seeds, dims)
def test_the_flat_limit(seed: int, dim: int):
    g = torch.Generator().manual_seed(seed)
    x, y, a = torch.randn(3, 8, dim, generator=g, dtype=torch.float64)
    c = 1e-14
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(ball.mobius_add(x, y, c), x + y, **close)
    torch.testing.assert_close(ball.expmap0(x, c), x, **close)
    torch.testing.assert_close(ball.logmap0(x, c), x, **close)
    torch.testing.assert_close(ball.conformal_factor(x, c), torch.full((8,), 2.0, dtype=x.dtype), **close)
    torch.testing.assert_close(ball.distance(x, y, c), 2 * (x - y).norm(dim=-1), **close)
    flat = 4 * ((x[:, None] - y) * a).sum(-1)
    torch.testing.assert_close(ball.hyperplane_logits(x, y, a, c), flat, **close)


@laws
@given(seeds, curvatures, dims)
def test_hyperplane_logits_are_eq_2(seed: int, c: float, dim: int):
    z, p, a = points(c, 9, dim, seed), points(c, 5, dim, seed + 1), points(c, 5, dim, seed + 2)
    expected = eq2_logits(z, p, a, c)
    torch.testing.assert_close(ball.hyperplane_logits(z, p, a, c), expected, rtol=1e-10, atol=1e-11 / c)


@laws
@given(seeds, curvatures, st.integers(2, 40))
def test_hyperplane_logits_vanish_on_the_plane_and_measure_the_distance_to_it(seed: int, c: float, dim: int):
    p, a, v = points(c, 1, dim, seed), points(c, 1, dim, seed + 1), points(c, 1, dim, seed + 2)
    tangent = v - (v * a).sum() / (a * a).sum() * a
    on_plane = ball.mobius_add(p, ball.expmap0(tangent, c), c)
    scale = ball.conformal_factor(p, c) * a.norm()
    assert (ball.hyperplane_logits(on_plane, p, a, c) / scale).abs().item() <= 1e-11 / c**0.5
    # Along the normal from p the nearest point of the plane is p itself.
    away = ball.mobius_add(p, ball.expmap0(a / a.norm() / c**0.5, c), c)
    torch.testing.assert_close(
        (ball.hyperplane_logits(away, p, a, c) / scale).squeeze(),
        ball.distance(away, p, c).squeeze(),
        rtol=1e-10,
        atol=0,
    )


@pytest.mark.parametrize("c", CURVATURES)
def test_agrees_with_geoopt(c: float):
    # Farther out it is geoopt that rounds, by 1.2e-9 at c = 1e-5 against 60 digits; ours keeps 6e-16.
    x, y = points(c, 200, 6, 0, reach=2.0), points(c, 200, 6, 1, reach=2.0)
    p, a = points(c, 11, 6, 2, reach=2.0), points(c, 11, 6, 3, reach=2.0)
    k, unit = plain(c), 1 / math.sqrt(c)
    close = {"rtol": 1e-9, "atol": 1e-9 * unit}
    torch.testing.assert_close(ball.mobius_add(x, y, c), gyro.mobius_add(x, y, k=k), **close)
    torch.testing.assert_close(ball.expmap0(x, c), gyro.expmap0(x, k=k), **close)
    torch.testing.assert_close(ball.logmap0(x, c), gyro.logmap0(x, k=k), **close)
    torch.testing.assert_close(ball.conformal_factor(x, c), gyro.lambda_x(x, k=k), **close)
    torch.testing.assert_close(ball.project(x, c, 0.2), gyro.project(x, k=k, eps=0.2), **close)
    torch.testing.assert_close(ball.distance(x, y, c), gyro.dist(x, y, k=k), **close)
    torch.testing.assert_close(ball.pairwise_distance(x, y, c), gyro.dist(x[:, None], y, k=k), **close)
    # Its distance to a plane carries ‖a‖ when scaled; eq. 2 has the conformal factor of p in front as well.
    planes = gyro.dist2plane(x[:, None], p, a, k=k, signed=True, scaled=True) * gyro.lambda_x(p, k=k)
    torch.testing.assert_close(ball.hyperplane_logits(x, p, a, c), planes, rtol=1e-9, atol=1e-9 * unit * unit)


def test_textbook_addition_in_hand_values():
    x, y = torch.tensor([0.5, 0.0]).double(), torch.tensor([0.5, 0.0]).double()
    torch.testing.assert_close(
        ball.mobius_add(x, y, 1.0), torch.tensor([0.8, 0.0]).double()
    )  # velocities add
    torch.testing.assert_close(ball.mobius_add(x, y, 1.0), textbook_add(x, y, 1.0))
    assert ball.distance(x, torch.zeros_like(x), 1.0).item() == pytest.approx(math.log(3), rel=1e-15)
    assert ball.conformal_factor(x, 1.0).item() == pytest.approx(8 / 3, rel=1e-15)


@pytest.mark.parametrize("c", [1e-5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_at_distance_12_and_for_near_neighbours(c: float, dtype: torch.dtype):
    torch.manual_seed(0)
    u = torch.nn.functional.normalize(torch.randn(12, 5, dtype=torch.float64), dim=-1)
    far = math.tanh(6.0) * u / math.sqrt(c)
    x = far.to(dtype)
    y = torch.cat([far[6:], far[:6] + 1e-5 / math.sqrt(c) * u[6:]]).mul(0.9999).to(dtype)
    exact = torch.tensor([exact_distance(s, t, c) for s, t in zip(x, y, strict=True)], dtype=torch.float64)
    rtol = {torch.float32: 3e-6, torch.float64: 1e-10}[dtype]
    torch.testing.assert_close(ball.distance(x, y, c).double(), exact, rtol=rtol, atol=0)
    torch.testing.assert_close(ball.pairwise_distance(x, y, c).diag().double(), exact, rtol=rtol, atol=0)
    origin = torch.zeros_like(x)
    assert (ball.distance(x, origin, c) * math.sqrt(c) - 12).abs().max() <= (
        0.02 if dtype == torch.float32 else 1e-9
    )


@pytest.mark.parametrize("c", [1e-5, 1.0])
def test_float32_equals_float64_at_distance_12(c: float):
    x, y, p = (points(c, 32, 6, seed, reach=12.0, dtype=torch.float32) for seed in range(3))
    a = torch.randn(32, 6, generator=torch.Generator().manual_seed(3))
    x[:16] = p[:16]
    x[16:24] = math.tanh(6.0) / math.sqrt(c) * torch.nn.functional.normalize(x[16:24], dim=-1)
    functions = {
        "add": (lambda x, y: ball.mobius_add(x, y, c), (x, y)),
        "factor": (lambda x: ball.conformal_factor(x, c), (x,)),
        "logarithm": (lambda x: ball.logmap0(x, c), (x,)),
        "distance": (lambda x, y: ball.distance(x, y, c), (x, y)),
        "pairwise": (lambda x, y: ball.pairwise_distance(x, y, c), (x, y)),
        "planes": (lambda x, p, a: ball.hyperplane_logits(x, p, a, c), (x, p, a)),
    }
    for name, (function, args) in functions.items():
        single, double = function(*args), function(*(t.double() for t in args))
        assert single.dtype == torch.float32
        size = double.abs().max().item()
        torch.testing.assert_close(
            single.double(), double, rtol=2e-6, atol=1e-7 * size, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_are_finite_up_to_the_boundary(dtype: torch.dtype):
    c = 1.0
    radii = torch.tensor(
        [0.0, 1e-30, 1e-8, 0.5, 0.999, 1 - 1e-6, 1 - 1e-15, 1.0, 1.0 + 1e-6], dtype=torch.float64
    )
    x = (radii[:, None] * torch.tensor([[0.6, 0.8]], dtype=torch.float64)).to(dtype).requires_grad_()
    n = len(radii)
    y = x.detach().flip(0).clone().requires_grad_()
    p = x.detach().clone().requires_grad_()
    a = torch.randn(n, 2, generator=torch.Generator().manual_seed(0), dtype=dtype).requires_grad_()
    for value in (
        ball.mobius_add(x, y, c),
        ball.mobius_add(x, -x, c),
        ball.expmap0(x, c),
        ball.expmap0(1e6 * x, c),
        ball.logmap0(x, c),
        ball.project(x, c),
        ball.conformal_factor(x, c),
        ball.distance(x, y, c),
        ball.distance(x, x, c),
        ball.pairwise_distance(x, y, c),
        ball.hyperplane_logits(x, p, a, c),
    ):
        assert value.isfinite().all()
        for gradient in torch.autograd.grad(value.sum(), (x, y, p, a), allow_unused=True):
            assert gradient is None or gradient.isfinite().all()


def test_gradients():
    x, y = points(0.7, 4, 3, 0).requires_grad_(), points(0.7, 4, 3, 1).requires_grad_()
    p, a = points(0.7, 5, 3, 2).requires_grad_(), points(0.7, 5, 3, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: ball.mobius_add(x, y, 0.7), (x, y))
    assert torch.autograd.gradcheck(
        lambda x: ball.logmap0(ball.project(ball.expmap0(x, 0.7), 0.7, 0.5), 0.7), (x,)
    )
    assert torch.autograd.gradcheck(lambda x, y: ball.distance(x, y, 0.7), (x, y))
    assert torch.autograd.gradcheck(lambda x, y: ball.pairwise_distance(x, y, 0.7), (x, y))
    assert torch.autograd.gradcheck(lambda x, p, a: ball.hyperplane_logits(x, p, a, 0.7), (x, p, a))
    assert torch.autograd.gradcheck(lambda x: ball.conformal_factor(x, 0.7), (x,))


def test_projection_keeps_what_is_inside_and_the_direction_of_what_is_not():
    x = torch.tensor([[0.3, 0.4], [3.0, 4.0], [0.0, 0.0]]).double()
    out = ball.project(x, 0.25)
    assert torch.equal(out[0], x[0])
    torch.testing.assert_close(out[1], torch.tensor([0.6, 0.8]).double() * 2 * (1 - ball.MARGIN))
    assert torch.equal(out[2], x[2])


def test_pairwise_and_plane_memory_never_holds_a_vector_per_pair():
    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for t in out if isinstance(out, (tuple, list)) else (out,):
                if isinstance(t, Tensor):
                    self.size = max(self.size, t.numel())
            return out

    x = points(1.0, 60, 64, 0, dtype=torch.float32).requires_grad_()
    with Largest() as seen:
        ball.pairwise_distance(x, x, 1.0).sum().backward()
        ball.hyperplane_logits(x, x, x, 1.0).sum().backward()
    assert seen.size <= 60 * 64


@pytest.mark.compiled
def test_compiles():
    @torch.compile(backend="aot_eager", fullgraph=True)
    def f(x, p, a):
        return ball.hyperplane_logits(
            ball.project(ball.expmap0(x, 0.1), 0.1), p, a, 0.1
        ), ball.pairwise_distance(x, p, 0.1)

    x, p, a = points(0.1, 7, 4, 0), points(0.1, 5, 4, 1), points(0.1, 5, 4, 2)
    torch.testing.assert_close(f(x, p, a)[0], ball.hyperplane_logits(ball.expmap0(x, 0.1), p, a, 0.1))
    torch.testing.assert_close(f(x, p, a)[1], ball.pairwise_distance(x, p, 0.1))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("c", [0, -1.0, math.nan, math.inf, "1"])
def test_a_curvature_that_is_none(c):
    with pytest.raises(ValueError, match=f"curvature must be a positive finite number, got {c!r}"):
        ball.expmap0(torch.zeros(2, 3), c)


@pytest.mark.usefixtures("unchecked")
def test_points_that_are_none():
    x = torch.zeros(2, 3)
    with pytest.raises(TypeError, match=r"x must be a floating-point tensor, got torch\.int64"):
        ball.logmap0(x.long(), 1.0)
    with pytest.raises(ValueError, match="x must have a last axis"):
        ball.conformal_factor(torch.tensor(1.0), 1.0)
    with pytest.raises(ValueError, match="last axes must have one size, got x: 3, y: 4"):
        ball.mobius_add(x, torch.zeros(2, 4), 1.0)
    with pytest.raises(ValueError, match=r"both be \(classes, dim\), got \(2, 3\) and \(5, 3\)"):
        ball.hyperplane_logits(x, x, torch.zeros(5, 3), 1.0)
    with pytest.raises(ValueError, match="margin must lie between 0 and 1, got 2"):
        ball.project(x, 1.0, 2.0)
