"""HYPERBOLIC is eq. 2: against its letter, geoopt, the flat limit; then its boundary, chunks and company."""

import mpmath
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reference import gyro
from reference.poincare import gradients, head_logits, problem
from spaceform.geometry import PoincareBall
from spaceform.geometry import hyperbolic as ball
from spaceform.heads import StandardHead
from spaceform.heads.hyperbolic import HyperbolicHead, hyperbolic_cross_entropy, hyperbolic_logits

# torch.compile makes an instance of every autograd function it meets, against torch's own advice.
torch_instantiates = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
laws = settings(max_examples=60, deadline=None, derandomize=True)


@laws
@given(st.integers(0, 10_000), st.floats(1e-6, 20.0), st.integers(1, 20), st.floats(1e-3, 4.0))
def test_logits_and_their_gradients_are_those_of_eq_2(seed: int, c: float, dim: int, reach: float):
    z, _, points, normals = (
        t.requires_grad_() if t.is_floating_point() else t for t in problem(c, 6, 5, dim, seed, reach)
    )
    ours, literal = hyperbolic_logits(z, points, normals, c), head_logits(z, points, normals, c)
    size = literal.abs().max().item()
    torch.testing.assert_close(ours, literal, rtol=1e-9, atol=1e-9 * size)
    for got, expected in zip(
        gradients(ours, z, points, normals), gradients(literal, z, points, normals), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-8 * expected.abs().max().item())


@pytest.mark.parametrize("c", [1e-5, 0.3, 2.0])
def test_gradcheck(c: float):
    z, y, points, normals = problem(c, 3, 4, 3, reach=2.0)
    z[0] *= 20 / (c**0.5 * z[0].norm())  # beyond the projection
    for t in (z, points, normals):
        t.requires_grad_()
    inputs = (z, points, normals)
    assert torch.autograd.gradcheck(lambda z, p, a: hyperbolic_logits(z, p, a, c), inputs)
    for chunk in (None, 3):
        assert torch.autograd.gradcheck(
            lambda z, p, a, chunk=chunk: hyperbolic_cross_entropy(z, y, p, a, c, class_chunk=chunk), inputs
        )


@pytest.mark.parametrize("c", [1e-5, 0.3, 2.0])
def test_agrees_with_geoopt(c: float):
    head = HyperbolicHead(7, 9, curvature=c).double()
    z = torch.randn(30, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.2 / c**0.5
    k = torch.tensor(-c, dtype=torch.float64)
    x, p = gyro.expmap0(z, k=k), gyro.expmap0(head.points, k=k)
    a = head.normals / (gyro.lambda_x(p, k=k, keepdim=True) / 2)
    expected = gyro.dist2plane(x[:, None], p, a, k=k, signed=True, scaled=True) * gyro.lambda_x(p, k=k)
    torch.testing.assert_close(head.logits(z), expected, rtol=1e-9, atol=1e-9 * expected.abs().max().item())


@laws
@given(st.integers(0, 10_000), st.integers(1, 20))
def test_the_flat_limit_is_a_euclidean_softmax_with_factor_4(seed: int, dim: int):
    z, y, points, normals = problem(1.0, 6, 5, dim, seed)
    z.requires_grad_()
    flat = 4 * ((z[:, None] - points) * normals).sum(-1)
    torch.testing.assert_close(hyperbolic_logits(z, points, normals, 1e-13), flat, rtol=1e-8, atol=1e-8)
    loss = hyperbolic_cross_entropy(z, y, points, normals, 1e-13, riemannian_gradient=True)
    expected = F.cross_entropy(flat, y, reduction="none")
    torch.testing.assert_close(loss, expected, rtol=1e-8, atol=1e-8)
    # The Riemannian gradient takes the factor away again: softmax minus one-hot, times the normals.
    p = flat.softmax(-1) - F.one_hot(y, 5)
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), z)[0], p @ normals, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("riemannian", [True, False])
@pytest.mark.parametrize(("learned", "chunk"), [(False, None), (False, 2), (True, None)])
def test_with_scale_1_the_flat_limit_is_standard(riemannian: bool, learned: bool, chunk: int | None):
    """Values and all gradients, but for the bias ⟨p̃, ã⟩: so learning rates carry over."""
    options = {"riemannian_gradient": riemannian, "learn_curvature": learned, "class_chunk": chunk}
    head = HyperbolicHead(6, 5, curvature=1e-13, scale=1.0, **options).double()
    z, y, _, _ = problem(1.0, 8, 5, 6)
    standard = StandardHead(6, 5).double()
    with torch.no_grad():
        head.points.zero_()
        standard.weight.copy_(head.normals)
    z.requires_grad_()
    bound = 1e-6 if learned else 1e-9  # a learned curvature stops at 1e-8
    torch.testing.assert_close(head(z, y), standard(z, y), rtol=bound, atol=bound)
    ours = gradients(head(z, y), z, head.normals)
    theirs = gradients(standard(z, y), z, standard.weight)
    torch.testing.assert_close(ours, theirs, rtol=bound, atol=bound)


@pytest.mark.parametrize("c", [1e-5, 0.3])
def test_the_scale_is_a_factor_of_the_normals(c: float):
    torch.manual_seed(0)
    head = HyperbolicHead(6, 5, curvature=c, scale=1.0).double()
    eq_2 = HyperbolicHead(6, 5, curvature=c).double()
    with torch.no_grad():
        eq_2.points.copy_(head.points)
        eq_2.normals.copy_(head.normals / 4)
    z, y, _, _ = problem(c, 8, 5, 6)
    z.requires_grad_()
    torch.testing.assert_close(head.logits(z), eq_2.logits(z))
    torch.testing.assert_close(head(z, y), eq_2(z, y))
    (ours,), (theirs,) = gradients(head(z, y), z), gradients(eq_2(z, y), z)
    torch.testing.assert_close(ours, 4 * theirs)  # the same factor (1 − c‖x‖²)², which is 1 at the origin
    assert "scale=1" in repr(head)
    with pytest.raises(ValueError, match="scale must be positive and finite, got 0"):
        HyperbolicHead(6, 5, scale=0.0)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("dim", [2, 8])
@pytest.mark.parametrize("c", [1e-4, 0.05, 0.3, 1.0, 4.0])
def test_float32_is_within_1e_5_of_mpmath_up_to_distance_twelve(c: float, dim: int, learned: bool):
    """Relative to the largest logit of the embedding, which is 2‖z‖ from the origin. Half lie on planes."""
    z, y, points, normals = problem(c, 20, 10, dim, dtype=torch.float32)
    head = HyperbolicHead(dim, 10, curvature=c, learn_curvature=learned)
    z = F.normalize(z) * torch.linspace(0.05, 6, 20)[:, None]
    with torch.no_grad():
        head.points.copy_(F.normalize(points) * torch.linspace(0.2, 6, 10)[:, None])
        z[1::2] = head.points
        head.normals.copy_(normals)
        c = head.curvature.value
    found = head.logits(z)
    exact = torch.zeros_like(found, dtype=torch.float64)
    with mpmath.workdps(50):
        for i, row in enumerate(z.tolist()):
            for j, (p, a) in enumerate(zip(head.points.tolist(), normals.tolist(), strict=True)):
                exact[i, j] = float(eq_2_in_mpmath(row, p, a, c))
    assert found.dtype == torch.float32
    assert ((found.double() - exact).abs().amax(1) / exact.abs().amax(1)).max().item() <= 1e-5
    for chunk in (None, 4):
        head.class_chunk = chunk
        loss, expected = head(z, y), F.cross_entropy(exact, y, reduction="none")
        assert loss.dtype == torch.float32
        assert ((loss.double() - expected).abs() <= 2e-5 * exact.abs().amax(1)).all()


def eq_2_in_mpmath(z: list[float], point: list[float], normal: list[float], c: float) -> mpmath.mpf:
    """Eq. 2 by Möbius additions, as it is written: x and p by the exponential map, a = (1 − c‖p‖²) ã.

    A point x nearer to the boundary than 10⁻³/√c is moved away from it.
    """
    k = mpmath.mpf(c)
    root = mpmath.sqrt(k)

    def dot(u: list[mpmath.mpf], v: list[mpmath.mpf]) -> mpmath.mpf:
        return mpmath.fsum(a * b for a, b in zip(u, v, strict=True))

    def expmap0(v: list[float]) -> list[mpmath.mpf]:
        u = [mpmath.mpf(a) for a in v]
        r = mpmath.sqrt(dot(u, u))
        return [mpmath.tanh(root * r) / (root * r) * a for a in u] if r else u

    x, p = expmap0(z), expmap0(point)
    edge = (1 - mpmath.mpf(ball.MARGIN)) / (root * mpmath.sqrt(dot(x, x)))
    x = [min(edge, 1) * a for a in x]
    a = [(1 - k * dot(p, p)) * mpmath.mpf(b) for b in normal]
    minus = [-b for b in p]
    pp, xx, px = dot(p, p), dot(x, x), dot(minus, x)
    below = 1 + 2 * k * px + k * k * pp * xx
    w = [((1 + 2 * k * px + k * xx) * m + (1 - k * pp) * b) / below for m, b in zip(minus, x, strict=True)]
    size = mpmath.sqrt(dot(a, a))
    inner = 2 * root * dot(w, a) / ((1 - k * dot(w, w)) * size)
    return 2 / (1 - k * pp) * size / root * mpmath.asinh(inner)


@laws
@given(st.integers(0, 10_000), st.floats(1e-5, 5.0), st.integers(2, 12))
def test_a_rotation_of_everything_changes_nothing(seed: int, c: float, dim: int):
    z, _, points, normals = problem(c, 6, 5, dim, seed)
    q = torch.linalg.qr(problem(1.0, dim, 1, dim, seed + 1)[0]).Q
    turned = hyperbolic_logits(z @ q, points @ q, normals @ q, c)
    expected = hyperbolic_logits(z, points, normals, c)
    torch.testing.assert_close(turned, expected, rtol=1e-10, atol=1e-11 * expected.abs().max().item())


@pytest.mark.parametrize("c", [1e-5, 1.0])
def test_the_riemannian_gradient_scales_the_embedding_alone(c: float):
    z, y, points, normals = problem(c, 6, 5, 4, reach=3.0)
    inputs = [t.requires_grad_() for t in (z, points, normals)]
    plain = gradients(hyperbolic_cross_entropy(z, y, points, normals, c), *inputs)
    x = ball.project(ball.expmap0(z, c), c)
    factor = ((1 - c * x.square().sum(-1, keepdim=True)) / 2) ** 2
    for chunk in (None, 2):
        scaled = gradients(
            hyperbolic_cross_entropy(z, y, points, normals, c, riemannian_gradient=True, class_chunk=chunk),
            *inputs,
        )
        torch.testing.assert_close(scaled[0], plain[0] * factor)
        torch.testing.assert_close(scaled[1:], plain[1:])


def test_prediction_is_differentiated_as_it_is():
    head = HyperbolicHead(4, 5, curvature=1.0).double()
    z = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert head.riemannian_gradient
    assert torch.autograd.gradcheck(head.logits, (z,))
    assert torch.autograd.gradcheck(head.log_probs, (z,))


@pytest.mark.parametrize("c", [1e-5, 1.0])
@pytest.mark.parametrize("chunk", [1, 7, 16, 37, 100])
def test_chunks_change_neither_value_nor_gradient(c: float, chunk: int):
    z, y, points, normals = problem(c, 11, 37, 8, dtype=torch.float32)
    inputs = [t.requires_grad_() for t in (z, points, normals)]
    whole = hyperbolic_cross_entropy(z, y, points, normals, c)
    parts = hyperbolic_cross_entropy(z, y, points, normals, c, class_chunk=chunk)
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-5)
    for got, expected in zip(gradients(parts, *inputs), gradients(whole, *inputs), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


def test_chunks_bound_the_memory():
    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.sizes = set()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            self.sizes |= {t.numel() for t in torch.utils._pytree.tree_leaves(out) if isinstance(t, Tensor)}
            return out

    z, y, points, normals = problem(1e-5, 16, 1000, 8, dtype=torch.float32)
    inputs = [t.requires_grad_() for t in (z, points, normals)]
    with Largest() as seen:
        torch.autograd.grad(
            hyperbolic_cross_entropy(z, y, points, normals, 1e-5, class_chunk=50).sum(), inputs
        )
    assert max(seen.sizes - {1000 * 8}) <= 50 * 16  # besides the gradients, nothing larger than a chunk


def test_gradients_that_nobody_asked_for_are_not_computed():
    z, y, points, normals = problem(1.0, 4, 5, 3)
    points.requires_grad_()
    normals.requires_grad_()
    for chunk in (None, 2):
        dp, da = gradients(
            hyperbolic_cross_entropy(z, y, points, normals, 1.0, class_chunk=chunk), points, normals
        )
        z2 = z.clone().requires_grad_()
        (dz,) = gradients(
            hyperbolic_cross_entropy(z2, y, points.detach(), normals.detach(), 1.0, class_chunk=chunk), z2
        )
        all_three = gradients(hyperbolic_cross_entropy(z2, y, points, normals, 1.0), z2, points, normals)
        torch.testing.assert_close((dz, dp, da), all_three)


@pytest.mark.parametrize("c", [1e-5, 1.0])
def test_float32_keeps_its_digits_up_to_the_projection(c: float):
    worst = 0.0
    for seed, reach in enumerate((1e-3, 0.1, 1.0, 3.0, 10.0)):
        z, y, points, normals = problem(c, 64, 50, 32, seed, reach, torch.float32)
        single = hyperbolic_logits(z, points, normals, c).double()
        double = hyperbolic_logits(z.double(), points.double(), normals.double(), c)
        worst = max(worst, ((single - double).abs().max() / double.abs().max()).item())
        inputs = [t.requires_grad_() for t in (z, points, normals)]
        wide = [t.detach().double().requires_grad_() for t in inputs]
        got = gradients(hyperbolic_cross_entropy(z, y, points, normals, c), *inputs)
        exact = gradients(hyperbolic_cross_entropy(wide[0], y, *wide[1:], c), *wide)
        for g, e in zip(got, exact, strict=True):
            assert ((g - e).norm() / e.norm()).item() <= 5e-6
    assert worst <= 4e-6


EXTREMES = {
    "zero": lambda z: 0 * z,
    "denormal": lambda z: 1e-40 * z,
    "tiny": lambda z: 1e-20 * z,
    "large": lambda z: 1e6 * z,
    "huge": lambda z: 1e30 * z,
    "largest": lambda z: torch.full_like(z, torch.finfo(z.dtype).max),
}


@pytest.mark.parametrize("c", [1e-5, 1.0, 100.0])
@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize(("batch", "classes"), [(8, 5), (1, 5), (8, 1), (1, 1)])
@pytest.mark.parametrize("chunk", [None, 2])
def test_extremes_are_finite(c: float, extreme: str, batch: int, classes: int, chunk: int | None):
    head = HyperbolicHead(4, classes, curvature=c, class_chunk=chunk)
    z = EXTREMES[extreme](torch.randn(batch, 4, generator=torch.Generator().manual_seed(0))).requires_grad_()
    with torch.no_grad():
        head.points[0] = 0
        head.normals[-1] = 0
    loss = head(z, torch.arange(batch) % classes)
    assert loss.isfinite().all()
    assert head.predict_proba(z).isfinite().all()
    for gradient in torch.autograd.grad(loss.sum(), [z, *head.parameters()]):
        assert gradient.isfinite().all()


def test_planes_far_outside_and_long_normals_are_finite():
    z, y, points, normals = problem(1.0, 4, 5, 3, dtype=torch.float32)
    inputs = [z.requires_grad_(), (1e4 * points).requires_grad_(), (1e4 * normals).requires_grad_()]
    loss = hyperbolic_cross_entropy(inputs[0], y, *inputs[1:], 1.0)
    assert loss.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss.sum(), inputs))


def test_a_zero_normal_has_zero_logit_and_still_learns():
    z, y, points, normals = problem(1.0, 4, 5, 3)
    normals[2] = 0
    normals.requires_grad_()
    logits = hyperbolic_logits(z, points, normals, 1.0)
    assert logits[:, 2].abs().max() <= 1e-10
    (da,) = torch.autograd.grad(F.cross_entropy(logits, y), normals)
    assert da.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("c", [1e-5, 1.0])
@pytest.mark.parametrize("chunk", [None, 30])
def test_autocast_keeps_the_loss(dtype: torch.dtype, c: float, chunk: int | None):
    torch.manual_seed(0)
    head = HyperbolicHead(64, 100, curvature=c, class_chunk=chunk)
    net = torch.nn.Linear(64, 64)
    x, y = torch.randn(32, 64), torch.randint(100, (32,))
    exact = head(net(x), y)
    with torch.autocast("cpu", dtype):
        z = net(x)
        loss = head(z, y)
    assert z.dtype == dtype
    assert loss.dtype == torch.float32
    assert abs(loss.mean().item() / exact.mean().item() - 1) <= 0.01
    loss.mean().backward()
    assert net.weight.grad is not None
    assert net.weight.grad.isfinite().all()


def test_float64_from_end_to_end():
    head = HyperbolicHead(4, 5).double()
    z = torch.randn(3, 4, dtype=torch.float64)
    assert head(z, torch.tensor([0, 4, 2])).dtype == head.logits(z).dtype == torch.float64


def test_what_the_head_says_of_itself():
    head = HyperbolicHead(4, 5, curvature=0.2, class_chunk=3)
    z = torch.randn(7, 4)
    assert head.geometry == PoincareBall(0.2)
    torch.testing.assert_close(head.confidence(z), z.norm(dim=-1))
    torch.testing.assert_close(head.predict_proba(z).sum(-1), torch.ones(7))
    torch.testing.assert_close(head.log_probs(z), head.logits(z).log_softmax(-1))
    torch.testing.assert_close(head.logit_samples(z), head.logits(z)[None])
    y = torch.arange(7) % 5
    torch.testing.assert_close(head(z, y), F.cross_entropy(head.logits(z), y, reduction="none"))
    (group,) = head.parameter_groups()
    assert group["name"] == "hyperplanes"
    assert {id(p) for p in group["params"]} == {id(p) for p in head.parameters()}
    assert "curvature=0.2, riemannian_gradient=True" in repr(head)


@pytest.mark.parametrize("c", [0.0, -1.0, float("nan")])
def test_a_curvature_that_is_none(c: float):
    with pytest.raises(ValueError, match=f"curvature must be a positive finite number, got {c}"):
        HyperbolicHead(3, 4, curvature=c)


def test_bad_input_is_named():
    head = HyperbolicHead(3, 4)
    z, y = torch.zeros(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"y must lie in 0\.\.3, got 4"):
        head(z, torch.tensor([0, 4]))
    with pytest.raises(ValueError, match=r"z must have shape \(batch, 3\), got \(2, 5\)"):
        head(torch.zeros(2, 5), y)
    with pytest.raises(ValueError, match="z must be finite"):
        head(torch.full((2, 3), torch.nan), y)
