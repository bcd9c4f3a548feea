"""The data of a recipe as a run uses them: loaded, split, made long-tailed or noisy."""

import hashlib
from dataclasses import asdict, dataclass, replace
from typing import Any, final

from jaxtyping import Int64
from pydantic import TypeAdapter, ValidationError
from torch import Tensor
from typing_extensions import TypedDict

from spaceform import data
from spaceform.nets import TimmOptions
from spaceform.nets.pretrained import sight_of
from spaceform.run.frozen import frozen_features
from spaceform.run.recipe import Recipe, RecipeError


class Fingerprint(TypedDict):
    """What a run keeps of its data: the digest `content`, and the digest `split` of labels and split."""

    content: str
    split: str


@final
@dataclass(frozen=True, eq=False)
class Material:
    """The data of a recipe as a run uses them."""

    dataset: data.Dataset
    split: data.Split
    targets: Int64[Tensor, " items"]
    """Labels renumbered over the training classes; −1 for classes without a training item."""
    classes: tuple[str, ...]
    """Names of the training classes, in the order of the head's outputs."""
    how: data.loader.Preprocessing
    content: str
    """The digest of the data before noise: `Dataset.content`."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, as the net takes it."""
        if not isinstance(self.dataset.inputs, tuple | data.Texts):
            return tuple(self.dataset.inputs.shape[1:])
        assert isinstance(self.how, data.Photos)
        return 3, self.how.size, self.how.size

    @property
    def fingerprint(self) -> Fingerprint:
        """What a run compares to see whether its data are still the same."""
        digest = hashlib.sha256(repr((self.input_shape, self.classes)).encode())
        for part in (self.split.train, self.split.val, self.split.test, self.targets):
            digest.update(part.numpy().tobytes())
        return {"content": self.content, "split": digest.hexdigest()}


def load_data(recipe: Recipe) -> data.Dataset:
    """The recipe's data, as pixels or features if it says so: the slow part of `material`, worth keeping."""
    return _seen(recipe, load_named(recipe))


def load_named(recipe: Recipe) -> data.Dataset:
    """The data that the recipe names, as they are."""
    name, label, text = load_key(recipe)
    return data.load(name, label=label, text=text)


def load_key(recipe: Recipe) -> tuple[str, str | None, str | None]:
    """A key that is equal for recipes for which `load_named` loads the same."""
    return recipe.data.name, recipe.data.label, recipe.data.text


def _seen(recipe: Recipe, dataset: data.Dataset) -> data.Dataset:
    """Photos and texts as the recipe sees them: as they are, shrunk, or as features of a pretrained net."""
    wanted = recipe.data
    if wanted.features is not None:
        return frozen_features(dataset, wanted.features, wanted.weights)
    return dataset if wanted.thumbnail is None else data.thumbnails(dataset, wanted.thumbnail)


def material(recipe: Recipe, dataset: data.Dataset | None = None) -> Material:
    """Load and split the recipe's data (or use the given data set), and make them long-tailed or noisy."""
    wanted = recipe.data
    dataset = load_data(recipe) if dataset is None else _seen(recipe, dataset)
    content = dataset.content
    if wanted.task is not None:
        dataset = dataset.with_task(wanted.task)
    split = data.split(dataset, wanted.split_seed)
    if wanted.imbalance > 1:
        split = data.imbalance(dataset, split, wanted.imbalance, wanted.split_seed)
    how = _shown(recipe, dataset, data.preprocessing(dataset, split))
    if wanted.label_noise > 0:
        dataset = data.label_noise(dataset, split, wanted.label_noise, wanted.split_seed)
    targets, classes = data.targets(dataset.labels, split.train)
    names = tuple(dataset.classes[c] for c in classes.tolist())
    return Material(dataset, split, targets, names, how, content)


def _shown(
    recipe: Recipe, dataset: data.Dataset, how: data.loader.Preprocessing
) -> data.loader.Preprocessing:
    """A user's photos as a pretrained net takes them (size and scale), if it is trained; else as they are."""
    net = recipe.net
    pretrained = isinstance(net, TimmOptions) and (net.pretrained or net.weights is not None)
    if not isinstance(how, data.Photos) or not pretrained or dataset.name in data.PHOTOS:
        return how
    sight = sight_of(net.name)
    return replace(
        how,
        resize=sight.resize,
        size=sight.size,
        resampling=sight.resampling,
        mean=sight.mean,
        std=sight.std,
    )


def write_preprocessing(how: data.loader.Preprocessing) -> dict[str, Any] | None:
    """The preprocessing as JSON, to be written beside the weights."""
    return None if how is None else {"kind": type(how).__name__, **asdict(how)}


def read_preprocessing(value: dict[str, Any] | None) -> data.loader.Preprocessing:
    """The inverse of `write_preprocessing`."""
    if value is None:
        return None
    kinds: dict[Any, type[data.Pixels | data.Photos]] = {"Pixels": data.Pixels, "Photos": data.Photos}
    fields = {name: part for name, part in value.items() if name != "kind"}
    try:
        return TypeAdapter(kinds[value.get("kind")]).validate_python(fields)
    except (KeyError, ValidationError):
        raise RecipeError(f"the preprocessing of the run cannot be read, got {value}") from None
