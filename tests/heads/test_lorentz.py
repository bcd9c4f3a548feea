"""LORENTZ: HYPERBOLIC under the isometry, STANDARD in the flat limit; learned curvature, clipping."""

import math

import mpmath
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import config

from reference import gyro
from spaceform.geometry import Hyperboloid, PoincareBall
from spaceform.geometry.hyperbolic import MARGIN
from spaceform.heads import HyperbolicHead, LorentzHead, StandardHead
from spaceform.heads._kernels import hyperboloid
from spaceform.heads.hyperbolic import _planes

laws = settings(max_examples=40, deadline=None)


def case(dim=5, classes=7, batch=9, *, seed=0, reach=1.0, dtype=torch.float64, **kwargs):
    """Planes on both sides of the origin; `reach` is the typical √c times the norm of an embedding."""
    g = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    head = LorentzHead(dim, classes, **kwargs).to(dtype)
    size = reach / math.sqrt(head.curvature.given) / math.sqrt(dim)
    z = size * torch.randn(batch, dim, generator=g, dtype=torch.float64).to(dtype)
    with torch.no_grad():
        head.offsets.copy_(0.5 * size * torch.randn(classes, generator=g, dtype=torch.float64))
    return head, z.requires_grad_(), torch.randint(classes, (batch,), generator=g)


def literal(head, z):
    """The regression of Bdeir et al. as it is written: a normal w = (w_t, w_s), α = w∘x, β = √(w∘w)."""
    c = head.curvature(z.dtype)
    r = z.norm(dim=1, keepdim=True)
    x_s = torch.sinh(c.sqrt() * r) / (c.sqrt() * r) * z
    x_t = (1 / c + x_s.square().sum(1)).sqrt()
    w_t = torch.sinh(c.sqrt() * head.offsets) * head.normals.norm(dim=1)
    w_s = torch.cosh(c.sqrt() * head.offsets)[:, None] * head.normals
    alpha = x_s @ w_s.T - x_t[:, None] * w_t
    beta = (w_s.square().sum(1) - w_t.square()).sqrt()
    return alpha.sign() * beta / c.sqrt() * torch.asinh(c.sqrt() * alpha / beta).abs()


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("c", [1e-6, 0.1, 10.0])
@pytest.mark.parametrize("learned", [False, True])
def test_equals_the_literal_equation(c, chunk, learned):
    head, z, y = case(curvature=c, class_chunk=chunk, learn_curvature=learned)
    torch.testing.assert_close(head.logits(z), literal(head, z), rtol=1e-9, atol=1e-9)
    inputs, upstream = [z, *head.parameters()], torch.linspace(-1, 2, len(y), dtype=z.dtype)
    expected = F.cross_entropy(literal(head, z), y, reduction="none")
    torch.testing.assert_close(head(z, y), expected, rtol=1e-9, atol=1e-9)
    found = torch.autograd.grad(head(z, y), inputs, upstream)
    for a, b in zip(found, torch.autograd.grad(expected, inputs, upstream), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


@laws
@given(st.integers(0, 10_000), st.floats(1e-6, 10.0), st.integers(1, 12), st.floats(0.1, 3.0))
def test_is_hyperbolic_under_the_isometry(seed, c, dim, reach):
    torch.manual_seed(seed)
    ball = HyperbolicHead(dim, 6, curvature=c).double()
    z = reach / math.sqrt(c * dim) * torch.randn(8, dim, dtype=torch.float64)
    with torch.no_grad():
        ball.points.mul_(reach / math.sqrt(c))
        plane = _planes(ball.points, ball.normals, c)
        lorentz = LorentzHead(dim, 6, curvature=c).double()
        size = plane.v.norm(dim=1, keepdim=True)
        lorentz.normals.copy_(2 * plane.n * plane.v / size)
        lorentz.offsets.copy_(torch.asinh(math.sqrt(c) * plane.o[:, 0]) / math.sqrt(c))
    expected = ball.logits(z)
    atol = 1e-9 * expected.abs().max().item()
    torch.testing.assert_close(lorentz.logits(2 * z), expected, rtol=1e-9, atol=atol)
    torch.testing.assert_close(
        lorentz.geometry.pairwise(2 * z, 2 * z), ball.geometry.pairwise(z, z), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("c", [1e-5, 0.3, 2.0])
def test_agrees_with_geoopt(c):
    """By its Poincaré ball, which is exact to more digits than its hyperboloid: z lies there at z/2."""
    head, z, _ = case(curvature=c)
    k, direction = torch.tensor(-c, dtype=torch.float64), F.normalize(head.normals)
    x, foot = gyro.expmap0(z / 2, k=k), gyro.expmap0(head.offsets[:, None] * direction / 2, k=k)
    distances = gyro.dist2plane(x[:, None], foot, direction, k=k, signed=True)
    expected = distances * head.normals.norm(dim=1)
    torch.testing.assert_close(head.logits(z), expected, rtol=1e-9, atol=1e-9 * expected.abs().max().item())
    apart = gyro.dist(x[:, None], x, k=k)
    torch.testing.assert_close(-head.geometry.pairwise(z, z), apart, rtol=1e-9, atol=1e-9 / c**0.5)


@pytest.mark.parametrize("learned", [False, True])
def test_is_standard_as_the_curvature_goes_to_zero(learned):
    head, z, y = case(curvature=1e-14, learn_curvature=learned)
    with torch.no_grad():
        z = (z / z.norm(dim=1, keepdim=True)).requires_grad_()
        head.offsets.zero_()
    standard = StandardHead(head.dim, head.num_classes).double()
    standard.weight.data = head.normals.data
    bound = 1e-9 if not learned else 1e-7  # a learned curvature stops at 1e-8
    torch.testing.assert_close(head.logits(z), standard.logits(z), rtol=bound, atol=bound)
    torch.testing.assert_close(
        torch.autograd.grad(head(z, y).sum(), z)[0],
        torch.autograd.grad(standard(z, y).sum(), z)[0],
        rtol=bound,
        atol=bound,
    )
    with torch.no_grad():
        head.offsets.copy_(torch.arange(7.0))
    bias = head.offsets * head.normals.norm(dim=1)
    torch.testing.assert_close(head.logits(z), standard.logits(z) - bias, rtol=10 * bound, atol=10 * bound)


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize(("learned", "clip"), [(False, None), (True, None), (True, 1.5)])
def test_gradients_by_finite_differences(chunk, learned, clip):
    head, z, y = case(curvature=0.5, learn_curvature=learned, clip=clip, class_chunk=chunk)
    assert torch.autograd.gradcheck(lambda z, *_: head(z, y), (z, *head.parameters()))


def in_mpmath(head, z):
    """The logits with 50 digits; R stops where the ball is projected."""
    exact = torch.zeros(len(z), head.num_classes, dtype=torch.float64)
    with mpmath.workdps(50):
        c, most = mpmath.mpf(head.curvature.given), 2 * mpmath.atanh(1 - mpmath.mpf(MARGIN))
        for i, row in enumerate(z.tolist()):
            r = mpmath.sqrt(sum(mpmath.mpf(a) ** 2 for a in row))
            R = min(mpmath.sqrt(c) * r, most)
            for j, (normal, a) in enumerate(zip(head.normals.tolist(), head.offsets.tolist(), strict=True)):
                n = mpmath.sqrt(sum(mpmath.mpf(b) ** 2 for b in normal))
                cos = sum(mpmath.mpf(p) * mpmath.mpf(q) for p, q in zip(row, normal, strict=True)) / (r * n)
                A = mpmath.sqrt(c) * mpmath.mpf(a)
                X = mpmath.cosh(A) * mpmath.sinh(R) * cos - mpmath.sinh(A) * mpmath.cosh(R)
                exact[i, j] = float(n / mpmath.sqrt(c) * mpmath.asinh(X))
    return exact


@pytest.mark.parametrize("dim", [2, 8])
@pytest.mark.parametrize("c", [1e-4, 0.05, 0.3, 1.0, 4.0])
def test_float32_keeps_its_digits_up_to_distance_twelve(c, dim):
    """Against mpmath, relative to the largest logit of the same embedding. Half of them lie on planes."""
    head, z, y = case(dim=dim, classes=12, batch=24, curvature=c, reach=3.0, dtype=torch.float32)
    with torch.no_grad():
        z = F.normalize(z) * torch.linspace(0.1, 12, 24)[:, None]
        head.offsets.copy_(torch.linspace(-12, 11, 12))
        z[::2] = F.normalize(head.normals) * head.offsets[:, None]
    exact = in_mpmath(head, z)
    found = head.logits(z)
    assert found.dtype == torch.float32
    assert ((found.double() - exact).abs().amax(1) / exact.abs().amax(1)).max().item() <= 1e-5
    for chunk in (None, 5):
        head.class_chunk = chunk
        loss = head(z, y)
        assert loss.dtype == torch.float32
        expected = F.cross_entropy(exact, y, reduction="none")
        bound = 2e-5 * exact.abs().amax(1)
        assert ((loss.double() - expected).abs() <= bound).all()


def test_products_are_in_float64_only_where_they_must_be():
    head, z, _ = case(curvature=1.0, reach=1.0, dtype=torch.float32)
    far = 6 * F.normalize(z.detach())
    assert head._points_and_planes(0.3 * F.normalize(z.detach()))[0].dtype == torch.float32
    assert head._points_and_planes(far)[0].dtype == torch.float64
    with torch.no_grad():
        head.offsets.zero_()
    assert head._points_and_planes(far / 3)[0].dtype == torch.float32


@pytest.mark.parametrize("make", [LorentzHead, HyperbolicHead])
@pytest.mark.parametrize("learned", [False, True])
def test_clipping_shortens_and_nothing_else(make, learned):
    torch.manual_seed(0)
    free = make(5, 4, curvature=0.2, learn_curvature=learned).double()
    head = make(5, 4, curvature=0.2, learn_curvature=learned, clip=1.0).double()
    head.load_state_dict(free.state_dict())
    z = torch.randn(20, 5, dtype=torch.float64)
    norm = z.norm(dim=1, keepdim=True)
    assert (norm > 1).any()
    short = z * (1 / norm).clamp_max(1)
    torch.testing.assert_close(head.logits(z), free.logits(short))
    torch.testing.assert_close(head.geometry.pairwise(z, z), free.geometry.pairwise(short, short))
    ranking = head.geometry.ranking(z)
    expected = free.geometry.ranking(short)
    torch.testing.assert_close(ranking.scores(ranking), expected.scores(expected))
    assert "clip=1.0" in repr(head)
    assert head.numbers() == {"curvature": pytest.approx(0.2), "clip": 1.0}
    assert free.numbers() == {"curvature": pytest.approx(0.2)}


@pytest.mark.parametrize("c", [1e-5, 0.1, 3.0])
@pytest.mark.parametrize("riemannian", [True, False])
@pytest.mark.parametrize("chunk", [None, 2])
def test_hyperbolic_with_a_learned_curvature_is_hyperbolic(c, riemannian, chunk):
    torch.manual_seed(0)
    fixed = HyperbolicHead(5, 4, curvature=c, riemannian_gradient=riemannian, class_chunk=chunk).double()
    options = {"riemannian_gradient": riemannian, "class_chunk": chunk, "learn_curvature": True}
    head = HyperbolicHead(5, 4, curvature=c, **options).double()
    head.curvature.log_curvature.data.fill_(math.log(c))
    z, y = (2 * torch.randn(9, 5, dtype=torch.float64)).requires_grad_(), torch.arange(9) % 4
    with torch.no_grad():
        head.points.copy_(fixed.points)
        head.normals.copy_(fixed.normals)
    torch.testing.assert_close(head.logits(z), fixed.logits(z), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(head(z, y), fixed(z, y), rtol=1e-9, atol=1e-10)
    ours, theirs = (
        torch.autograd.grad(one(z, y).sum(), [z, one.points, one.normals]) for one in (head, fixed)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
    (slope,) = torch.autograd.grad(head(z, y).sum(), [head.curvature.log_curvature])
    ahead, behind = (HyperbolicHead(5, 4, curvature=c * math.exp(h)).double() for h in (1e-5, -1e-5))
    for one in (ahead, behind):
        one.points.data, one.normals.data = fixed.points.data, fixed.normals.data
    difference = (ahead(z, y).sum() - behind(z, y).sum()).item() / 2e-5
    assert slope.item() == pytest.approx(difference, rel=1e-4, abs=1e-8)


def test_a_learned_curvature_is_learned():
    """Labels by the side of planes of curvature 1: a curvature that starts at 1e-3 grows."""
    torch.manual_seed(0)
    truth = LorentzHead(3, 4, curvature=1.0)
    with torch.no_grad():
        truth.normals.mul_(8)
        truth.offsets.uniform_(-1, 1)
        z = 2 * torch.randn(500, 3)
        y = truth.logits(z).argmax(1)
    head = LorentzHead(3, 4, curvature=1e-3, learn_curvature=True)
    groups = head.parameter_groups()
    assert [group["name"] for group in groups] == ["hyperplanes", "temperature"]
    optimiser = torch.optim.Adam(groups, lr=0.05)
    for _ in range(100):
        loss = head(z, y).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert head.geometry.curvature > 1e-2
    assert head.geometry == Hyperboloid(head.curvature.value)
    assert head.numbers() == {"curvature": head.curvature.value}
    again = LorentzHead(3, 4, learn_curvature=True)
    again.load_state_dict(head.state_dict())
    torch.testing.assert_close(again.logits(z), head.logits(z))


@pytest.mark.parametrize("c", [1e-6, 1.0, 10.0])
@pytest.mark.parametrize("scale", [0.0, 1e-40, 1e-20, 1e6, 1e30, 3e38])
@pytest.mark.parametrize("make", [LorentzHead, HyperbolicHead])
@pytest.mark.parametrize(("chunk", "clip"), [(None, None), (2, 2.0)])
def test_extremes_are_finite(make, c, scale, chunk, clip):
    torch.manual_seed(0)
    head = make(4, 5, curvature=c, learn_curvature=True, class_chunk=chunk, clip=clip)
    with torch.no_grad():
        head.normals[-1] = 0
        if make is LorentzHead:
            head.offsets.copy_(torch.tensor([0, 1e6, -1e6, 1e-20, 3e38]))
        else:
            head.points[0] = 0
            head.points[1] *= 1e10
    z = torch.full((6, 4), scale).mul(torch.randn(6, 4).sign()).requires_grad_()
    loss = head(z, torch.arange(6) % 5)
    assert loss.isfinite().all()
    assert head.predict_proba(z).isfinite().all()
    for gradient in torch.autograd.grad(loss.sum(), [z, *head.parameters()]):
        assert gradient.isfinite().all()


def test_asinh_by_logarithms():
    x = torch.cat([torch.logspace(-30, 12, 500), torch.zeros(1)]).double()
    x = torch.cat([x, -x])
    value, root = hyperboloid.arsinh(x)
    torch.testing.assert_close(value, torch.asinh(x), rtol=1e-14, atol=0)
    torch.testing.assert_close(root, (1 + x * x).sqrt(), rtol=1e-14, atol=0)


def test_the_distance_from_the_origin_is_the_norm():
    z = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=torch.float64)
    found = Hyperboloid(0.5).similarity(z, torch.zeros_like(z))
    torch.testing.assert_close(found, -z.norm(dim=1))
    assert PoincareBall(0.5).similarity(z, torch.zeros_like(z))[1].item() == pytest.approx(-1.0)


@pytest.mark.parametrize("make", [LorentzHead, HyperbolicHead])
def test_bad_arguments(make):
    config.update("jaxtyping_disable", True)
    with pytest.raises(ValueError, match="curvature must be a positive finite number, got -1"):
        make(3, 2, curvature=-1)
    with pytest.raises(ValueError, match="clip must be None or a positive finite number, got 0"):
        make(3, 2, clip=0.0)
