"""Heads that only this file knows are planned and searched like our own."""

from typing import Any, ClassVar, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spaceform
from spaceform.geometry import Euclidean, Sphere
from spaceform.heads import HEADS, Choice, DeterministicHead, Head, LogUniform, ReparametrizedHead, Start
from spaceform.run.recipe import QUICK, RecipeError, flatten, replace
from spaceform.study.optuna_space import ranges_of
from spaceform.study.plan import Conditions, has_temperature, jobs, named_heads, recipes, start_of


@final
class CentreHead(DeterministicHead):
    """p(y | z) ∝ exp(−β ‖z − c_y‖²); declares no start of its own."""

    name, title = "centre", "Centre"
    geometry = Euclidean()
    searched: ClassVar[dict[str, Any]] = {"beta": LogUniform(0.1, 10.0), "power": Choice((1, 2))}

    def __init__(
        self, dim: int, num_classes: int, *, beta: float = 1.0, learn_beta: bool = True, power: int = 2
    ) -> None:
        super().__init__(dim, num_classes)
        self.power = power
        self.centres = nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_classes, dim)))
        self._add_temperature(beta, learn_beta)

    def _logits(self, z: Tensor) -> Tensor:
        return -self.beta * torch.cdist(z, self.centres.to(z.dtype)).square()


@final
class NoisyHead(ReparametrizedHead):
    """Cosines of a direction with Gaussian noise."""

    name, title = "noisy", "Noisy"
    geometry = Sphere()

    def __init__(self, dim: int, num_classes: int, *, samples: int = 4, beta: float = 16.0) -> None:
        super().__init__(dim, num_classes, samples=samples)
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_classes, dim)))
        self._add_temperature(beta, learn_beta=True)

    def _embed(self, z: Tensor, noise: Tensor) -> Tensor:
        return nn.functional.normalize(z + 0.1 * noise, dim=-1)

    def _logits(self, embedding: Tensor) -> Tensor:
        return self.beta * embedding @ nn.functional.normalize(self.weight.to(embedding.dtype), dim=-1).T


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for head in (CentreHead, NoisyHead):
        monkeypatch.setitem(HEADS, head.name, head)


def test_a_head_starts_as_its_nearest_relative(monkeypatch):
    assert start_of("centre", "features") == HEADS["standard"].defaults["features"]
    assert start_of("noisy", "pixels") == HEADS["vmf"].defaults["pixels"]
    monkeypatch.setattr(CentreHead, "geometry", Sphere())
    assert start_of("centre", "pixels") == HEADS["cosine"].defaults["pixels"]
    curved = spaceform.PoincareBall(0.1)
    monkeypatch.setattr(CentreHead, "geometry", curved)
    assert start_of("centre", "features") == HEADS["hyperbolic"].defaults["features"]
    own = Start(lr=0.5, weight_decay=0.0, options={"power": 1})
    monkeypatch.setattr(CentreHead, "defaults", {"features": own})
    assert start_of("centre", "features") is own


def test_every_declared_start_is_valid_for_its_head():
    for head in HEADS.values():
        for start in head.defaults.values():
            head(2, 2, **start.options)


def test_plans_on_every_kind_of_data_meet_equal_conditions(tmp_path):
    found = recipes("digits", named_heads("all"), Conditions())
    shipped, ours = QUICK["digits/vmf"], found["noisy"]
    assert (ours.net, ours.budget, ours.schedule) == (shipped.net, shipped.budget, shipped.schedule)
    assert ours.head.options == {"beta": 16.0}  # the relative's, as far as this head takes them
    assert ours.optim.lr == HEADS["vmf"].defaults["features"].lr
    assert len(jobs(found, range(2))) == 2 * len(HEADS)
    features = tmp_path / "features.npz"
    np.savez(features, X=np.random.default_rng(0).normal(size=(60, 8)), y=np.arange(60) % 3)
    found = recipes(str(features), ["centre", "noisy"], Conditions(net="projection"))
    assert found["centre"].optim.lr == HEADS["standard"].defaults["features"].lr
    assert found["centre"].head.options == {}
    with pytest.raises(RecipeError, match="the paper has no recipe for 'digits/centre'"):
        recipes("digits", ["centre"], Conditions("paper"))
    assert has_temperature("centre")
    assert not has_temperature("standard")
    labels = [job.label for job in jobs(recipes("digits", ["centre"], Conditions()), [0], ["16"])]
    assert labels == ["centre β=16"]


def test_the_space_is_what_the_head_declares():
    recipe = recipes("digits", ["centre"], Conditions())["centre"]
    found = ranges_of(recipe, "tpe")
    assert (found["head.beta"].low, found["head.beta"].high, found["head.beta"].log) == (0.1, 10.0, True)
    assert found["head.power"].choices == (2, 1) or found["head.power"].choices == (1, 2)
    assert "optim.temperature_lr" in found
    fixed = replace(recipe, {"head.learn_beta": False})
    assert "optim.temperature_lr" not in ranges_of(fixed, "tpe")
    assert ranges_of(recipe, "grid")["head.beta"].choices == pytest.approx((0.1, 1.0, 10.0))
    wide = replace(recipe, {"head.beta": 100.0})
    assert ranges_of(wide, "tpe")["head.beta"].high == 100.0  # where it starts is always inside
    assert set(ranges_of(recipe, "tpe")) <= set(flatten(recipe)) | {"head.beta", "head.power"}


def test_heads_are_named_in_many_ways():
    assert named_heads("paper") == ["standard", "hyperbolic", "cosine", "arcface", "vmf"]
    assert named_heads("vmf, cosine,vmf") == named_heads(["vmf", "cosine"]) == ["vmf", "cosine"]
    assert named_heads("all") == list(HEADS)
    ours = ["standard", "hyperbolic", "cosine", "arcface", "vmf", "power_spherical"]
    assert named_heads("default") == [*ours, "centre", "noisy"]  # somebody else's head is compared
    assert all(issubclass(HEADS[name], Head) for name in named_heads("all"))
    with pytest.raises(RecipeError, match="unknown head 'vfm'"):
        named_heads("vfm")
