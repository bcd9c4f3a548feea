"""What is tried for a head on features."""

import pytest

from spaceform.engine import space
from spaceform.heads import HEADS


@pytest.mark.parametrize("head", HEADS)
def test_a_candidate_has_what_is_searched_and_starts_with_the_rest(head):
    """The factor of `hyperbolic` is 1 on features, though its own default is that of eq. 2."""
    start = HEADS[head].defaults["features"].options
    fixed = {name: value for name, value in start.items() if name not in HEADS[head].searched}
    for candidate in space(head, 384, 10, 2000, size=16):
        assert fixed.items() <= candidate.options.items()
        assert set(HEADS[head].searched) <= set(candidate.options)


def test_values_that_are_asked_for_replace_the_start():
    for candidate in space("hyperbolic", 384, 10, 2000, size=4, searched={"scale": (2.0,)}):
        assert candidate.options["scale"] == 2.0
