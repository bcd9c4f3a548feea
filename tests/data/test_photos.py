"""Photos: decoding, the paper's transforms, and batches that no number of workers or processes can change."""

import numpy as np
import pytest
import torch
from PIL import Image

from spaceform.data import (
    PHOTOS,
    DataError,
    EpisodicSampler,
    Photos,
    evaluation_batches,
    load,
    preprocessing,
    split,
    targets,
    train_batches,
)
from spaceform.data.photos import IMAGENET_MEAN, IMAGENET_STD, decode

SMALL = Photos(64, 48, brightness=(0.75, 1.25), hue=(-0.1, 0.1))


def test_the_paper_s_ranges():
    seven, three_quarters = (0.7, 1.3), (0.75, 1.25)
    assert PHOTOS["cars196"] == Photos(
        (256, 256), 224, seven, seven, seven, (-0.1, 0.1), (0.16, 1.0), (1.0, 1.0)
    )
    assert PHOTOS["cub200"] == Photos(256, 224, *[three_quarters] * 3, None, (0.16, 1.0), (0.75, 1.33))
    assert PHOTOS["sop"] == Photos((256, 256), 224, None, None, None, None, (0.16, 1.0), (0.75, 1.33))
    assert {p.mean for p in PHOTOS.values()} == {(0.485, 0.456, 0.406)}
    assert {p.std for p in PHOTOS.values()} == {(0.229, 0.224, 0.225)}


def test_evaluation_resizes_crops_the_centre_and_scores(tmp_path, write_photo):
    path = write_photo(tmp_path / "a.png", (90, 60))
    x = Photos(30, 20).evaluate(path)
    shrunk = Image.open(path).resize((45, 30), Image.Resampling.BILINEAR)
    left, top = round((45 - 20) / 2), 5
    pixels = torch.from_numpy(np.array(shrunk)[top : top + 20, left : left + 20]).permute(2, 0, 1) / 255
    expected = (pixels - torch.tensor(IMAGENET_MEAN)[:, None, None]) / torch.tensor(IMAGENET_STD)[
        :, None, None
    ]
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-5)
    square = Photos((30, 30), 30).evaluate(path)
    assert square.shape == (3, 30, 30)


def test_training_is_a_function_of_the_seed_and_leaves_the_global_stream(tmp_path, write_photo):
    path = write_photo(tmp_path / "a.jpg", (200, 150))
    before = torch.get_rng_state()
    a, b, c = SMALL.train(path, 1), SMALL.train(path, 1), SMALL.train(path, 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert a.shape == (3, 48, 48)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_draft_mode_decodes_smaller_never_too_small(tmp_path, write_photo):
    path = write_photo(tmp_path / "a.jpg", (2000, 1200))
    assert decode(path).size == (2000, 1200)
    assert decode(path, 256).size == (500, 300)
    assert decode(path, 300).size == (500, 300)
    assert decode(path, 301).size == (1000, 600)


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "1", "YCbCr"])
def test_every_mode_becomes_rgb(tmp_path, write_photo, mode):
    path = write_photo(tmp_path / ("a.tif" if mode in {"CMYK", "YCbCr"} else "a.png"), mode=mode)
    image = decode(path)
    assert image.mode == "RGB"
    assert np.array_equal(image, Image.open(path).convert("RGB"))
    assert np.ptp(image) > 100


DEEP = np.array([[0, 128, 129, 257, 1000], [4095, 32768, 65000, 65406, 65535]], np.uint16)
SHALLOW = [[0, 0, 1, 1, 4], [16, 128, 253, 254, 255]]


@pytest.mark.parametrize("name", ["a.png", "little.tif", "big.tif", "a.pgm"])
def test_16_bits_are_scaled_by_their_range(tmp_path, name):
    path = tmp_path / name
    if name == "a.pgm":
        path.write_bytes(b"P5 5 2 65535\n" + DEEP.astype(">u2").tobytes())
    else:
        Image.fromarray(DEEP.astype(">u2") if name == "big.tif" else DEEP).save(path)
    grey = np.asarray(decode(path))
    assert grey[..., 0].tolist() == grey[..., 1].tolist() == grey[..., 2].tolist() == SHALLOW


def test_floats_from_0_to_1_are_scaled_by_255(tmp_path):
    Image.fromarray((DEEP / 65535).astype(np.float32)).save(tmp_path / "a.tif")
    assert np.asarray(decode(tmp_path / "a.tif"))[..., 2].tolist() == SHALLOW


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (np.float32([[0, 255]]), "holds floats from 0 to 255, .*; scale it to that, or save it with 8 or 16"),
        (np.float32([[-0.5, 1]]), "holds floats from -0.5 to 1"),
        (np.float32([[np.nan, 1]]), "holds floats from nan to nan"),
        (np.int32([[0, 65535]]), r"holds 32-bit or signed integers \(0 to 65535\), .*; save it with 8 or 16"),
        (
            np.uint16([[0, 255]]),
            "holds 16 bits, white being 65535, but no value above 255: .*; save it with 8",
        ),
    ],
)
def test_values_of_unknown_range_are_refused(tmp_path, pixels, message):
    Image.fromarray(pixels).save(tmp_path / "a.tif")
    with pytest.raises(DataError, match=rf"a\.tif {message}"):
        decode(tmp_path / "a.tif")


def test_a_black_picture_of_16_bits_is_black(tmp_path):
    Image.new("I;16", (3, 2)).save(tmp_path / "a.png")
    assert not np.asarray(decode(tmp_path / "a.png")).any()


def test_transparent_pixels_are_white(tmp_path):
    """Clear, half and opaque black, as drawings on a transparent ground have them."""
    alpha = np.array([[0, 128, 255]], np.uint8)
    black = np.zeros_like(alpha)
    grey = Image.merge("LA", [Image.fromarray(black), Image.fromarray(alpha)])
    grey.save(tmp_path / "LA.png")
    grey.convert("RGBA").save(tmp_path / "RGBA.png")
    palette = Image.fromarray(np.array([[0, 1, 2]], np.uint8), "P")
    palette.putpalette([0] * 9)
    palette.save(tmp_path / "P.png", transparency=bytes(alpha[0]))
    for name in ("LA.png", "RGBA.png", "P.png"):
        assert np.asarray(decode(tmp_path / name)).tolist() == [[[255] * 3, [127] * 3, [0] * 3]], name
    palette.save(tmp_path / "keyed.gif", transparency=1)
    assert np.asarray(decode(tmp_path / "keyed.gif")).tolist() == [[[0] * 3, [255] * 3, [0] * 3]]


@pytest.mark.parametrize("ext", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_are_upright(tmp_path, ext, orientation):
    """Quarters of four brightnesses, stored as a camera in each of the eight positions stores them."""
    upright = np.repeat(np.repeat(np.uint8([[0, 80], [160, 240]]), 16, 0), 24, 1)
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.T,
        6: upright.T[::-1],
        7: upright.T[::-1, ::-1],
        8: upright.T[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"a.{ext}"
    Image.fromarray(np.ascontiguousarray(stored)).save(path, exif=exif, quality=95)
    image = decode(path, 8)
    assert np.abs(np.asarray(image.resize((48, 32), 0).convert("L")).astype(int) - upright).max() <= 3


def test_damaged_metadata_do_no_harm(tmp_path, write_photo):
    image = Image.open(write_photo(tmp_path / "a.jpg"))
    for i, exif in enumerate((b"Exif\0\0nonsense", b"Exif\0\0II*\0\x08\0\0\0\x09\0\x12\x01")):
        image.save(tmp_path / f"{i}.png", exif=exif)
        assert np.array_equal(decode(tmp_path / f"{i}.png"), image)


def test_a_truncated_jpeg_is_named(tmp_path, write_photo):
    path = write_photo(tmp_path / "cut.jpg", (400, 300))
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DataError, match=r"cut\.jpg cannot be decoded as an image .*; replace or remove it"):
        decode(path)
    with pytest.raises(DataError, match=r"gone\.jpg does not exist"):
        decode(tmp_path / "gone.jpg")


@pytest.fixture
def pets(tmp_path, write_folder):
    return load(write_folder(tmp_path / "pets", {"cat": 9, "dog": 9, "eel": 9}))


def epoch(dataset, *, workers=0, rank=0, world_size=1, start=0, epoch=2):
    s = split(dataset)
    y, _ = targets(dataset.labels, s.train)
    sampler = EpisodicSampler(
        dataset.labels,
        s.train,
        classes_per_episode=2,
        items_per_class=3,
        episodes=4,
        seed=5,
        rank=rank,
        world_size=world_size,
    )
    sampler.set_epoch(epoch, start)
    return list(train_batches(dataset, y, sampler, SMALL, workers=workers))


def test_batches_do_not_depend_on_workers_or_where_an_epoch_is_taken_up(pets):
    alone = epoch(pets)
    assert [b.total for b in alone] == [6] * 4
    for other in (epoch(pets, workers=2), epoch(pets, start=2)):
        for a, b in zip(alone[-len(other) :], other, strict=True):
            assert torch.equal(a.inputs, b.inputs)
            assert torch.equal(a.targets, b.targets)
    assert not torch.equal(alone[0].inputs, epoch(pets, epoch=3)[0].inputs)


def test_ranks_together_see_the_batch_of_one_process(pets):
    alone = epoch(pets)
    ranks = [epoch(pets, rank=r, world_size=2) for r in range(2)]
    for a, first, second in zip(alone, *ranks, strict=True):
        assert torch.equal(a.inputs[0::2], first.inputs)
        assert torch.equal(a.inputs[1::2], second.inputs)
        assert torch.equal(a.targets[1::2], second.targets)
        assert first.total == second.total == 6


def test_the_same_photo_is_augmented_anew_each_time(pets):
    seen = torch.cat([b.inputs for b in epoch(pets)])
    assert len(torch.unique(seen.flatten(1), dim=0)) == len(seen)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_corrupt_photo_is_one_sentence_from_any_process(pets, workers):
    path = pets.inputs[4]
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataError) as caught:
        list(evaluation_batches(pets, torch.arange(len(pets)), SMALL, batch_size=4, workers=workers))
    assert str(caught.value).startswith(f"{path} cannot be decoded as an image")
    assert "Traceback" not in str(caught.value)


def test_evaluation_batches_are_in_order_without_augmentation(pets):
    indices = torch.tensor([5, 1, 9, 0, 2])
    x = torch.cat(list(evaluation_batches(pets, indices, SMALL, batch_size=2)))
    assert torch.equal(x, torch.stack([SMALL.evaluate(pets.inputs[i]) for i in indices]))


def test_own_photos_are_treated_as_the_birds(pets):
    assert preprocessing(pets, split(pets)) == PHOTOS["cub200"]
