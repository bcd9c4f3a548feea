"""Thumbnails come back as they went in, within their budget."""

import io

import numpy as np
import pytest
from PIL import Image

from spaceform.report.figures.images import (
    Pictures,
    encode_exact,
    enlarged,
    open_pictures,
    rows_of_neighbours,
    sheet,
    tiled,
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def decoded(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def test_a_grey_sheet_keeps_every_image_in_its_place(rng) -> None:
    pictures = rng.integers(0, 256, (23, 8, 8, 1), dtype=np.uint8)
    found = sheet(pictures, 10_000)
    pixels = decoded(found.image.content)[..., 0]
    assert (found.side, found.columns) == (8, 5)
    for i, picture in enumerate(pictures):
        top, left = i // 5 * 8, i % 5 * 8
        got = pixels[top : top + 8, left : left + 8].astype(int)
        assert np.abs(got - picture[..., 0]).max() <= 8  # half a step of 16 levels


def test_a_colour_sheet_gets_coarser_until_it_fits(rng) -> None:
    pictures = rng.integers(0, 256, (100, 32, 32, 3), dtype=np.uint8)
    small, large = sheet(pictures, 20_000), sheet(pictures, 10**9)
    assert len(small.image.content) <= 20_000
    assert large.side == 32
    assert small.side < 32


def test_gaps_are_transparent_and_enlarging_repeats_pixels() -> None:
    pictures = np.full((4, 2, 2, 1), 200, np.uint8)
    grid = tiled(enlarged(pictures, 3), 2, gap=1)
    assert grid.shape == (9, 9, 4)
    assert grid[4].max() == 0
    assert (grid[:4, :4] == [200, 200, 200, 255]).all()
    assert encode_exact(grid).uri.startswith("data:image/png;base64,")


def test_wrong_neighbours_are_framed_and_right_ones_are_not() -> None:
    grey = np.full((1, 28, 28, 1), 100, np.uint8)
    row = rows_of_neighbours(grey, [np.repeat(grey, 2, 0)], [[True, False]], gap=3)
    right, wrong = row[:, 43:71], row[:, 74:102]
    assert (right[..., :3] == 100).all()
    assert wrong[0, 0, 0] > 200
    assert wrong[0, 0, 1] < 100
    assert (wrong[10:26, 4:26, :3] == 100).all()


def test_pictures_of_data_that_is_here_and_of_data_that_is_not(tmp_path) -> None:
    digits = open_pictures("digits")
    assert isinstance(digits, Pictures)
    assert digits.thumbnails(np.array([3, 1])).shape == (2, 8, 8, 1)
    missing = open_pictures(str(tmp_path / "gone.npz"))
    assert isinstance(missing, str)
    assert missing.startswith("The images cannot be shown: ")
    np.savez(tmp_path / "f.npz", X=np.eye(6, dtype=np.float32), y=np.array([0, 0, 0, 1, 1, 1]))
    assert open_pictures(str(tmp_path / "f.npz")) == (
        "The data are feature vectors; there are no images to show."
    )


def test_photos_become_square_thumbnails(tmp_path, rng) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(3):
            pixels = rng.integers(0, 256, (90 + 7 * i, 130, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{i}.png")
    photos = open_pictures(str(tmp_path))
    assert isinstance(photos, Pictures)
    assert photos.photos
    assert photos.thumbnails(np.array([0, 5])).shape == (2, 48, 48, 3)
    (tmp_path / "cat" / "0.png").write_bytes(b"broken")
    assert (photos.thumbnails(np.array([0])) == 128).all()
