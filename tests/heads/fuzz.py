"""Training steps on embeddings, rates and options of any size, in which all must stay finite."""

import torch

from spaceform.heads import HEADS, Head

DIM, CLASSES, BATCH = 6, 5, 8
NORMS, HUGE = (1e-6, 1e6), 3e38
"""Norms of embeddings lie between these; in every eighth batch some coordinates are as large as the last."""
CURVATURES, RATES = (1e-6, 10.0), (1e-3, 1.0)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""float32 without autocast; the others under autocast, with embeddings of that type or of float32."""
RUN = 25
"""Steps of one head before another is made, with other options."""


class Fuzz:
    """A generator, and what it is asked for."""

    def __init__(self, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)

    def one_of(self, values):
        return values[int(torch.randint(len(values), (), generator=self.random))]

    def between(self, low: float, high: float) -> float:
        """Evenly in its logarithm; the ends themselves in a fifth of all cases."""
        u = 1.25 * torch.rand((), generator=self.random).item() - 0.125
        return low * (high / low) ** min(1.0, max(0.0, u))

    def head(self, name: str) -> Head:
        """A head with some of the options that a search may choose, and extreme ones."""
        options = {
            "curvature": lambda: self.between(*CURVATURES),
            "learn_curvature": lambda: self.one_of((False, True)),
            "clip": lambda: self.one_of((None, 1.0)),
            "scale": lambda: self.one_of((1.0, 4.0)),
            "riemannian_gradient": lambda: self.one_of((False, True)),
            "centres": lambda: self.one_of((1, 2, 3)),
            "literal": lambda: self.one_of((False, True)),
            "beta": lambda: self.between(0.1, 1e3),
            "learn_beta": lambda: self.one_of((False, True)),
            "margin": lambda: self.one_of((0.0, 0.4)),
        }
        chosen = {key: choose() for key, choose in options.items() if key in HEADS[name].options()}
        return HEADS[name](DIM, CLASSES, class_chunk=self.one_of((None, 2)), **chosen)

    def optimiser(self, head: Head) -> tuple[torch.optim.Optimizer, str]:
        rate = self.between(*RATES)
        if self.one_of((False, True)):
            return torch.optim.Adam(head.parameters(), lr=rate), f"Adam at {rate:g}"
        return torch.optim.SGD(head.parameters(), lr=rate, momentum=0.9), f"SGD at {rate:g}"

    def embeddings(self, dtype: torch.dtype) -> torch.Tensor:
        """One norm for all rows, or a norm for each."""
        z = torch.randn(BATCH, DIM, generator=self.random).clamp(-1, 1)
        if self.one_of(range(8)) == 0:
            z = torch.where(torch.rand(BATCH, 1, generator=self.random) < 0.5, HUGE * z.sign(), z)
        elif self.one_of((False, True)):
            z = self.between(*NORMS) * torch.nn.functional.normalize(z)
        else:
            norms = torch.tensor([self.between(*NORMS) for _ in range(BATCH)])
            z = norms[:, None] * torch.nn.functional.normalize(z)
        most = torch.finfo(dtype).max
        return z.clamp(-most, most).to(dtype).requires_grad_()

    def labels(self) -> dict:
        """Integers, soft labels, smoothing, weights of classes, labels to ignore."""
        y = torch.randint(CLASSES, (BATCH,), generator=self.random)
        kind = self.one_of(("hard", "hard", "soft", "smooth", "ignored"))
        if kind == "soft":
            return {"y": torch.rand(BATCH, CLASSES, generator=self.random).softmax(1)}
        if kind == "smooth":
            weight = torch.rand(CLASSES, generator=self.random)
            return {"y": y, "label_smoothing": 0.1, "class_weight": weight}
        return {"y": y, "ignore_index": 0} if kind == "ignored" else {"y": y}


def broken(name: str, dtype: str, steps: int, seed: int = 0) -> list[str]:
    """What was not finite in this many steps: value, gradient, parameter or probability."""
    fuzz, autocast = Fuzz(seed), DTYPES[dtype]
    torch.manual_seed(seed)
    found = []
    for step in range(steps):
        if step % RUN == 0:
            head = fuzz.head(name)
            optimiser, training = fuzz.optimiser(head)
        z = fuzz.embeddings(fuzz.one_of((torch.float32, autocast)))
        with torch.autocast("cpu", dtype=autocast, enabled=autocast != torch.float32):
            loss = head(z, **fuzz.labels(), generator=fuzz.random)
        optimiser.zero_grad()
        loss.mean().backward()
        gradients = [z.grad, *(p.grad for p in head.parameters() if p.grad is not None)]
        optimiser.step()
        with torch.no_grad():
            probabilities = head.predict_proba(z)
        if z.dtype == torch.float16 and not bool(z.grad.isnan().any()):
            gradients = gradients[1:]  # 1/‖z‖ may exceed its range: infinity is what a GradScaler looks for
        kinds = {
            "value": [loss],
            "gradient": gradients,
            "parameter": list(head.parameters()),
            "probability": [probabilities],
        }
        bad = [kind for kind, tensors in kinds.items() if not all(bool(t.isfinite().all()) for t in tensors)]
        if bad:
            norm = z.detach().double().norm(dim=1)
            size = f"‖z‖ {norm.min().item():.0e} to {norm.max().item():.0e}"
            found.append(f"step {step}, {size}, {z.dtype}, {training}, {head}: {', '.join(bad)}")
    return found
