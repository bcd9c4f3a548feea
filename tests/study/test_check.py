"""`spaceform data check` refuses what `compare` would refuse."""

import numpy as np
import pytest
from PIL import Image

import spaceform
from spaceform.verbs.check import check


def test_images_that_are_too_small_are_refused_by_both_and_leave_no_folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in "ab":
        (tmp_path / "tiny" / name).mkdir(parents=True)
        for i in range(10):
            pixel = Image.fromarray(rng.integers(0, 255, (1, 1, 3)).astype(np.uint8))
            pixel.save(tmp_path / "tiny" / name / f"{i}.png")
    *others, last = check(tmp_path / "tiny")
    assert all(found.ok for found in others)
    assert (last.what, last.ok) == ("compare", False)
    assert "takes images of 4x4 or more" in last.detail
    with pytest.raises(ValueError, match="takes images of 4x4 or more"):
        spaceform.compare(tmp_path / "tiny", "cosine", out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_data_that_can_be_compared_pass(tmp_path):
    np.savez(tmp_path / "f.npz", X=np.random.default_rng(0).normal(size=(60, 4)), y=np.arange(60) % 3)
    found = check(tmp_path / "f.npz")
    assert all(one.ok for one in found)
    assert found[-1].detail == "6 heads can be compared"
