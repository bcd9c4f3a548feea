"""What every head must do in the company it keeps: precision, compilers, processes, strange batches."""

import copy
import inspect
import io
import math
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from jaxtyping import config
from sklearn.datasets import load_digits
from torch import nn
from torch.profiler import ProfilerActivity, profile

from spaceform.heads import HEADS, DeterministicHead, StochasticHead

sys.path.insert(0, str(Path(__file__).parent))
import compiled as graphs
import one_of_two_processes as ddp

DIM, CLASSES, BATCH = 6, 9, 8
every_head = pytest.mark.parametrize("name", list(HEADS))


def make(name, dim=DIM, classes=CLASSES, *, dtype=torch.float32, **kwargs):
    """A head by name; `beta` is left out where the head has none.

    AdaFace is in `eval()`: in `train()` every batch moves its running statistics, and so the next loss.
    """
    torch.manual_seed(0)
    if "beta" not in inspect.signature(HEADS[name].__init__).parameters:
        kwargs.pop("beta", None)
    return HEADS[name](dim, classes, **kwargs).to(dtype).train(name != "adaface")


def draw(batch=BATCH, dim=DIM, classes=CLASSES, dtype=torch.float32):
    g = torch.Generator().manual_seed(1)
    z = torch.randn(batch, dim, generator=g, dtype=dtype, requires_grad=True)
    return z, torch.randint(classes, (batch,), generator=g)


def seeded():
    return torch.Generator().manual_seed(2)


def gradients(head, z, y, upstream=None):
    loss = head(z, y, generator=seeded())
    inputs = [z, *head.parameters()]
    return loss, torch.autograd.grad(loss, inputs, torch.ones_like(loss) if upstream is None else upstream)


def test_the_registry_is_complete():
    core = ["standard", "hyperbolic", "cosine", "arcface", "vmf", "power_spherical"]
    assert list(HEADS) == [*core, "cosface", "subcentre_arcface", "adaface", "lorentz"]
    assert [name for name, head in HEADS.items() if head.compared] == core


@every_head
def test_contract(name):
    head, (z, y) = make(name), draw()
    loss = head(z, y, generator=seeded())
    assert loss.shape == (BATCH,)
    probabilities = head.predict_proba(z, generator=seeded())
    torch.testing.assert_close(probabilities.sum(1), torch.ones(BATCH))
    torch.testing.assert_close(
        head.log_probs(z, generator=seeded()).exp(), probabilities, rtol=1e-4, atol=1e-6
    )
    samples = head.logit_samples(z, generator=seeded())
    torch.testing.assert_close(samples.softmax(-1).mean(0), probabilities, rtol=1e-4, atol=1e-6)
    assert isinstance(head, DeterministicHead) != isinstance(head, StochasticHead)
    if isinstance(head, DeterministicHead):
        assert samples.shape == (1, BATCH, CLASSES)
        torch.testing.assert_close(head.logits(z), samples[0], rtol=1e-6, atol=1e-6)
    else:
        assert head.sample(z, 3, generator=seeded()).shape == (3, BATCH, DIM)
    assert (head.confidence(2 * z) > head.confidence(z)).all()
    assert head.geometry.pairwise(z, z[:3]).shape == (BATCH, 3)
    head.prepare(z.detach())
    head.start_epoch(0)


@every_head
def test_every_parameter_is_in_one_group(name):
    head = make(name)
    groups = head.parameter_groups()
    grouped = [p for group in groups for p in group["params"]]
    assert sorted(map(id, grouped)) == sorted(map(id, head.parameters()))
    assert len({group["name"] for group in groups}) == len(groups)
    torch.optim.SGD(groups, lr=0.1)


@pytest.mark.slow
@every_head
def test_trains(name):
    head, (z, y) = make(name, beta=8.0), draw(batch=32)
    z = nn.Parameter(z.detach() * 3)
    optimiser = torch.optim.Adam([z, *head.parameters()], lr=0.05)
    for step in range(150):
        loss = head(z, y, generator=torch.Generator().manual_seed(step)).mean()
        if step == 0:
            before = loss.item()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.7 * before
    assert (head.predict_proba(z, generator=seeded()).argmax(1) == y).float().mean() > 0.9


@pytest.mark.slow
@every_head
def test_learns_digits_as_it_comes(name):
    """Processors round differently, which moved an accuracy by two points after eight epochs."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16).float(), torch.tensor(labels)
    test = torch.arange(len(y)) % 5 == 0
    torch.manual_seed(0)
    net, head = nn.Linear(64, 16), HEADS[name](16, 10)
    optimiser = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(12):
        for rows in torch.nonzero(~test)[:, 0][torch.randperm(int((~test).sum()))].split(64):
            loss = head(net(x[rows]), y[rows]).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    with torch.no_grad():
        p = head.predict_proba(net(x[test]), generator=seeded())
    assert (p.argmax(1) == y[test]).float().mean() > 0.88


@every_head
@pytest.mark.parametrize("chunk", [None, 4])
def test_a_second_derivative_is_right_or_refused(name, chunk):
    head = make(name, beta=4.0, class_chunk=chunk).double()
    if name == "adaface":
        head.norm_mean.fill_(100.0)  # there its margin, which has no gradient, is the same for all these z
    z, y = draw(batch=3)
    z, v = z.detach().double().requires_grad_(), torch.randn(3, z.shape[1], dtype=torch.float64)

    def slope(z):
        return torch.autograd.grad(head(z, y, generator=seeded()).sum(), z, create_graph=True)[0]

    if name in ("hyperbolic", "lorentz", "vmf", "power_spherical"):
        with pytest.raises(RuntimeError, match=r"no second derivative: leave out|not have been used"):
            torch.autograd.grad((slope(z) * v).sum(), z)
        return
    (curved,) = torch.autograd.grad((slope(z) * v).sum(), z)
    ahead, behind = (slope((z.detach() + h * v).requires_grad_()) for h in (1e-5, -1e-5))
    torch.testing.assert_close(curved, (ahead - behind).detach() / 2e-5, rtol=1e-5, atol=1e-7)


@every_head
def test_says_what_it_is_without_values(name):
    assert f"num_classes={CLASSES}" in repr(make(name).to("meta"))


@every_head
def test_same_draws_same_values(name):
    head, (z, y) = make(name), draw()
    assert torch.equal(head(z, y, generator=seeded()), head(z, y, generator=seeded()))
    assert torch.equal(head.predict_proba(z, generator=seeded()), head.predict_proba(z, generator=seeded()))


@every_head
@pytest.mark.parametrize("chunk", [1, 4, CLASSES, 50])
def test_class_chunk_changes_nothing(name, chunk):
    (z, y), upstream = draw(), torch.linspace(-1, 2, BATCH)
    whole, g_whole = gradients(make(name, beta=16.0), z, y, upstream)
    chunked, g_chunked = gradients(make(name, beta=16.0, class_chunk=chunk), z, y, upstream)
    torch.testing.assert_close(chunked, whole, rtol=1e-5, atol=1e-5)
    for a, b in zip(g_chunked, g_whole, strict=True):
        assert (a - b).abs().max() <= 1e-5 * max(1.0, b.abs().max().item())


def allocated(step):
    """The most bytes alive at once during the step, beyond those before it, by the allocator's record."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    live = most = 0
    events = (e for e in record.profiler.kineto_results.events() if e.name() == "[memory]")
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


MIB = {"standard": 16, "cosine": 16, "arcface": 16, "cosface": 16, "vmf": 32, "power_spherical": 32}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mib"), MIB.items())
def test_many_classes_need_little_memory(name, mib):
    """The logits alone would take 73 MiB; the class axis is streamed unasked. One draw, for speed."""
    z, y = draw(batch=96, dim=16, classes=200_000)
    head = make(name, 16, 200_000, **({"samples": 1} if issubclass(HEADS[name], StochasticHead) else {}))
    gradients = z.nbytes + sum(p.nbytes for p in head.parameters())
    extra = allocated(lambda: head(z, y).mean().backward()) - gradients
    assert extra < mib * 2**20
    assert all(p.grad.isfinite().all() for p in head.parameters())


@every_head
@pytest.mark.parametrize("chunk", [None, 4])
def test_upstream_gradients_of_single_examples_are_honoured(name, chunk):
    head, (z, y) = make(name, dtype=torch.float64, class_chunk=chunk), draw(dtype=torch.float64)
    loss, inputs = head(z, y, generator=seeded()), [z, *head.parameters()]
    upstream = torch.linspace(-1, 2, BATCH, dtype=torch.float64)

    def back(g):
        return torch.autograd.grad(loss, inputs, g, retain_graph=True)

    singles = [back(e) for e in torch.eye(BATCH, dtype=torch.float64)]
    for i, whole in enumerate(back(upstream)):
        torch.testing.assert_close(
            whole, sum(u * single[i] for u, single in zip(upstream, singles, strict=True))
        )


@every_head
@pytest.mark.parametrize("beta", [1.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(name, dtype, beta):
    head, net, (x, y) = make(name, beta=beta), nn.Linear(DIM, DIM), draw()
    with torch.no_grad():
        z = net(x)
    exact = head(z, y, generator=seeded())
    with torch.autocast("cpu", dtype=dtype):
        z_half = net(x)
        assert z_half.dtype == dtype
        loss = head(z_half, y, generator=seeded())
        probabilities = head.predict_proba(z_half, generator=seeded())
        loss.mean().backward()
    assert loss.dtype == probabilities.dtype == torch.float32
    assert loss.mean().item() == pytest.approx(exact.mean().item(), rel=0.01)
    for parameter in [*net.parameters(), *head.parameters()]:
        assert parameter.grad.isfinite().all()
    # What autocast rounds is the network's output; the head itself computes as without it.
    torch.testing.assert_close(loss, head(z_half.float(), y, generator=seeded()), rtol=1e-6, atol=1e-6)


@every_head
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_head_of_any_type(name, dtype):
    head, (z, y) = make(name, dtype=dtype), draw(dtype=dtype)
    loss, grads = gradients(head, z, y)
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    assert all(g.isfinite().all() for g in grads)
    assert [g.dtype for g in grads] == [dtype] * len(grads)
    reference = gradients(make(name, dtype=torch.float64), z.detach().double().requires_grad_(), y)[0]
    if isinstance(head, DeterministicHead):
        bound = 0.05 if dtype.itemsize == 2 else 1e-5
        assert loss.mean().item() == pytest.approx(reference.mean().item(), rel=bound)


@every_head
@pytest.mark.parametrize("beta", [1.0, 16.0, 1e4])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
@pytest.mark.parametrize("chunk", [None, 4])
def test_strange_embeddings_are_finite(name, scale, beta, chunk):
    head, (z, y) = make(name, beta=beta, class_chunk=chunk), draw()
    loss, grads = gradients(head, (z.detach() * scale).requires_grad_(), y)
    assert loss.isfinite().all()
    assert all(g.isfinite().all() for g in grads)
    assert head.predict_proba(z.detach() * scale, generator=seeded()).isfinite().all()


@every_head
@pytest.mark.parametrize(("batch", "classes"), [(1, 1), (1, 9), (8, 1), (0, 9)])
@pytest.mark.parametrize("chunk", [None, 4])
def test_one_class_one_example_no_example(name, batch, classes, chunk):
    head, (z, y) = make(name, classes=classes, class_chunk=chunk), draw(batch=batch, classes=classes)
    loss, grads = gradients(head, z, y)
    assert loss.shape == (batch,)
    assert loss.isfinite().all()
    assert all(g.isfinite().all() for g in grads)
    assert head.predict_proba(z, generator=seeded()).shape == (batch, classes)


@every_head
def test_bad_input_is_one_sentence(name):
    config.update("jaxtyping_disable", True)
    head, (z, y) = make(name), draw()
    for bad_z, bad_y, sentence in [
        (z, y + CLASSES, r"y must lie in 0\.\.8, got"),
        (z, -1 - y, r"y must lie in 0\.\.8, got -"),
        (z[:, 1:], y, r"z must have shape \(batch, 6\), got \(8, 5\)"),
        (z * math.nan, y, "z must be finite, got 48 NaN"),
        (z, y[1:], r"y must have shape \(8,\)"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            head(bad_z, bad_y)


@every_head
def test_state_dict_deepcopy_and_pickle(name):
    head, (z, y) = make(name, beta=3.0), draw()
    head.prepare(z.detach())
    with torch.no_grad():
        for p in head.parameters():
            p.add_(0.1)
    expected = head(z, y, generator=seeded())
    fresh, buffer = make(name), io.BytesIO()
    torch.save(head.state_dict(), buffer)
    buffer.seek(0)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    for other in (fresh, copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        torch.testing.assert_close(other(z, y, generator=seeded()), expected, rtol=1e-6, atol=1e-6)
        assert repr(other) == repr(head)


@pytest.mark.slow
def test_every_head_compiles_as_one_graph_and_one_to_machine_code():
    """One test, so that one process compiles them all: most of the time goes into starting the compiler."""
    compilers = ["aot_eager", *(["inductor"] if shutil.which("c++") else [])]
    command = [sys.executable, graphs.__file__, *compilers]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    cases = {f"{name} {dim} {chunk} aot_eager" for name, dim, chunk in graphs.CASES}
    machine_code = {f"{graphs.TO_MACHINE_CODE} 3 None inductor"} if len(compilers) > 1 else set()
    assert set(run.stdout.splitlines()) == cases | machine_code, run.stderr[-4000:]
    if not machine_code:
        pytest.skip("inductor needs a C++ compiler: install g++")


def gradients_of_two_processes(folder):
    """The gradients that two gloo processes agree on, each with half of the batch."""
    command = [sys.executable, ddp.__file__]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(folder / "store"), str(folder / "out")], stderr=subprocess.PIPE
        )
        for rank in (0, 1)
    ]
    for process in ranks:
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors.decode()[-2000:]
    return torch.load(folder / "out", weights_only=True)


@pytest.mark.slow
def test_two_processes_agree_with_one(tmp_path):
    found = gradients_of_two_processes(tmp_path)
    assert set(found) == set(HEADS)
    for name in HEADS:
        model, (x, y) = ddp.Model(name).double().train(name != "adaface"), ddp.batch()
        if isinstance(model.head, DeterministicHead):
            loss = model(x, y)
        else:
            # The joined batch with the draws of the two.
            halves = zip(x.chunk(2), y.chunk(2), strict=True)
            draws = (torch.Generator().manual_seed(rank) for rank in range(2))
            loss = torch.cat([model(*half, g) for half, g in zip(halves, draws, strict=True)])
        loss.mean().backward()
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(found[name][key], parameter.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_the_compiler_is_not_imported():
    """Importing it takes seconds; who compiles pays."""
    code = (
        "import sys, spaceform; spaceform.VonMisesFisherHead(3, 2); sys.exit('torch._dynamo' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
