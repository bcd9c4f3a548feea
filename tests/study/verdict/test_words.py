"""Findings in plain sentences."""

from dataclasses import replace

import numpy as np
import pytest

from spaceform.study.verdict import (
    CLASSIFICATION_GOALS,
    Evidence,
    Missing,
    Series,
    amounts,
    decide,
    goal_words,
    overall_words,
    race_words,
)
from spaceform.study.verdict.decide import Relation
from spaceform.study.verdict.overall import Cost, break_tie, recommend
from spaceform.study.verdict.race import race
from study.verdict.studies import ACCURACY, NLL, study

LARGE = {"seeds": 8, "items": 20_000, "seed_deviation": 0.05}


def said(evidence, costs=None):
    verdict = decide(evidence).goals[0]
    return goal_words.sentences(verdict, break_tie(verdict, costs))


def test_a_clear_winner():
    first, *rest = said(study({"cosine": 95.0, "vmf": 90.0}))
    assert first.startswith("Choose cosine (94.6 %): all other heads")
    assert "the next, vmf, by 5." in first
    assert rest == []


def test_a_tie_that_cost_breaks():
    evidence = study({"cosine": 90.0, "vmf": 90.0}, **LARGE)
    first = decide(evidence).goals[0].choice
    other = next(label for label in evidence.labels if label != first)
    found = said(evidence, {first: Cost(10.0), other: Cost(5.0)})
    assert found[0].startswith(f"Choose {other}: with a probability of 95 % at most 0.")
    assert found[0].endswith(
        f" points behind the best, and it trains and predicts in half the time that {first} needs."
    )


def seeds_of(**values):
    """Evidence of accuracy without items."""
    rows = {
        label: Series(tuple(range(len(some))), np.array(some, dtype=float)[:, None])
        for label, some in values.items()
    }
    return Evidence(tuple(values), (), (ACCURACY,), {"accuracy": rows})


def test_what_is_open_says_what_would_settle_it():
    found = said(seeds_of(cosine=[84, 90, 96], vmf=[84.4, 90.4, 96.4], arcface=[84.2, 90.2, 96.2]))
    assert found[0].startswith("Choose vmf (90.4 %): on average it loses the least against the best head (")
    assert found[1].startswith("The best may also be arcface (")
    assert found[2].startswith("With about ")
    assert found[2].endswith(" the choice would be on average less than 0.5 points behind the best.")
    assert found[3].startswith("Only the values of the runs are known")


def test_a_head_that_wins_more_often_but_loses_more_is_told_apart_from_the_choice():
    """Least expected regret and highest probability of being the best are two things."""
    verdict = decide(seeds_of(cosine=[84, 90, 96], vmf=[84.4, 90.4, 96.4])).goals[0]
    chosen, other = (replace(verdict.of(label), best=p) for label, p in (("vmf", 0.47), ("cosine", 0.53)))
    assert verdict.choice == "vmf"
    verdict = replace(verdict, standings=(other, chosen))
    found = goal_words.sentences(verdict, break_tie(verdict))
    assert found[0].startswith("Choose vmf (90.4 %): on average it loses the least against the best head (")
    assert found[0].endswith(" points), but it is the best with a probability of only 47 %.")
    assert found[1] == "cosine (53 %) is the best more often, but loses more where it is not."


def tied(seeds, items, heads=("cosine", "vmf", "arcface")):
    """Evidence of heads with the same values to the last bit."""
    one = study({"any": 90.0}, seeds=seeds, items=items).series["accuracy"]["any"]
    return Evidence(heads, (), (ACCURACY,), {"accuracy": dict.fromkeys(heads, one)})


def test_heads_that_tie_exactly_are_not_told_apart():
    """Their probabilities differ by the luck of the draws alone: no head is the best more often."""
    evidence = tied(seeds=3, items=400)
    verdict = decide(evidence)
    chosen, *others = evidence.labels
    assert verdict.goals[0].choice == chosen
    found = goal_words.sentences(verdict.goals[0], break_tie(verdict.goals[0]))
    whole = " ".join([*found, *overall_words.overall(recommend(evidence, verdict), verdict)])
    assert "more often" not in whole
    assert found[1].startswith("The best may also be ")
    assert all(other in found[1] for other in others)
    assert " or that they are equally good; little is lost with either." in found[2]


def test_heads_that_tie_exactly_on_many_items_are_practically_as_good():
    verdict = decide(tied(seeds=8, items=20_000)).goals[0]
    (found,) = goal_words.sentences(verdict, break_tie(verdict))
    others = [label for label in ("cosine", "vmf", "arcface") if label != verdict.choice]
    assert found.endswith(f" %); {' and '.join(others)} are practically as good.")


def test_the_choice_is_not_among_its_own_rivals():
    """The cheaper of two equivalent heads is chosen while a third is open."""
    verdict = decide(study({"cosine": 90.0, "vmf": 90.0, "arcface": 90.0}, **LARGE)).goals[0]
    first, cheap, third = (verdict.choice, *verdict.equivalent)
    shown = tuple(
        replace(one, relation=Relation.OPEN, best=0.3) if one.label == third else one
        for one in verdict.standings
    )
    verdict = replace(verdict, standings=shown)
    found = break_tie(
        verdict, {label: Cost(1.0 if label == cheap else 2.0) for label in (first, cheap, third)}
    )
    assert found.label == cheap
    said = goal_words.rivals(verdict, found)
    assert said == f"The best may also be {third} (30 %)."


def test_whose_time_is_saved_is_said():
    evidence = study({"cosine": 90.0, "vmf": 90.0}, **LARGE)
    verdict = decide(evidence)
    first = recommend(evidence, verdict).choice.label
    other = next(label for label in evidence.labels if label != first)
    costs = {first: Cost(10.0), other: Cost(6.9)}
    assert overall_words.overall(recommend(evidence, verdict, None, costs), verdict)[0] == (
        f"Choose {other}: over all goals practically as good as {first}, and it trains and predicts in "
        f"69 % of the time that {first} needs."
    )


def test_what_is_sure_comes_first_and_alone():
    """A reference that is worse and one that is not told apart stand in two sentences."""
    evidence = study({"cosine": 90.0, "vmf": 85.0}, references={"A": 90.0, "B": 80.0})
    goals = ("accuracy", "nll")
    both = {
        "accuracy": {k: v for k, v in evidence.series["accuracy"].items() if k != "A"},
        "nll": {k: v for k, v in evidence.series["accuracy"].items() if k != "B"},
    }
    lower = replace(ACCURACY, column="nll", title="other")
    verdict = decide(Evidence(evidence.labels, evidence.references, (ACCURACY, lower), both))
    assert [one.goal.column for one in verdict.goals] == list(goals)
    whole = Evidence(evidence.labels, evidence.references, (ACCURACY, lower), both)
    assert overall_words.against_references(verdict, recommend(whole, verdict)) == (
        "Compared with what people would use instead, cosine is better than B (accuracy). "
        "It is not known whether cosine is better or worse than A (other)."
    )


def test_the_choice_against_a_reference():
    heads = {"cosine": 90.0, "vmf": 85.0}
    behind = said(study(heads, references={"LogisticRegression": 95.0}))[-1]
    assert behind.startswith("No head is shown to be better than LogisticRegression here: cosine is ")
    assert behind.endswith(" points behind (this is sure).")
    ahead = said(study(heads, references={"LogisticRegression": 80.0}))[-1]
    assert ahead.startswith("cosine is ")
    assert " points better than LogisticRegression (95 %: " in ahead


def test_no_mistakes_are_named():
    rows = {"cosine": Series((), np.zeros((0, 1)), {0: Missing.NO_MISTAKES})}
    evidence = Evidence(("cosine",), (), (ACCURACY,), {"accuracy": rows})
    assert said(evidence) == [
        "There is nothing to choose by, since no run made a mistake, "
        "so there is nothing to tell right from wrong by."
    ]


def test_runs_without_a_figure_are_counted():
    evidence = study({"cosine": 95.0, "vmf": 90.0})
    one = evidence.series["accuracy"]["vmf"]
    rows = {**evidence.series["accuracy"], "vmf": Series(one.seeds, one.values, {7: Missing.NO_MISTAKES})}
    found = said(Evidence(evidence.labels, (), evidence.goals, {"accuracy": rows}))
    assert found[-1] == "1 of 4 runs of vmf made no mistake and has no value here."


def test_one_seed_is_told():
    found = said(study({"cosine": 90.0, "vmf": 90.2}, seeds=1))
    assert found[-1].startswith(
        "There is one seed of each head, so it is not known here how much seeds differ; 0.5 p"
    )


def test_labels_have_the_readers_names():
    verdict = decide(study({"cosine": 95.0, "vmf": 90.0})).goals[0]
    found = goal_words.chosen(verdict, break_tie(verdict), {"cosine": "Cosine", "vmf": "vMF"}.__getitem__)
    assert found.startswith("Choose Cosine")
    assert "vMF" in found


def test_the_overall_choice_states_its_weights():
    evidence = study({"cosine": 95.0, "vmf": 90.0})
    verdict = decide(evidence)
    assert overall_words.overall(recommend(evidence, verdict), verdict) == [
        "Choose cosine: the best over all goals with a probability of over 99 %.",
        "Weights: accuracy 100 %. Before goals are added up, each difference is divided by the smallest one "
        "that matters: 0.5 points for accuracy.",
    ]


def test_where_there_is_one_head_nothing_is_weighed():
    evidence = study({"cosine": 95.0})
    verdict = decide(evidence)
    found = recommend(evidence, verdict)
    assert overall_words.overall(found, verdict) == ["Choose cosine: it is the only head."]
    (said,) = goal_words.sentences(verdict.goals[0], found.goals["accuracy"])
    assert said == "cosine is the only head with a value (94.6 %): no choice."


def test_the_overall_choice_against_references():
    heads = {"cosine": 90.0, "vmf": 85.0}
    for reference, words_of_it in ((80.0, "better than"), (95.0, "worse than")):
        evidence = study(heads, references={"LogisticRegression": reference})
        verdict = decide(evidence)
        said = overall_words.against_references(verdict, recommend(evidence, verdict))
        assert said.startswith(
            f"Compared with what people would use instead, cosine is {words_of_it} LogisticReg"
        )
        assert " (accuracy" in said
    evidence = study(heads)
    verdict = decide(evidence)
    assert overall_words.against_references(verdict, recommend(evidence, verdict)) == ""


def test_a_goal_that_does_not_count_says_why():
    evidence = study({"cosine": 95.0, "vmf": 90.0})
    rows = {label: Series((), np.zeros((0, 1)), {0: Missing.NO_MISTAKES}) for label in evidence.labels}
    area = CLASSIFICATION_GOALS[[goal.column for goal in CLASSIFICATION_GOALS].index("auroc_confidence")]
    series = {**evidence.series, area.column: rows}
    both = Evidence(evidence.labels, (), (*evidence.goals, area), series)
    verdict = decide(both)
    assert overall_words.overall(recommend(both, verdict), verdict)[-1] == (
        "AUROC of the norm does not count, since no run made a mistake, "
        "so there is nothing to tell right from wrong by."
    )
    series[area.column] = {**rows, "vmf": Series((0, 1), np.full((2, 1), 0.8))}
    verdict = decide(both)
    assert overall_words.overall(recommend(both, verdict), verdict)[-1] == (
        "AUROC of the norm does not count, since every run of cosine made no mistake."
    )


def test_a_race_says_why_it_stops():
    found = race(study({"cosine": 95.0, "vmf": 90.0}))
    assert race_words.racing(found, (ACCURACY,))[0].startswith("No more seeds: they would hardly change")
    assert race_words.racing(found, (ACCURACY,))[1].endswith(
        " against the best head on these test items; a loss of 0.25 points or less is accepted."
    )


@pytest.mark.parametrize(
    ("goal", "x", "text"),
    [(ACCURACY, 0.234, "0.2 points"), (ACCURACY, 0.01, "less than 0.1 points"), (NLL, 0.0123, "0.012 NLL")],
)
def test_amounts(goal, x, text):
    assert amounts.amount(goal, x) == text


def test_a_race_that_goes_on_names_the_heads():
    found = race(seeds_of(cosine=[84, 90, 96], vmf=[84.4, 90.4, 96.4], far=[10, 11, 12]))
    first, second = race_words.racing(found, (ACCURACY,))
    assert first == "More seeds for cosine and vmf."
    assert " so far; on average it loses " in second
    assert second.endswith("; a loss of 0.25 points or less is accepted; still in question: cosine and vmf.")


def test_probabilities_are_never_certain():
    assert [amounts.probability(p) for p in (0.0, 0.5, 1.0)] == ["under 1 %", "50 %", "over 99 %"]
