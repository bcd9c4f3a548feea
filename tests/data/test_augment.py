"""Batched augmentation against the obvious: one image at a time, with torch's own padding and slicing."""

import pytest
import torch

from spaceform.data.augment import PIXELS, Pixels, crop_flip, occlude, pixels_for

CIFAR = PIXELS["cifar10"]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_hand(image: torch.Tensor, draw: list[int], how: Pixels) -> torch.Tensor:
    """Pad, crop, flip, scale, z-score, occlude: one image, one step after the other."""
    top, left, flip, row, column = draw
    height, width = image.shape[-2:]
    x = torch.nn.functional.pad(image.double()[None], [how.pad] * 4, mode="reflect")[0]
    x = x[:, top : top + height, left : left + width]
    x = x.flip(-1) if flip else x
    x = x / 255
    x = torch.stack([(channel - m) / s for channel, m, s in zip(x, how.mean, how.std, strict=True)])
    x[:, row : row + how.occlusion, column : column + how.occlusion] = 0
    return x


@pytest.mark.parametrize("shape", [(32, 32), (28, 40)])
def test_a_batch_is_its_images_one_by_one(shape):
    images = torch.randint(256, (40, 3, *shape), dtype=torch.uint8, generator=generator())
    draws = CIFAR.draw(40, *shape, generator=generator())
    expected = torch.stack([by_hand(i, d.tolist(), CIFAR) for i, d in zip(images, draws, strict=True)])
    x = CIFAR.train(images, draws)
    assert x.dtype == torch.float32
    torch.testing.assert_close(x.double(), expected, rtol=0, atol=1e-6)


def test_draws_cover_every_place_and_are_a_function_of_the_generator():
    draws = CIFAR.draw(20_000, 32, 32, generator=generator())
    assert torch.equal(draws, CIFAR.draw(20_000, 32, 32, generator=generator()))
    for column, n in enumerate([9, 9, 2, 25, 25]):
        counts = torch.bincount(draws[:, column], minlength=n).double()
        assert len(counts) == n
        mean = 20_000 / n
        # Chi-squared with n − 1 ≤ 24 degrees of freedom: above 70 by chance in 2e-6 of the runs.
        assert float(((counts - mean) ** 2 / mean).sum()) < 70


def test_processes_that_share_a_batch_see_the_images_of_one():
    images = torch.randint(256, (11, 3, 32, 32), dtype=torch.uint8, generator=generator())
    draws = CIFAR.draw(11, 32, 32, generator=generator())
    whole = CIFAR.train(images, draws)
    assert torch.equal(whole[1::2], CIFAR.train(images[1::2], draws[1::2]))


def test_identity_draws_change_nothing():
    images = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8, generator=generator())
    assert torch.equal(crop_flip(images, torch.tensor([[2, 2, 0]] * 5), 2), images)
    x = torch.rand(2, 1, 4, 4)
    assert torch.equal(occlude(x, torch.tensor([[0, 0], [1, 1]]), 0), x)


def test_mnist_is_scaled_to_the_unit_interval_and_not_augmented():
    images = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    x = PIXELS["mnist"].evaluate(images)
    torch.testing.assert_close(x.flatten(), torch.linspace(0, 1, 256), rtol=0, atol=1e-7)
    assert not PIXELS["mnist"].random
    assert torch.equal(PIXELS["mnist"].train(images, PIXELS["mnist"].draw(1, 16, 16)), x)


def test_the_paper_s_constants():
    for name, mean, std in (
        ("cifar10", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        ("cifar100", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    ):
        assert PIXELS[name] == Pixels(mean, std, pad=4, flip=True, occlusion=8)


def test_own_images_are_scored_by_their_own_statistics():
    images = torch.randint(30, 200, (50, 3, 24, 24), dtype=torch.uint8, generator=generator())
    how = pixels_for("own", images)
    x = how.evaluate(images)
    assert float(x.mean((0, 2, 3)).abs().max()) < 1e-5
    assert float((x.std((0, 2, 3)) - 1).abs().max()) < 1e-5
    assert (how.pad, how.flip, how.occlusion) == (3, False, 0)
    assert pixels_for("own", torch.zeros(4, 1, 8, 8, dtype=torch.uint8)).std == (1e-3,)


def test_a_folder_of_grey_images_that_is_called_cifar10_has_its_own_statistics():
    images = torch.randint(256, (9, 1, 32, 32), dtype=torch.uint8, generator=generator())
    assert len(pixels_for("cifar10", images).mean) == 1


def test_a_patch_larger_than_the_image_is_refused():
    with pytest.raises(ValueError, match="occlusion=8 must be smaller than the images, which are 6x6"):
        Pixels(occlusion=8).draw(1, 6, 6)
