"""Training steps on embeddings, rates and options of any size, in which all must stay finite."""

import torch

from spaceform.heads import HEADS, Head

DIM, CLASSES, BATCH = 6, 5, 8
SIZES = (1e-6, 1e-3, 1.0, 1e3, 1e6, 3e38)
RATES = (1e-3, 1e-1, 1.0)
TYPES = (torch.float32, torch.bfloat16, torch.float16)
RUN = 25
"""Steps of one head before another is made, with other options."""


def made(name: str, random: torch.Generator) -> Head:
    """A head with some of the options that a search may choose, and extreme ones."""

    def one_of(values):
        return values[int(torch.randint(len(values), (), generator=random))]

    options = {
        "curvature": lambda: one_of((1e-6, 1e-3, 1.0, 10.0)),
        "learn_curvature": lambda: one_of((False, True)),
        "clip": lambda: one_of((None, 1.0)),
        "scale": lambda: one_of((1.0, 4.0)),
        "beta": lambda: one_of((0.1, 16.0, 1e3)),
        "margin": lambda: one_of((0.0, 0.4)),
    }
    chosen = {key: choose() for key, choose in options.items() if key in HEADS[name].options()}
    return HEADS[name](DIM, CLASSES, class_chunk=one_of((None, 2)), **chosen)


def broken(name: str, steps: int, seed: int = 0) -> list[str]:
    """What was not finite in this many steps: value, gradient, parameter or probability."""
    random = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    found = []
    for step in range(steps):
        if step % RUN == 0:
            head = made(name, random)
            rate = RATES[int(torch.randint(len(RATES), (), generator=random))]
            optimiser = torch.optim.SGD(head.parameters(), lr=rate, momentum=0.9)
        dtype = TYPES[int(torch.randint(len(TYPES), (), generator=random))]
        size = SIZES[int(torch.randint(len(SIZES), (), generator=random))]
        z = torch.randn(BATCH, DIM, generator=random).clamp(-1, 1) * min(size, torch.finfo(dtype).max)
        z = z.to(dtype).requires_grad_()
        y = torch.randint(CLASSES, (BATCH,), generator=random)
        with torch.autocast("cpu", dtype=torch.bfloat16 if dtype == torch.float32 else dtype):
            loss = head(z, y, generator=random)
        optimiser.zero_grad()
        loss.mean().backward()
        gradients = [z.grad, *(p.grad for p in head.parameters())]
        optimiser.step()
        with torch.no_grad():
            probabilities = head.predict_proba(z)
        if dtype == torch.float16 and not bool(z.grad.isnan().any()):
            gradients = gradients[1:]  # 1/‖z‖ may exceed its range: infinity is what a GradScaler looks for
        kinds = {
            "value": [loss],
            "gradient": gradients,
            "parameter": list(head.parameters()),
            "probability": [probabilities],
        }
        bad = [kind for kind, tensors in kinds.items() if not all(bool(t.isfinite().all()) for t in tensors)]
        if bad:
            found.append(f"step {step}, size {size:g}, rate {rate:g}, {dtype}, {head}: {', '.join(bad)}")
    return found
