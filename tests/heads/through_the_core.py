"""Run by a test in an interpreter of its own: takes heads through what the core offers a head.

`through_the_core.py HEAD:STEP ...` writes each case that held, one a line.
"""

import copy
import io
import sys
import warnings

import numpy as np
import torch
from torch import Tensor, nn

import spaceform as sf
from spaceform.heads import Head, StochasticHead

DIM, CLASSES = 6, 4


class Predicting(nn.Module):
    """What an exported graph is made of."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head = head

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return self.head.predict_proba(z), self.head.log_probs(z)


def batch() -> tuple[Tensor, Tensor]:
    y = torch.arange(60) % CLASSES
    random = torch.Generator().manual_seed(0)
    return 2 * torch.eye(CLASSES, DIM)[y] + 0.3 * torch.randn(60, DIM, generator=random), y


def objective(head: Head) -> None:
    """It falls as the parameters train, and every one of them has a gradient."""
    z, y = batch()
    head.prepare(z)
    optimiser = torch.optim.Adam(head.parameter_groups(), lr=0.05)
    losses = []
    for epoch in range(100):
        head.start_epoch(epoch)
        loss = head(z, y).mean()
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in head.parameters())
        optimiser.step()
    assert losses[-1] < 0.8 * losses[0]


def prediction(head: Head) -> None:
    """One for each embedding, in any batch, at any call; differentiable; random where asked."""
    z, _ = batch()
    z = z.requires_grad_()
    p = head.predict_proba(z)
    torch.testing.assert_close(p.sum(1), torch.ones(len(z)))
    torch.testing.assert_close(head.predict_proba(z.flip(0)).flip(0), p, rtol=0, atol=1e-6)
    torch.testing.assert_close(head.eval().predict_proba(z[3:4]), p[3:4], rtol=0, atol=1e-6)
    torch.testing.assert_close(head.train().log_probs(z).exp(), p, rtol=0, atol=1e-6)
    assert torch.autograd.grad(p[:, 0].sum(), z)[0].abs().max() > 0
    random = head.predict_proba(z, generator=torch.Generator().manual_seed(1))
    assert (random - p).abs().mean() < 0.1
    if isinstance(head, StochasticHead):
        assert (random - p).abs().max() > 0
        assert head.sample(z, 3).shape == (3, *z.shape)
        head.draws = 8
        assert head.logit_samples(z).shape == (8, len(z), CLASSES)
    assert head.confidence(z).shape == (len(z),)
    assert head.geometry.pairwise(z[:3], z).shape == (3, len(z))


def compiled(head: Head) -> None:
    z, y = batch()
    torch._dynamo.reset()
    # torch warns about what its own tracer does with an autograd.Function.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    loss = torch.compile(head, backend="aot_eager", fullgraph=True)(z, y)
    assert loss.shape == y.shape
    predict = torch.compile(head.predict_proba, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(predict(z), head.predict_proba(z))


def state(head: Head) -> None:
    z, _ = batch()
    file = io.BytesIO()
    torch.save(head.state_dict(), file)
    file.seek(0)
    fresh = type(head)(DIM, CLASSES)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    for other in (fresh, copy.deepcopy(head)):
        torch.testing.assert_close(other.predict_proba(z), head.predict_proba(z))


def onnx(head: Head) -> None:
    """The graph's probabilities are the head's, for a batch of any size."""
    import onnxruntime

    z, _ = batch()
    module = Predicting(head).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        any_batch = {"z": {0: torch.export.Dim("batch", min=1)}}
        program = torch.export.export(module, (z[:5],), dynamic_shapes=any_batch, strict=False)
        made = torch.onnx.export(
            program, dynamo=True, verbose=False, input_names=["z"], dynamic_shapes={"z": {0: "batch"}}
        )
    run = onnxruntime.InferenceSession(
        made.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    ).run
    for rows in (1, 60):
        p, log_p = module(z[:rows])
        found = run(None, {"z": z[:rows].numpy()})
        np.testing.assert_allclose(found[0], p.detach().numpy(), rtol=0, atol=1e-6)
        np.testing.assert_allclose(found[1], log_p.detach().numpy(), rtol=0, atol=1e-4)
        torch.testing.assert_close(program.module()(z[:rows])[0], p, rtol=0, atol=1e-6)


STEPS = {step.__name__: step for step in (objective, prediction, compiled, state, onnx)}


def main(cases: list[str]) -> None:
    torch.set_num_threads(1)
    for case in cases:
        name, step = case.split(":")
        torch.manual_seed(0)
        STEPS[step](sf.HEADS[name](DIM, CLASSES))
        print(case, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
