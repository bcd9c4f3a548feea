"""A folder of images with a class per sub-folder."""

import pytest
import torch

from spaceform.data import DataError, load, split
from spaceform.run import predict


def test_photos_in_class_folders(tmp_path, write_folder):
    folder = write_folder(tmp_path / "pets", {"dog": 4, "cat": 3, ".hidden": 2})
    (folder / "cat" / "notes.txt").write_text("not an image")
    (folder / "cat" / "deeper").mkdir()
    (folder / "cat" / "000.jpg").rename(folder / "cat" / "deeper" / "000.JPEG")
    d = load(folder)
    assert (d.name, d.kind, d.classes) == ("pets", "photos", ("cat", "dog"))
    assert d.labels.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert d.official is None


def test_hidden_files_and_folders_are_no_images_in_training_and_prediction(tmp_path, write_folder):
    folder = write_folder(tmp_path / "pets", {"cat": 2, "dog": 2})
    (folder / "cat" / "._000.jpg").write_bytes(b"a resource fork of macOS")
    (folder / "dog" / ".ipynb_checkpoints").mkdir()
    (folder / "dog" / ".ipynb_checkpoints" / "000-checkpoint.jpg").write_bytes(b"a copy")
    trained = load(folder).inputs
    assert [path.name for path in trained] == ["000.jpg", "001.jpg"] * 2
    assert predict.read_items([folder])[1] == list(trained)


def test_small_images_of_one_size_are_held_in_memory(tmp_path, write_folder, write_photo):
    folder = write_folder(tmp_path / "small", {"a": 3, "b": 3}, size=(32, 24), ext="png")
    d = load(folder)
    assert d.kind == "pixels"
    assert d.inputs.shape == (6, 3, 24, 32)
    write_photo(folder / "b" / "x.png", size=(30, 24))
    assert load(folder).kind == "photos"


def test_a_large_jpeg_is_not_taken_for_a_small_image(tmp_path, write_folder):
    """512x512 decodes at an eighth of its size to 64x64, the largest small image."""
    assert load(write_folder(tmp_path / "large", {"a": 2, "b": 2}, size=(512, 512))).kind == "photos"
    assert load(write_folder(tmp_path / "small", {"a": 2, "b": 2}, size=(64, 64))).kind == "pixels"


def test_grey_images_have_one_channel(tmp_path, write_photo):
    for i in range(4):
        write_photo(tmp_path / "grey" / "ab"[i % 2] / f"{i}.png", size=(16, 16), seed=i, mode="L")
    d = load(tmp_path / "grey")
    assert d.inputs.shape == (4, 1, 16, 16)
    assert d.inputs.dtype == torch.uint8


def test_parts_given_as_folders_are_the_split(tmp_path, write_folder):
    write_folder(tmp_path / "d" / "train", {"a": 4, "b": 4})
    write_folder(tmp_path / "d" / "valid", {"a": 1, "b": 1})
    write_folder(tmp_path / "d" / "test", {"a": 2, "b": 2})
    d = load(tmp_path / "d")
    s = split(d)
    assert [len(p) for p in (s.train, s.val, s.test)] == [8, 2, 4]
    assert {d.inputs[i].parts[-3] for i in s.test} == {"test"}
    assert d.classes == ("a", "b")


@pytest.mark.parametrize(
    ("train", "val", "test"), [("training", "validation", "testing"), ("Train", "dev", "TEST")]
)
def test_parts_go_by_several_names(tmp_path, write_folder, train, val, test):
    for name, count in ((train, 3), (val, 1), (test, 2)):
        write_folder(tmp_path / "d" / name, {"a": count, "b": count})
    d = load(tmp_path / "d")
    assert d.classes == ("a", "b")
    assert [len(p) for p in (d.official.train, d.official.val, d.official.test)] == [6, 2, 4]


def test_parts_of_unknown_names_are_not_taken_for_classes(tmp_path, write_folder, write_photo):
    write_folder(tmp_path / "d" / "train", {"a": 2, "b": 2, "c": 2})
    write_folder(tmp_path / "d" / "eval", {"a": 2, "b": 2})
    with pytest.raises(
        DataError,
        match=r"d has the folders 'eval', 'train', and each of them has 'a', 'b'; call the former 'train', ",
    ):
        load(tmp_path / "d")
    for name in ("eval", "train"):  # images of their own make them classes
        write_photo(tmp_path / "d" / name / "x.jpg")
    assert load(tmp_path / "d").classes == ("eval", "train")


def test_classes_may_have_a_sub_folder_in_common(tmp_path, write_folder):
    write_folder(tmp_path / "d" / "cat", {"day": 2, "dusk": 1})
    write_folder(tmp_path / "d" / "dog", {"day": 2, "night": 2})
    assert load(tmp_path / "d").classes == ("cat", "dog")


def test_train_beside_other_classes_is_a_class(tmp_path, write_folder):
    d = load(write_folder(tmp_path / "vehicles", {"bus": 2, "train": 2, "tram": 2}))
    assert d.classes == ("bus", "train", "tram")
    assert d.official is None


def test_what_is_wrong_with_a_folder_is_said(tmp_path, write_folder):
    with pytest.raises(DataError, match=r"there is no data '.*nowhere'"):
        load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty has no images in sub-folders"):
        load(tmp_path / "empty")
    write_folder(tmp_path / "one", {"only": 3})
    with pytest.raises(DataError, match=r"one \(.*one\) has items of one class only \('only'\)"):
        load(tmp_path / "one")
    write_folder(tmp_path / "hollow", {"a": 2, "b": 0})
    with pytest.raises(DataError, match=r"the class folder 'b' in .*hollow has no images"):
        load(tmp_path / "hollow")
    write_folder(tmp_path / "lonely", {"a": 4, "b": 1})
    with pytest.raises(DataError, match=r"class 'b' of lonely \(.*lonely\) has one item to train on"):
        split(load(tmp_path / "lonely"))


@pytest.mark.parametrize("content", [b"", b"not an image at all", b"\x89PNG\r\n\x1a\n broken"])
def test_a_small_image_that_cannot_be_read_is_named(tmp_path, write_folder, content):
    folder = write_folder(tmp_path / "small", {"a": 3, "b": 3}, size=(32, 24), ext="png")
    (folder / "b" / "001.png").write_bytes(content)
    with pytest.raises(DataError, match=r"001\.png cannot be decoded as an image"):
        load(folder)
