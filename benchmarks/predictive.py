"""How near fixed draws are to the limit of infinitely many random ones, on heads trained on digits.

    python benchmarks/predictive.py [vmf] [power_spherical]

For 200 test images, the mean and the largest error of a probability over all classes: of one call of
`head.predict_proba` with a generator (10 independent draws of z, as in the paper), and without one, from 16,
64 and 256 fixed draws. The limit is the mean of 1,000 calls, whose own error is a thirtieth of the first.
"""

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits

from spaceform import SpaceformClassifier
from spaceform.heads import Head


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    X, y = load_digits(return_X_y=True)
    X = X.astype(np.float32)
    print("| head | n | 10 random | 16 fixed | 64 fixed | 256 fixed | predict time, 64 fixed / 10 random |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in sys.argv[1:] or ("vmf", "power_spherical"):
        for dim in (3, 8, 64, 128):
            # A fixed number of epochs at a fixed rate: the head is what is measured, not the fit.
            model = SpaceformClassifier(
                name, dim=dim, hidden=0, dropout=0.0, validation_fraction=0, epochs=5, random_state=0
            ).fit(X[:1200], y[:1200])
            head, z = model.head_, torch.from_numpy(model.transform(X[1200:1400]))
            with torch.no_grad():
                random = torch.Generator().manual_seed(0)
                calls = torch.stack([head.predict_proba(z, generator=random) for _ in range(1000)])
                limit = calls.mean(0)
                errors = [(calls[:50] - limit).abs()]
                errors += [(_fixed(head, draws, z) - limit).abs() for draws in (16, 64, 256)]
                head.draws = 64
                ratio = _seconds(lambda h=head, z=z: h.predict_proba(z)) / _seconds(
                    lambda h=head, z=z, g=random: h.predict_proba(z, generator=g)
                )
            cells = [f"{e.mean().item():.1e} ({e.max().item():.2f})" for e in errors]
            print(f"| {name} | {dim} | {' | '.join(cells)} | {ratio:.2f} |", flush=True)


def _fixed(head: Head, draws: int, z: torch.Tensor) -> torch.Tensor:
    head.draws = draws
    return head.predict_proba(z)


def _seconds(call: object) -> float:
    import timeit

    return min(timeit.repeat(call, number=3, repeat=7))


if __name__ == "__main__":
    main()
