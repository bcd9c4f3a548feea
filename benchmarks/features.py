"""What extraction costs beyond the net: decoding, resizing and writing against the bare forward passes.

    python benchmarks/features.py --photos 96 --repeats 5 --json features.json

The photos are those of cub200 where they are here, else as many made of scikit-learn's two. The net has
random weights: its speed is that of any. It runs on one thread; the threads that decode are as many as
`spaceform features` takes. Both are timed in turn, batch sizes are the same, and the ratio of the medians is
printed, of the time on the clock and of the processor's, which counts all threads. Then the time of a photo
for some nets, on one thread.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import safetensors.torch
import torch
from PIL import Image

import spaceform
from spaceform import data
from spaceform.run.environment import environment
from spaceform.run.extraction import BATCH, PhotoSource, extract, photos_of

AIM = 1.10
COSTS = (
    "tf_efficientnet_lite0",
    "mobilenetv3_large_100",
    "resnet18",
    "resnet50",
    "convnext_tiny",
    "vit_small_patch16_224",
)


def made(folder: Path, count: int) -> data.Dataset:
    """Photos of 500 x 375 pixels, cut from the two that scikit-learn carries."""
    import sklearn.datasets

    rng = np.random.default_rng(0)
    for name in ("china", "flower"):
        (folder / name).mkdir(parents=True)
        photo = Image.open(Path(sklearn.datasets.__file__).parent / "images" / f"{name}.jpg")
        for i in range(count // 2):
            left, top = int(rng.integers(100)), int(rng.integers(40))
            photo.crop((left, top, left + 500, top + 375)).save(folder / name / f"{i:03d}.jpg", quality=92)
    return data.load(folder)


def photos(folder: Path, count: int) -> data.Dataset:
    """So many photos, real ones where they are here."""
    try:
        found = data.load("cub200", download=False)
    except data.DataError:
        return made(folder / "made", count)
    assert not isinstance(found.inputs, torch.Tensor)
    keep = np.linspace(0, len(found) - 1, min(count, len(found))).astype(int)
    for i in keep:
        place = folder / "photos" / found.classes[int(found.labels[i])]
        place.mkdir(parents=True, exist_ok=True)
        (place / found.inputs[i].name).write_bytes(found.inputs[i].read_bytes())
    return data.load(folder / "photos")


def weights(folder: Path, net: str) -> Path:
    """Random weights of a net in a file."""
    spaceform.ensure_torchvision()
    import timm

    path = folder / f"{net}.safetensors"
    safetensors.torch.save_file(timm.create_model(net).state_dict(), path)
    return path


def measure(net: str, count: int, repeats: int) -> dict[str, object]:
    """Seconds of the bare forward passes and of the whole extraction, in turn."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        source = PhotoSource(photos(folder, count), net, weights(folder, net))
        source.load()
        how = photos_of(source.net.sight)
        paths = source.dataset.inputs
        batches = [
            torch.stack([how.evaluate(path) for path in paths[i : i + BATCH]])
            for i in range(0, len(paths), BATCH)
        ]
        bare, whole = [], []
        for repeat in range(repeats + 1):  # the first is not counted
            began = np.array([time.perf_counter(), time.process_time()])
            with torch.inference_mode():
                for batch in batches:
                    source.net(batch)
            between = np.array([time.perf_counter(), time.process_time()])
            extract(source, folder / f"out{repeat}")
            bare.append((between - began).tolist())
            whole.append((np.array([time.perf_counter(), time.process_time()]) - between).tolist())
    clock, processor = np.median(whole[1:], axis=0) / np.median(bare[1:], axis=0)
    return {
        "net": net,
        "photos": len(paths),
        "bare_seconds": bare[1:],
        "whole_seconds": whole[1:],
        "ratio": clock,
        "processor_ratio": processor,
        "aim": AIM,
    }


def costs(repeats: int) -> list[dict[str, object]]:
    """Milliseconds of a photo on one thread (processor time), features and parameters of some nets."""
    spaceform.ensure_torchvision()
    import timm

    rows: list[dict[str, object]] = []
    for name in COSTS:
        net = timm.create_model(name, num_classes=0).eval()
        x, took = torch.randn(8, 3, 224, 224), []
        with torch.inference_mode():
            for _ in range(repeats + 1):
                began = time.process_time()
                z = net(x)
                took.append((time.process_time() - began) / len(x))
        size = sum(p.numel() for p in net.parameters())
        rows.append({"net": name, "ms": 1000 * median(took[1:]), "features": z.shape[1], "parameters": size})
        print(f"{name:24} {1000 * median(took[1:]):7.1f} ms  {z.shape[1]:5} features  {size / 1e6:6.1f} M")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--net", default="resnet50")
    parser.add_argument("--photos", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=("extraction", "costs"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, object] = {"made_with": environment()}
    if options.only != "costs":
        measured = measure(options.net, options.photos, options.repeats)
        found["extraction"] = measured
        ratios = f"{measured['ratio']:.3f} on the clock, {measured['processor_ratio']:.3f} of the processor"
        print(f"extraction over bare forward passes: {ratios} (aim: at most {AIM})")
    if options.only != "extraction":
        found["costs"] = costs(options.repeats)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
