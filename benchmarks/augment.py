"""CIFAR augmentation of a batch: ours, all images at once, against torchvision's, image by image.

Both reflect-pad by 4, crop, flip, z-score and occlude 8x8. One process, one thread, interleaved repeats; the
median of each is compared, and the peer is the faster of torchvision's two transform libraries.

    python benchmarks/augment.py [--batch 260] [--repeats 15]
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

from spaceform.data.augment import PIXELS
from spaceform.foundation.torchvision import ensure_torchvision


def peers() -> dict[str, Callable[[np.ndarray], torch.Tensor]]:
    """Torchvision's per-image pipelines, from an array of (batch, height, width, channels)."""
    ensure_torchvision()
    from PIL import Image
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    how = PIXELS["cifar10"]
    patch = {"p": 1.0, "scale": (1 / 16, 1 / 16), "ratio": (1.0, 1.0), "value": 0}
    crop = {"size": 32, "padding": how.pad, "padding_mode": "reflect"}
    old = v1.Compose(
        [
            v1.RandomCrop(**crop),
            v1.RandomHorizontalFlip(),
            v1.ToTensor(),
            v1.Normalize(how.mean, how.std),
            v1.RandomErasing(**patch),
        ]
    )
    new = v2.Compose(
        [
            v2.RandomCrop(**crop),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(how.mean, how.std),
            v2.RandomErasing(**patch),
        ]
    )
    return {
        "torchvision transforms": lambda images: torch.stack(
            [old(Image.fromarray(image)) for image in images]
        ),
        "torchvision transforms.v2": lambda images: torch.stack(
            [new(Image.fromarray(image)) for image in images]
        ),
    }


def main() -> None:
    """Print the medians and the ratio as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=260)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    images = torch.randint(256, (arguments.batch, 3, 32, 32), dtype=torch.uint8)
    rows = images.permute(0, 2, 3, 1).contiguous().numpy()
    how, generator = PIXELS["cifar10"], torch.Generator().manual_seed(0)
    candidates: dict[str, Callable[[], object]] = {
        "spaceform": lambda: how.train(images, how.draw(arguments.batch, 32, 32, generator=generator))
    }
    for name, pipeline in peers().items():
        candidates[name] = lambda pipeline=pipeline: pipeline(rows)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for repeat in range(arguments.repeats + 2):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            if repeat >= 2:
                seconds[name].append(time.perf_counter() - start)
    medians = {name: median(times) for name, times in seconds.items()}
    peer = min((name for name in medians if name != "spaceform"), key=medians.__getitem__)
    print(
        json.dumps(
            {
                "batch": arguments.batch,
                "milliseconds": {name: round(1e3 * value, 3) for name, value in medians.items()},
                "peer": peer,
                "times_faster": round(medians[peer] / medians["spaceform"], 1),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
