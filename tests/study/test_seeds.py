"""Rules of seeds and of minutes, without a run."""

import pytest

from spaceform.study.seeds import Seeds


def test_a_number_is_a_number_and_auto_begins_with_three():
    five, auto, asked = (Seeds.of(n, auto=n is None, minutes=None) for n in (5, None, "auto"))
    assert (five.first, five.racing) == (5, False)
    assert (auto.first, auto.racing) == (asked.first, asked.racing) == (3, True)
    assert not Seeds.of(None, auto=False, minutes=None).racing


def test_minutes_bound_the_search_the_references_and_the_first_seeds():
    free, short, long = (Seeds.of(None, auto=True, minutes=minutes) for minutes in (None, 1.0, 30.0))
    assert (free.searching(6, 2), free.reference_trials(16)) == (None, 16)
    assert short.first == 1
    assert short.searching(6, 2) == pytest.approx(0.5 * 60 * 2 / 6)
    assert short.searching(6, 1) == pytest.approx(0.5 * 60 / 6)
    assert short.reference_trials(16) == 4
    assert Seeds.of(None, auto=True, minutes=0.1).reference_trials(16) == 2
    assert long.reference_trials(16) == 16


@pytest.mark.parametrize(
    ("seeds", "minutes", "said"), [(0, None, "--seeds must be at least 1"), (1, 0.0, "--minutes")]
)
def test_what_cannot_be_is_refused(seeds, minutes, said):
    with pytest.raises(ValueError, match=said):
        Seeds.of(seeds, auto=True, minutes=minutes)
