"""`spaceform data check` refuses what `compare` would refuse."""

import numpy as np
import pytest
from PIL import Image

import spaceform
from spaceform.verbs.check import check_data


def test_images_that_are_too_small_are_refused_by_both_and_leave_no_folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in "ab":
        (tmp_path / "tiny" / name).mkdir(parents=True)
        for i in range(10):
            pixel = Image.fromarray(rng.integers(0, 255, (1, 1, 3)).astype(np.uint8))
            pixel.save(tmp_path / "tiny" / name / f"{i}.png")
    *others, last = check_data(tmp_path / "tiny")
    assert all(found.ok for found in others)
    assert (last.what, last.ok) == ("compare", False)
    assert "takes images of 4x4 or more" in last.detail
    with pytest.raises(ValueError, match="takes images of 4x4 or more"):
        spaceform.compare(tmp_path / "tiny", "cosine", out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_data_that_can_be_compared_pass(tmp_path):
    np.savez(tmp_path / "f.npz", X=np.random.default_rng(0).normal(size=(60, 4)), y=np.arange(60) % 3)
    found = check_data(tmp_path / "f.npz")
    assert all(one.ok for one in found)
    assert found[-1].detail == "6 heads can be compared"


@pytest.mark.slow
@pytest.mark.usefixtures("lasting_processes")
def test_a_class_that_is_not_tested_is_told_by_check_comparison_and_page(tmp_path):
    y = np.array([0] * 30 + [1] * 30 + [2] * 2)
    path, said = tmp_path / "f.npz", []
    np.savez(path, X=np.random.default_rng(0).normal(size=(62, 4)) + y[:, None], y=y)
    wanted = "class '2' has no item in the test part, so that no number says how well it is found"
    assert any(wanted in one.detail for one in check_data(path))
    study = spaceform.compare(
        path, "standard", search=0, seeds=1, settings={"optim.epochs": 2}, out=tmp_path / "s", say=said.append
    )
    assert any(sentence.startswith(f"note: {wanted}") for sentence in said)
    assert wanted in study.notes["data_note"]
    page = study.report().read_text("utf-8")
    assert "has no item in the test part" in page
