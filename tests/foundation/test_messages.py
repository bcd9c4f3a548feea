"""Sentences for people."""

import pytest

from spaceform.foundation.messages import at_row, listed, sentence


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


def test_rows_are_counted_from_0_and_it_is_said():
    assert at_row(0) == "row 0 (counted from 0)"
    assert at_row(12_345) == "row 12,345 (counted from 0)"


def test_names_are_listed_by_and_or_by_or():
    assert [listed(names) for names in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
    assert listed(["a", "b", "c"], "or") == "a, b or c"
