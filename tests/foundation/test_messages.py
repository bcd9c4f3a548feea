"""Sentences for people."""

import pytest

from spaceform.foundation.messages import sentence


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (
            "onnx",
            "this command needs the package 'onnx'; install it with: pip install 'spaceform[export]' "
            "(in a copy of the repository: pip install -c constraints.txt '.[export]')",
        ),
        ("faiss", "this command needs the package 'faiss'; install it with: pip install faiss"),
    ],
)
def test_a_missing_package_is_named_with_what_to_install(module, said):
    assert sentence(ModuleNotFoundError(f"No module named {module!r}", name=module)) == said
