"""Data sets, their splits, and batches of them."""

from spaceform.data.augment import PIXELS, Pixels
from spaceform.data.catalog import check, get, list_datasets, load
from spaceform.data.dataset import DataError, Dataset, Split
from spaceform.data.entries import CATALOG
from spaceform.data.loader import Batch, evaluation_batches, preprocessing, train_batches, training_pass
from spaceform.data.photos import PHOTOS, Photos
from spaceform.data.sampler import EpisodicSampler
from spaceform.data.splits import imbalance, label_noise, split, targets
from spaceform.data.table_columns import TableFeature
from spaceform.data.text_items import Texts
from spaceform.data.thumbnails import shrunk, thumbnails

__all__ = [
    "CATALOG",
    "PHOTOS",
    "PIXELS",
    "Batch",
    "DataError",
    "Dataset",
    "EpisodicSampler",
    "Photos",
    "Pixels",
    "Split",
    "TableFeature",
    "Texts",
    "check",
    "evaluation_batches",
    "get",
    "imbalance",
    "label_noise",
    "list_datasets",
    "load",
    "preprocessing",
    "shrunk",
    "split",
    "targets",
    "thumbnails",
    "train_batches",
    "training_pass",
]
