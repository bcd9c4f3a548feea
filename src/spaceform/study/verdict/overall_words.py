"""A recommendation over all goals in sentences, or why there is none."""

from collections.abc import Sequence

from spaceform.foundation.messages import counted, listed
from spaceform.study.verdict.amounts import Name, amount, probability, region, value
from spaceform.study.verdict.decide import FEWEST_ITEMS, MOST_COUNTED, Untold, Verdict
from spaceform.study.verdict.goal_words import LIKELY, gain, little_lost, rivals, why_left_out
from spaceform.study.verdict.goals import Goal
from spaceform.study.verdict.guessing import Guessing
from spaceform.study.verdict.overall import Recommendation, Why

_FEW_ITEMS = 50  # test items: with fewer, one of them is more than two points


def overall(found: Recommendation, verdict: Verdict, name: Name = str) -> list[str]:
    """The recommendation and its weights."""
    one = found.verdict.of(found.choice.label)
    goals = {each.goal.column: each.goal for each in verdict.goals}
    first = f"Choose {name(found.choice.label)}"
    if found.choice.why in (Why.CHEAPER, Why.SIMPLER):
        as_good = f"over all goals practically as good as {name(found.choice.first)}"
        first += f": {as_good}, and {gain(found.choice, name)}."
    elif found.choice.why is Why.LITTLE_LOST:
        first += f" for now: {little_lost(found.verdict, found.choice, name)}."
    elif found.choice.why is Why.ONLY:
        first += ": it is the only head."
    elif one.best < LIKELY:
        first += (
            " for now: on average it loses the least against the best head, but it is the best over all "
            f"goals with a probability of only {probability(one.best)}."
        )
    else:
        first += f": the best over all goals with a probability of {probability(one.best)}."
    weights = ", ".join(
        f"{goals[column].title} {share:.0%}".replace("%", " %") for column, share in found.weights.items()
    )
    also = rivals(found.verdict, found.choice, name)
    said = [first, *([also] if also else [])]
    said += [one for one in (_beside_guessing(verdict), _few(verdict)) if one]
    regions = ", ".join(f"{region(goals[column])} for {goals[column].title}" for column in found.weights)
    if found.choice.why is Why.ONLY:
        return [*said, *(why_left_out(verdict.of(column), name) for column in found.left_out)]
    capped = [
        goals[column].title
        for column, share in found.weights.items()
        if verdict.of(column).counted(share) > goals[column].region
    ]
    said.append(
        f"Weights: {weights}. Before goals are added up, each difference is divided by the smallest one that "
        f"matters: {regions}."
        + (f" No more than {MOST_COUNTED} of these count in {listed(capped)}." if capped else "")
    )
    said += [why_left_out(verdict.of(column), name) for column in found.left_out]
    return said


def no_choice(verdict: Verdict, name: Name = str) -> list[str]:
    """Why no head is recommended, if the test items are the reason; empty otherwise."""
    why = {one.untold for one in verdict.goals}
    if Untold.FEW_ITEMS in why:
        return [
            f"No head can be recommended: the test part has only {counted(verdict.items, 'item')}, and with "
            f"fewer than {FEWEST_ITEMS} no difference between heads can be told from chance.",
            "Add data, or mark more of it as 'test': some hundred items tell differences of a few points.",
        ]
    if Untold.NOTHING_LEARNT in why and verdict.guessing is not None:
        return _nothing_learnt(verdict, verdict.guessing, name)
    return []


def _nothing_learnt(verdict: Verdict, guessing: Guessing, name: Name) -> list[str]:
    found = {one.goal.column: one for one in verdict.goals}
    said = (
        "No head can be recommended: none is shown to have learnt anything here. Guessing the most frequent "
        f"class is right for {100 * guessing.accuracy:.1f} % of {counted(verdict.items, 'test item')}"
    )
    if "accuracy" in found:
        means = [one.mean for one in found["accuracy"].standings]
        low, high = (value(found["accuracy"].goal, x) for x in (min(means), max(means)))
        span = low if low == high else f"{low} to {high}"
        said += f"; the {'head is' if len(means) == 1 else 'heads are'} right for {span}"
    beside = [label for label in verdict.references if label in guessing.learnt]
    if beside:
        return [
            f"{said}.",
            f"{listed([name(label) for label in beside])} did better than guessing: use that.",
        ]
    others = [name(label) for label in verdict.references if label in guessing.judged]
    either = f" {listed(others)} learnt nothing either." if others else ""
    return [
        f"{said}.{either}",
        "Look at the data first: do the features say anything about the labels, and are the labels in the "
        "right rows? If so, more data may help.",
    ]


def _beside_guessing(verdict: Verdict) -> str:
    """A sentence if probabilities are better than guessing but no head is right more often; or empty."""
    guessing = verdict.guessing
    if guessing is None or set(guessing.right) & set(verdict.labels):
        return ""
    return (
        "No head is shown to be right more often than guessing the most frequent class "
        f"({100 * guessing.accuracy:.1f} %); only the probabilities are better."
    )


def _few(verdict: Verdict) -> str:
    """How coarse values are, if the test part is small; otherwise empty."""
    if not 0 < verdict.items < _FEW_ITEMS:
        return ""
    share = f"{100 / verdict.items:.1f} points"
    return f"The test part has only {verdict.items} items: one of them is {share} of accuracy."


def against_references(verdict: Verdict, found: Recommendation, name: Name = str) -> str:
    """The recommended head against the best reference of each goal; empty where there is no reference."""
    head = found.choice.label
    beside = [
        (one.goal, name(best.label), one.pairs[head, best.label])
        for one in verdict.goals
        if one.goal.column in found.weights and (best := one.reference) is not None
    ]
    ahead = [(goal, label) for goal, label, lead in beside if lead.sure and lead.mean > 0]
    behind = [(goal, label, lead) for goal, label, lead in beside if lead.sure and lead.mean < 0]
    level = [(goal, label) for goal, label, lead in beside if not lead.sure]
    sure = []
    if behind:
        parts = [f"{label} ({goal.title}, by {amount(goal, -lead.mean)})" for goal, label, lead in behind]
        sure.append(f"worse than {listed(parts)}")
    if ahead:
        sure.append(f"better than {_beside(ahead)}")
    first = f"Compared with what people would use instead, {name(head)} is {', and '.join(sure)}."
    said = [first] if sure else []
    if level:
        said.append(f"It is not known whether {name(head)} is better or worse than {_beside(level)}.")
    return " ".join(said)


def _beside(found: Sequence[tuple[Goal, str]]) -> str:
    """`LogisticRegression (accuracy, NLL) and the features as they are (mAP@R)`."""
    by_label: dict[str, list[str]] = {}
    for goal, label in found:
        by_label.setdefault(label, []).append(goal.title)
    return listed([f"{label} ({', '.join(titles)})" for label, titles in by_label.items()])
