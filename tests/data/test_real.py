"""The real files, where SPACEFORM_DATA points to them."""

from pathlib import Path

import pytest
import torch

from spaceform.data import (
    DataError,
    EpisodicSampler,
    check,
    evaluation_batches,
    list_datasets,
    load,
    preprocessing,
    split,
    targets,
    train_batches,
)

pytestmark = pytest.mark.real_data


def here(real_data: str, place: str) -> Path:
    path = Path(real_data) / place
    if not path.exists():
        pytest.skip(f"{place} is not in SPACEFORM_DATA")
    return path


@pytest.mark.parametrize(
    ("name", "place", "mean"), [("mnist", "mnist", 0.1307), ("fashion-mnist", "fashion-mnist", 0.2860)]
)
def test_idx_files_have_their_known_statistics(real_data, name, place, mean):
    here(real_data, place)
    d = load(name, download=False)
    assert d.inputs.shape == (70_000, 1, 28, 28)
    s = split(d)
    assert [len(p) for p in (s.train, s.val, s.test)] == [51_000, 9_000, 10_000]
    assert float(d.inputs[:60_000].float().mean()) / 255 == pytest.approx(mean, abs=5e-5)
    assert all(c.ok for c in check(name))
    counts = torch.bincount(d.labels[s.train]) / torch.bincount(d.labels[:60_000])
    assert float((counts - 0.85).abs().max()) < 2e-4


def test_mnist_labels_belong_to_their_images(real_data):
    """A nearest-centroid rule on the real images is right four times in five, and by chance once in ten."""
    here(real_data, "mnist")
    d = load("mnist", download=False)
    x, y = d.inputs.flatten(1).float() / 255, d.labels
    centroids = torch.stack([x[:60_000][y[:60_000] == c].mean(0) for c in range(10)])
    predicted = torch.cdist(x[60_000:], centroids).argmin(1)
    assert float((predicted == y[60_000:]).float().mean()) > 0.8


def test_cifar10_part(real_data):
    folder = here(real_data, "cifar-10-batches-py")
    d = load("cifar10", download=False)
    assert d.classes[:3] == ("airplane", "automobile", "bird")
    assert torch.bincount(d.labels[d.official.test]).tolist() == [1000] * 10
    if not (folder / "data_batch_2").exists():
        assert d.note.startswith("1 of 5 training batches")
    checks = {c.what: c for c in check("cifar10")}
    assert checks["test_batch"].ok
    assert checks["data_batch_1"].ok
    s = split(d)
    y, _ = targets(d.labels, s.train)
    sampler = EpisodicSampler(d.labels, s.train, classes_per_episode=10, items_per_class=26, episodes=20)
    x = torch.cat([b.inputs for b in train_batches(d, y, sampler, preprocessing(d, s))])
    # A sixteenth of each image is zero, the mean; the rest has unit variance.
    assert float(x.mean()) == pytest.approx(0, abs=0.03)
    assert float(x.std()) == pytest.approx((15 / 16) ** 0.5, abs=0.04)


def test_cub_mini_splits_into_disjoint_classes(real_data):
    here(real_data, "CUB_200_2011_mini")
    d = load("cub200", download=False)
    s = split(d)
    found = [set(d.labels[p].tolist()) for p in (s.train, s.val, s.test)]
    assert len(set.union(*found)) == sum(map(len, found))
    assert max(found[0] | found[1]) < 100 <= min(found[2])
    how = preprocessing(d, s)
    x = next(iter(evaluation_batches(d, s.test, how, batch_size=4)))
    assert x.shape == (4, 3, 224, 224)
    y, classes = targets(d.labels, s.train)
    sampler = EpisodicSampler(d.labels, s.train, classes_per_episode=32, items_per_class=4, episodes=2)
    batches = list(train_batches(d, y, sampler, how, workers=1))
    assert [len(b.targets) for b in batches] == [4 * len(classes)] * 2


def test_cars_annotations_without_photos(real_data):
    folder = here(real_data, "cars196")
    if (folder / "car_ims").exists():
        d = load("cars196", download=False)
        s = split(d)
        assert [len(d.labels[p].unique()) for p in (s.train, s.val, s.test)] == [83, 15, 98]
    else:
        with pytest.raises(
            DataError, match=r"car_ims has none of the 16,185 photos, only the annotations are here"
        ):
            load("cars196", download=False)
        assert {s.name: s.state for s in list_datasets()}["cars196"] == "in part"


def test_cub_features_split_as_the_paper_does(real_data):
    path = here(real_data, "features/cub200-resnet50.npz")
    d = load(path, task="retrieval")
    assert d.inputs.shape == (11_788, 2048)
    s = split(d)
    assert [len(d.labels[p].unique()) for p in (s.train, s.val, s.test)] == [85, 15, 100]
    assert int(d.labels[s.test].min()) == 100


def test_features_of_real_photos_by_real_weights(real_data, tmp_path):
    """EfficientNet-Lite0 on the photos of CUB-200, against torchvision's transforms one photo at a time."""
    import spaceform

    spaceform.ensure_torchvision()
    from PIL import Image
    from torchvision import transforms

    from spaceform.nets.pretrained import carried_file, frozen_net

    here(real_data, "CUB_200_2011_mini")
    if carried_file("tf_efficientnet_lite0") is None:
        pytest.skip("pip install 'spaceform[photos]'")
    birds = load("cub200", download=False)
    found = spaceform.extract_features(birds, tmp_path / "f.npz").load()
    assert found.inputs.shape == (len(birds), 1280)
    net = frozen_net()
    look = transforms.Compose(
        [
            transforms.Resize(256, transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize((0.5,) * 3, (0.5,) * 3),
        ]
    )
    some = list(range(0, len(birds), 12))
    with torch.no_grad():
        x = [look(Image.open(birds.inputs[i]).convert("RGB")) for i in some]
        wanted = torch.cat([net(one[None]) for one in x])
    assert (found.inputs[some] - wanted).abs().max() < 1e-4
