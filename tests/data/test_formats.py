"""Each original format, from small files written here; and what is said of a file that is broken."""

import gzip
import os
import pickle
import tarfile

import numpy as np
import pytest
import torch
from scipy.io import savemat

from spaceform.data import DataError
from spaceform.data.formats.cars import load_cars
from spaceform.data.formats.cifar import load_cifar10, load_cifar100
from spaceform.data.formats.cub import load_cub
from spaceform.data.formats.digits import load_digits
from spaceform.data.formats.idx import load_idx, read_idx
from spaceform.data.formats.sop import load_sop

TEN = tuple("0123456789")


def test_digits_are_the_ones_of_scikit_learn():
    dataset = load_digits()
    assert dataset.kind == "pixels"
    assert dataset.inputs.shape == (1797, 1, 8, 8)
    assert int(dataset.inputs.max()) == 255
    assert torch.bincount(dataset.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


@pytest.mark.parametrize("zipped", [True, False])
def test_idx_files_are_read_train_first(tmp_path, write_mnist, zipped):
    dataset = load_idx(write_mnist(tmp_path / "m", zipped=zipped), "mnist", TEN)
    expected = np.random.default_rng(0).integers(256, size=(30, 28, 28), dtype=np.uint8)
    assert torch.equal(dataset.inputs[:30, 0], torch.from_numpy(expected))
    assert dataset.labels.tolist() == [i % 10 for i in range(30)] + list(range(10))
    assert dataset.official.train.tolist() == list(range(30))
    assert dataset.official.test.tolist() == list(range(30, 40))


def test_truncated_gz_names_the_file(tmp_path, write_mnist):
    path = write_mnist(tmp_path / "m") / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is cut short or damaged"):
        load_idx(path.parent, "mnist", TEN)


def test_damaged_gz_names_the_file(tmp_path, write_mnist):
    path = write_mnist(tmp_path / "m") / "t10k-labels-idx1-ubyte.gz"
    content = bytearray(path.read_bytes())
    content[12:20] = b"\xff" * 8
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz"):
        load_idx(path.parent, "mnist", TEN)


def test_idx_of_the_wrong_length_kind_or_place(tmp_path, write_mnist):
    folder = write_mnist(tmp_path / "m", zipped=False)
    labels = folder / "train-labels-idx1-ubyte"
    whole = labels.read_bytes()
    labels.write_bytes(whole[:-3])
    with pytest.raises(DataError, match=r"announces 30 bytes and holds 27"):
        load_idx(folder, "mnist", TEN)
    labels.write_bytes((folder / "t10k-labels-idx1-ubyte").read_bytes())
    with pytest.raises(
        DataError, match=r"train-labels-idx1-ubyte holds 10 labels, .* 30 images; use the label file"
    ):
        load_idx(folder, "mnist", TEN)
    labels.write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match="is not an idx file"):
        read_idx(labels)
    labels.write_bytes(whole[:8] + bytes([77]) + whole[9:])
    with pytest.raises(DataError, match=r"mnist .* has a label 77, but 10 classes"):
        load_idx(folder, "mnist", TEN)
    labels.unlink()
    with pytest.raises(DataError, match=r"lacks train-labels-idx1-ubyte\.gz"):
        load_idx(folder, "mnist", TEN)


def test_cifar10_whole_part_and_archive_agree(tmp_path, write_cifar10):
    whole = load_cifar10(write_cifar10(tmp_path / "cifar-10-batches-py"))
    assert whole.inputs.shape == (120, 3, 32, 32)
    assert whole.classes[3] == "thing3"
    assert whole.note == ""
    assert len(whole.official.train), len(whole.official.test) == (100, 20)
    first = np.random.default_rng(0).integers(256, size=(20, 3072), dtype=np.uint8)
    assert torch.equal(whole.inputs[0], torch.from_numpy(first[0].reshape(3, 32, 32)))

    part = load_cifar10(write_cifar10(tmp_path / "part", batches=(1,)))
    assert len(part) == 40
    assert (
        part.note
        == "1 of 5 training batches; missing: data_batch_2, data_batch_3, data_batch_4, data_batch_5"
    )

    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "cifar-10-batches-py", "cifar-10-batches-py")
    assert torch.equal(load_cifar10(tmp_path / "cifar.tar.gz").inputs, whole.inputs)


def test_cifar100_uses_the_fine_labels(tmp_path):
    for name, n in (("train", 200), ("test", 100)):
        data = np.full((n, 3072), 7, dtype=np.uint8)
        batch = {b"data": data, b"fine_labels": [i % 100 for i in range(n)], b"coarse_labels": [0] * n}
        (tmp_path / name).write_bytes(pickle.dumps(batch, protocol=3))
    dataset = load_cifar100(tmp_path)
    assert len(dataset.classes) == 100
    assert dataset.labels[:100].tolist() == list(range(100))


class Malicious:
    def __reduce__(self):
        return os.system, ("touch hacked",)


def test_a_pickle_that_asks_for_code_is_refused_unrun(tmp_path, write_cifar10, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write_cifar10(tmp_path / "cifar-10-batches-py")
    (folder / "data_batch_2").write_bytes(pickle.dumps({b"data": Malicious(), b"labels": []}))
    with pytest.raises(DataError, match=r"data_batch_2 is not a file of CIFAR arrays .*system"):
        load_cifar10(folder)
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_1", b"\x80\x02}q\x00(U\x04data", "data_batch_1 is "),
        ("data_batch_1", pickle.dumps([1, 2]), "data_batch_1 holds a list"),
        (
            "data_batch_1",
            pickle.dumps({b"data": np.zeros((2, 5), np.uint8), b"labels": [0, 1]}),
            "no images of 3x32x32",
        ),
        (
            "test_batch",
            pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}),
            "no label for each",
        ),
        ("test_batch", None, "lacks 'test_batch'"),
    ],
)
def test_broken_cifar_files_are_named(tmp_path, write_cifar10, name, content, message):
    folder = write_cifar10(tmp_path / "cifar-10-batches-py")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_cifar10(folder)


def test_a_truncated_cifar_archive_is_named(tmp_path, write_cifar10):
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(write_cifar10(tmp_path / "cifar-10-batches-py"), "cifar-10-batches-py")
    archive.write_bytes(archive.read_bytes()[:-5000])
    with pytest.raises(DataError, match=r"cifar-10-python\.tar\.gz is cut short or damaged"):
        load_cifar10(archive)


def write_cub(folder, write_photo):
    names = ["001.Auk", "002.Bittern", "003.Crow", "004.Dove"]
    rows = [
        (i + 1, c, f"{names[c]}/{names[c][4:]}_{i:04d}.jpg") for i, c in enumerate([0, 0, 1, 1, 2, 2, 3, 3])
    ]
    for _, _, path in rows:
        write_photo(folder / "images" / path)
    (folder / "classes.txt").write_text("".join(f"{i} {name}\n" for i, name in enumerate(names, 1)))
    (folder / "images.txt").write_text("".join(f"{i} {path}\n" for i, _, path in rows))
    (folder / "image_class_labels.txt").write_text("".join(f"{i} {c + 1}\n" for i, c, _ in rows))
    (folder / "train_test_split.txt").write_text("".join(f"{i} {i % 2}\n" for i, _, _ in rows))
    return folder


def test_cub_reads_the_four_tables(tmp_path, write_photo):
    dataset = load_cub(write_cub(tmp_path, write_photo))
    assert dataset.task == "retrieval"
    assert dataset.kind == "photos"
    assert dataset.classes == ("001.Auk", "002.Bittern", "003.Crow", "004.Dove")
    assert dataset.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert dataset.official.train.tolist() == [0, 2, 4, 6]
    assert dataset.note == "8 of 11,788 photos"


def test_cub_leaves_out_missing_photos_and_says_so(tmp_path, write_photo):
    folder = write_cub(tmp_path, write_photo)
    (folder / "images/003.Crow/Crow_0004.jpg").unlink()
    dataset = load_cub(folder)
    assert dataset.labels.tolist() == [0, 0, 1, 1, 2, 3, 3]
    assert dataset.note == "7 of 11,788 photos"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("image_class_labels.txt", "1 1\n", r"image_class_labels\.txt says nothing of image 2"),
        ("train_test_split.txt", "", r"train_test_split\.txt says nothing of image 1"),
        ("classes.txt", "1 001.Auk\n", r"gives image 3 the class 2, which classes\.txt does not have"),
        ("images.txt", "1\n", r"line 1 of .*images\.txt is '1'"),
        ("images.txt", "1 nowhere.jpg\n", r"has none of the 1 photos"),
        ("images.txt", None, r"images\.txt is missing"),
    ],
)
def test_broken_cub_tables_are_named(tmp_path, write_photo, file, content, message):
    folder = write_cub(tmp_path, write_photo)
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(DataError, match=message):
        load_cub(folder)


def write_sop(folder, write_photo):
    header = "image_id class_id super_class_id path\n"
    rows = [
        (i + 1, i // 2 + 1, f"chair_final/{i}.JPG" if i < 6 else f"lamp_final/{i}.JPG") for i in range(12)
    ]
    for _, _, path in rows:
        write_photo(folder / path)
    for name, part in (("Ebay_train.txt", rows[:6]), ("Ebay_test.txt", rows[6:])):
        (folder / name).write_text(header + "".join(f"{i} {c} 1 {path}\n" for i, c, path in part))
    return folder


def test_sop_keeps_the_official_halves(tmp_path, write_photo):
    dataset = load_sop(write_sop(tmp_path, write_photo))
    assert dataset.labels.tolist() == [i // 2 for i in range(12)]
    assert dataset.official.train.tolist() == list(range(6))
    assert dataset.official.test.tolist() == list(range(6, 12))
    assert dataset.classes == ("1", "2", "3", "4", "5", "6")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id class path\n", r"Ebay_test\.txt starts with 'id class path'"),
        ("image_id class_id super_class_id path\n1 2\n", r"line 2 of .*Ebay_test\.txt is '1 2'"),
        ("", r"Ebay_test\.txt cannot be read as a list"),
        (None, r"Ebay_test\.txt is missing"),
    ],
)
def test_broken_sop_lists_are_named(tmp_path, write_photo, content, message):
    folder = write_sop(tmp_path, write_photo)
    (folder / "Ebay_test.txt").unlink()
    if content is not None:
        (folder / "Ebay_test.txt").write_text(content)
    with pytest.raises(DataError, match=message):
        load_sop(folder)


def annotations(rows, **fields):
    kinds = [(name, "O") for name in fields]
    table = np.empty((1, rows), dtype=kinds)
    for name, values in fields.items():
        table[name][0, :] = values
    return table


def test_cars_from_the_joined_annotations(tmp_path, write_photo):
    names = np.array(["Audi", "BMW", "Citroën", "Dacia"], dtype=object)
    paths = [f"car_ims/{i:06d}.jpg" for i in range(1, 9)]
    table = annotations(8, relative_im_path=paths, **{"class": [1, 1, 2, 2, 3, 3, 4, 4], "test": [0, 1] * 4})
    savemat(tmp_path / "cars_annos.mat", {"annotations": table, "class_names": names})
    with pytest.raises(DataError, match=r"car_ims has none of the 8 photos, .* unpack car_ims\.tgz into"):
        load_cars(tmp_path)
    for path in paths:
        write_photo(tmp_path / path)
    dataset = load_cars(tmp_path)
    assert dataset.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert dataset.official.test.tolist() == [1, 3, 5, 7]
    assert dataset.classes[2] == "Citroën"


def test_cars_in_the_layout_of_torchvision(tmp_path, write_photo):
    (tmp_path / "devkit").mkdir()
    savemat(tmp_path / "devkit/cars_meta.mat", {"class_names": np.array(["Audi", "BMW"], dtype=object)})
    for place, part in (("devkit/cars_train_annos.mat", "train"), ("cars_test_annos_withlabels.mat", "test")):
        savemat(
            tmp_path / place, {"annotations": annotations(2, fname=["1.jpg", "2.jpg"], **{"class": [1, 2]})}
        )
        for name in ("1.jpg", "2.jpg"):
            write_photo(tmp_path / f"cars_{part}" / name)
    dataset = load_cars(tmp_path)
    assert dataset.labels.tolist() == [0, 1, 0, 1]
    assert dataset.official.test.tolist() == [2, 3]
    assert dataset.inputs[2] == tmp_path / "cars_test/1.jpg"


def test_broken_cars_annotations_are_named(tmp_path):
    with pytest.raises(DataError, match=r"lacks cars_annos\.mat"):
        load_cars(tmp_path)
    (tmp_path / "cars_annos.mat").write_bytes(b"MATLAB 5.0 MAT-file" + b"\0" * 200)
    with pytest.raises(DataError, match=r"cars_annos\.mat"):
        load_cars(tmp_path)
    savemat(
        tmp_path / "cars_annos.mat",
        {"annotations": annotations(1, other=[1]), "class_names": np.array(["a"])},
    )
    with pytest.raises(DataError, match=r"cars_annos\.mat have no 'relative_im_path'"):
        load_cars(tmp_path)


def test_gzip_with_a_wrong_suffix_is_an_idx_error(tmp_path):
    (tmp_path / "x").write_bytes(gzip.compress(b"abc"))
    with pytest.raises(DataError, match="is not an idx file"):
        read_idx(tmp_path / "x")
