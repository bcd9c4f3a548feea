"""The data sets known by name: where they lie, where they come from, how they are read."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

from spaceform.data.dataset import Dataset, Task
from spaceform.data.download import Remote
from spaceform.data.formats.cars import load_cars
from spaceform.data.formats.cifar import TRAIN_10, load_cifar10, load_cifar100
from spaceform.data.formats.cub import load_cub
from spaceform.data.formats.digits import load_digits
from spaceform.data.formats.idx import FILES, load_idx
from spaceform.data.formats.sop import load_sop


@final
@dataclass(frozen=True)
class Entry:
    """A data set of the catalog.

    ``read`` makes a `Dataset` of the same name. ``places`` are the paths below a data folder where the data
    are looked for; downloads go to the first. Data that come with a package have none. Without ``remotes``
    people put the data there by hand. A place counts if it has one of the files ``signs``; the data are whole
    if it also has one of the folders ``photos``, if any are named. ``checksums`` (md5) are those of single
    files inside a place.
    """

    name: str
    title: str
    """The name in the report."""
    summary: str
    task: Task
    items: int
    classes: int
    read: Callable[[Path], Dataset]
    places: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()
    photos: tuple[str, ...] = ()
    remotes: tuple[Remote, ...] = ()
    unpacked_into: str | None = None
    """The folder below the data folder into which archives are unpacked; None if files are read as they come.
    """
    checksums: tuple[tuple[str, str], ...] = ()
    by_hand: str = ""
    """Another way to get the data, for when the addresses fail."""


def _idx_remotes(checksums: tuple[str, str, str, str], *mirrors: str) -> tuple[Remote, ...]:
    return tuple(
        Remote(f"{stem}.gz", f"md5:{md5}", tuple(f"{mirror}{stem}.gz" for mirror in mirrors))
        for stem, md5 in zip(FILES, checksums, strict=True)
    )


_MNIST = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
_FASHION = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
_GARMENTS = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_IDX_SIGNS = tuple(name for stem in FILES for name in (stem, f"{stem}.gz"))

CATALOG: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            name="digits",
            title="digits",
            summary="handwritten digits, 8x8, from scikit-learn",
            task="classification",
            items=1_797,
            classes=10,
            read=lambda _: load_digits(),
        ),
        Entry(
            name="mnist",
            title="MNIST",
            summary="handwritten digits, 28x28",
            task="classification",
            items=70_000,
            classes=10,
            read=partial(load_idx, name="mnist", classes=tuple("0123456789")),
            places=("mnist", "MNIST/raw", "mnist/raw", "MNIST"),
            signs=_IDX_SIGNS,
            remotes=_idx_remotes(
                _MNIST,
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            checksums=tuple((f"{stem}.gz", md5) for stem, md5 in zip(FILES, _MNIST, strict=True)),
        ),
        Entry(
            name="fashion-mnist",
            title="FashionMNIST",
            summary="garments, 28x28",
            task="classification",
            items=70_000,
            classes=10,
            read=partial(load_idx, name="fashion-mnist", classes=_GARMENTS),
            places=("fashion-mnist", "FashionMNIST/raw", "fashion_mnist", "FashionMNIST"),
            signs=_IDX_SIGNS,
            remotes=_idx_remotes(
                _FASHION,
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            ),
            checksums=tuple((f"{stem}.gz", md5) for stem, md5 in zip(FILES, _FASHION, strict=True)),
        ),
        Entry(
            name="cifar10",
            title="CIFAR10",
            summary="small photos of 10 things, 32x32",
            task="classification",
            items=60_000,
            classes=10,
            read=load_cifar10,
            places=(
                "cifar-10-batches-py",
                "cifar10/cifar-10-batches-py",
                "cifar10",
                "CIFAR10/cifar-10-batches-py",
            ),
            signs=TRAIN_10,
            remotes=(
                Remote(
                    "cifar-10-python.tar.gz",
                    "md5:c58f30108f718f92721af3b95e74349a",
                    ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
                ),
            ),
            unpacked_into=".",
            checksums=(
                ("data_batch_1", "c99cafc152244af753f735de768cd75f"),
                ("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
                ("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
                ("data_batch_4", "634d18415352ddfa80567beed471001a"),
                ("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
                ("test_batch", "40351d587109b95175f43aff81a1287e"),
                ("batches.meta", "5ff9c542aee3614f3951f8cda6e48888"),
            ),
        ),
        Entry(
            name="cifar100",
            title="CIFAR100",
            summary="small photos of 100 things, 32x32",
            task="classification",
            items=60_000,
            classes=100,
            read=load_cifar100,
            places=("cifar-100-python", "cifar100/cifar-100-python", "cifar100", "CIFAR100/cifar-100-python"),
            signs=("train",),
            remotes=(
                Remote(
                    "cifar-100-python.tar.gz",
                    "md5:eb9058c3a382ffc7106e4002c42a8d85",
                    ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
                ),
            ),
            unpacked_into=".",
            checksums=(
                ("train", "16019d7e3df5f24257cddd939b257f8d"),
                ("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),
                ("meta", "7973b15100ade9c7d40fb424638fde48"),
            ),
        ),
        Entry(
            name="cars196",
            title="Cars196",
            summary="photos of 196 models of cars",
            task="retrieval",
            items=16_185,
            classes=196,
            read=load_cars,
            places=("cars196", "CARS196", "cars196/CARS196", "stanford_cars", "Cars196"),
            signs=("cars_annos.mat", "devkit"),
            photos=("car_ims", "cars_train"),
            remotes=(
                Remote(
                    "cars_annos.mat",
                    "md5:b407c6086d669747186bd1d764ff9dbc",
                    ("http://ai.stanford.edu/~jkrause/car196/cars_annos.mat",),
                ),
                Remote(
                    "car_ims.tgz",
                    "md5:d5c8f0aa497503f355e17dc7886c3f14",
                    ("http://ai.stanford.edu/~jkrause/car196/car_ims.tgz",),
                ),
            ),
            unpacked_into="cars196",
            checksums=(("cars_annos.mat", "b407c6086d669747186bd1d764ff9dbc"),),
            by_hand="or unpack CARS196.zip of http://ftp.cs.stanford.edu/cs/cvgl/ there, which holds both",
        ),
        Entry(
            name="cub200",
            title="CUB200-2011",
            summary="photos of 200 species of birds",
            task="retrieval",
            items=11_788,
            classes=200,
            read=load_cub,
            places=("CUB_200_2011", "cub200/CUB_200_2011", "cub200", "CUB_200_2011_mini"),
            signs=("images.txt",),
            photos=("images",),
            remotes=(
                Remote(
                    "CUB_200_2011.tgz",
                    "md5:97eceeb196236b17998738112f37df78",
                    (
                        "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
                        "https://s3.amazonaws.com/fast-ai-imageclas/CUB_200_2011.tgz",
                    ),
                ),
            ),
            unpacked_into=".",
        ),
        Entry(
            name="sop",
            title="SOP",
            summary="photos of 22,634 products, Stanford Online Products",
            task="retrieval",
            items=120_053,
            classes=22_634,
            read=load_sop,
            places=("Stanford_Online_Products", "sop/Stanford_Online_Products", "sop"),
            signs=("Ebay_train.txt",),
            remotes=(
                Remote(
                    "Stanford_Online_Products.zip",
                    "md5:7f73d41a2f44250d4779881525aea32e",
                    ("http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",),
                ),
            ),
            unpacked_into=".",
        ),
    )
}
