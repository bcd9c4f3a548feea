"""One short run of every head on real data, where SPACEFORM_DATA points to it."""

import pytest

from short_runs import SHIPPED
from spaceform import data
from spaceform.run.evaluate import evaluate
from spaceform.run.recipe import PAPER, replace
from spaceform.run.train import train

pytestmark = pytest.mark.real_data

# a long tail also makes the first look at all training data short
SHORT = {"budget.epochs": 1, "budget.episodes": 5, "budget.instances": 8, "data.imbalance": 1000.0}
PHOTOS = {"net.pretrained": False, "net.name": "test_resnet", "net.dim": 16, "budget.classes": 3}
NETS = {
    "mnist": {"net.dim": 16},  # in fewer dimensions fixed draws are inverted one by one, which takes long
    "fashion-mnist": {},
    "cifar10": {"net.name": "small", "net.dim": 16},
    "cub200": {**PHOTOS, "budget.episodes": 1, "budget.instances": 2, "data.imbalance": 1.0},
}


# The others differ from MNIST in what is read, and CUB in how it is judged, not in what is trained: one head
# is enough, and one of each geometry for CUB.
HEADS = {"mnist": SHIPPED, "cub200": ("standard", "hyperbolic", "vmf")}
CASES = [
    (name, head) for name in NETS for head in HEADS.get(name, ("standard",)) if f"{name}/{head}" in PAPER
]


def every_tenth(name: str) -> data.Dataset:
    whole = data.load(name)
    assert not isinstance(whole.inputs, tuple)
    return data.Dataset(whole.name, whole.classes, whole.labels[::10], whole.inputs[::10])


@pytest.mark.parametrize(("name", "head"), CASES)
def test_short_run(name, head, real_data, tmp_path):  # noqa: ARG001 (skips where there is none)
    recipe = replace(PAPER[f"{name}/{head}"], {**SHORT, **NETS[name]})
    some = name == "mnist" and head != "standard"  # which has all items
    dataset = every_tenth(name) if some else None
    found = evaluate(train(recipe, tmp_path / "run", dataset=dataset), dataset=dataset)
    assert found["items"] > (50 if name == "cub200" else 1_000 if some else 9_000)
    value = found["map_at_r"] if name == "cub200" else found["accuracy"]
    assert 0.0 < value <= 1.0
