"""Finding data by name: the usual layouts, what is listed and checked, what is said when it is absent."""

import hashlib
import tarfile
from dataclasses import replace

import numpy as np
import pytest

from spaceform.data import CATALOG, DataError, check, get, list_datasets, load
from spaceform.data.download import Remote


def state(name):
    return next(s for s in list_datasets() if s.name == name)


def test_the_catalog_has_the_eight_of_the_paper_and_digits():
    assert list(CATALOG) == [
        "digits",
        "mnist",
        "fashion-mnist",
        "cifar10",
        "cifar100",
        "cars196",
        "cub200",
        "sop",
    ]
    assert [e.name for e in CATALOG.values() if e.task == "retrieval"] == ["cars196", "cub200", "sop"]
    for entry in CATALOG.values():
        for remote in entry.remotes:
            assert len(remote.checksum.removeprefix("md5:")) == 32
            assert all(url.endswith(remote.name) for url in remote.urls)


@pytest.mark.parametrize("place", ["mnist", "MNIST/raw"])
@pytest.mark.parametrize("zipped", [True, False])
def test_mnist_is_found_in_its_usual_layouts(data_folder, write_mnist, place, zipped):
    write_mnist(data_folder / place, zipped=zipped)
    assert len(load("mnist", download=False)) == 40
    assert (state("mnist").state, state("mnist").items) == ("in part", 40)
    assert state("mnist").path == data_folder / place
    assert state("fashion-mnist").state == "not here"


def test_the_cache_is_looked_into_after_the_named_folder(data_folder, write_mnist):
    cache = data_folder.parent / "cache" / "spaceform" / "FashionMNIST" / "raw"
    write_mnist(cache)
    assert load("fashion-mnist", download=False).classes[9] == "Ankle boot"
    write_mnist(data_folder / "fashion-mnist")
    assert state("fashion-mnist").path == data_folder / "fashion-mnist"


def test_a_whole_data_set_is_preferred_to_a_part(data_folder, write_cifar10):
    write_cifar10(data_folder / "cifar-10-batches-py", batches=(1,))
    assert state("cifar10").state == "in part"
    assert load("cifar10", download=False).note.startswith("1 of 5")
    write_cifar10(data_folder.parent / "cache/spaceform/cifar-10-batches-py")
    assert state("cifar10").path == data_folder.parent / "cache/spaceform/cifar-10-batches-py"
    assert load("cifar10", download=False).note == ""


def test_cars_without_photos_are_there_in_part(data_folder):
    (data_folder / "cars196").mkdir()
    (data_folder / "cars196" / "cars_annos.mat").write_bytes(b"")
    assert (state("cars196").state, state("cars196").items) == ("in part", 0)


@pytest.mark.usefixtures("data_folder")
def test_digits_are_built_in():
    assert state("digits").state == "built in"
    assert [c.ok for c in check("digits")] == [True, True]
    with pytest.raises(DataError, match="digits comes with a package"):
        get("digits")


def test_a_data_set_without_an_address_is_put_there_by_hand(data_folder, write_mnist, monkeypatch):
    entry = replace(CATALOG["mnist"], remotes=(), checksums=(), by_hand="ask its authors for it")
    monkeypatch.setitem(CATALOG, "mnist", entry)
    where = f"put it into {data_folder / 'mnist'} (ask its authors for it)."
    assert state("mnist").state == "not here"
    assert check("mnist")[0].detail == f"not here; {where}"
    with pytest.raises(DataError, match="mnist is not here; put it into"):
        load("mnist")
    with pytest.raises(DataError) as caught:
        get("mnist")
    assert str(caught.value) == f"mnist has no address to download it from; {where}"
    place = write_mnist(data_folder / "mnist")
    assert get("mnist") == place
    assert len(load("mnist")) == 40


def test_what_is_not_here_says_what_to_put_where(data_folder):
    with pytest.raises(DataError) as caught:
        load("mnist", download=False)
    assert str(caught.value) == (
        "mnist is not here; put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, "
        f"t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz into {data_folder / 'mnist'}."
    )
    with pytest.raises(
        DataError, match=r"put cars_annos\.mat, car_ims\.tgz into .*cars196 \(or unpack CARS196\.zip"
    ):
        load("cars196", download=False)
    assert [c.ok for c in check("sop")] == [False]


@pytest.mark.usefixtures("data_folder")
def test_a_name_that_is_nearly_right():
    with pytest.raises(DataError, match="there is no data 'mnits'; did you mean 'mnist'"):
        load("mnits")
    with pytest.raises(DataError, match="unknown data set 'cifar1'; did you mean 'cifar10'"):
        get("cifar1")


def test_check_finds_a_changed_file_and_counts(data_folder, write_mnist):
    folder = write_mnist(data_folder / "mnist")
    checks = {c.what: c for c in check("mnist")}
    assert not checks["train-images-idx3-ubyte.gz"].ok
    assert "not f68b3c2dcbeaaa9fbdd348bbdeb94873" in checks["train-images-idx3-ubyte.gz"].detail
    assert checks["counts"].detail == "40 items, 10 classes; all of it is 70,000 and 10"
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    checks = {c.what: c for c in check("mnist")}
    assert checks["t10k-labels-idx1-ubyte.gz"].detail.endswith("is missing")
    assert not checks["mnist"].ok
    write_mnist(folder, zipped=False)
    assert {c.what: c for c in check("mnist")}["t10k-labels-idx1-ubyte"].ok


def test_check_of_own_photos_decodes_each(tmp_path, write_folder):
    folder = write_folder(tmp_path / "pets", {"cat": 3, "dog": 3})
    assert [c.ok for c in check(folder)] == [True, True, True]
    (folder / "dog" / "001.jpg").write_bytes(b"\xff\xd8\xff broken")
    counts, parts, broken, total = check(folder)
    assert (counts.ok, parts.ok, broken.ok, total.ok) == (True, True, False, False)
    assert all(c.ok for c in check(folder, photos=False))
    assert broken.what == "001.jpg"
    assert total.detail == "5 of 6 decode"
    np.savez(tmp_path / "f.npz", X=np.ones((4, 2)), y=[0, 0, 0, 0])
    assert not check(tmp_path / "f.npz")[0].ok


def test_get_unpacks_an_archive_that_is_here(data_folder, write_cifar10, monkeypatch):
    with tarfile.open(data_folder / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(write_cifar10(data_folder.parent / "made"), "cifar-10-batches-py")
    md5 = hashlib.md5(
        (data_folder / "cifar-10-python.tar.gz").read_bytes(), usedforsecurity=False
    ).hexdigest()
    remote = Remote("cifar-10-python.tar.gz", f"md5:{md5}", ("http://127.0.0.1:9/nothing",))
    monkeypatch.setitem(CATALOG, "cifar10", replace(CATALOG["cifar10"], remotes=(remote,)))
    assert state("cifar10").state == "archive here"
    # One batch lies there already: the rest is added to it.
    write_cifar10(data_folder / "cifar-10-batches-py", batches=(1,))
    assert get("cifar10") == data_folder / "cifar-10-batches-py"
    assert load("cifar10").note == ""
    assert not [p for p in data_folder.iterdir() if p.name.endswith(".unpacking")]
