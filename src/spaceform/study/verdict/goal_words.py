"""The findings on one goal in sentences. All prose of a verdict is here and in the other `_words` files."""

from collections.abc import Sequence

from spaceform.foundation.messages import capital, listed
from spaceform.study.verdict.amounts import Name, amount, at_most, faster, probability, span, value
from spaceform.study.verdict.decide import (
    FEWEST_ITEMS,
    Gap,
    GoalVerdict,
    Relation,
    Standing,
    Untold,
)
from spaceform.study.verdict.evidence import Missing
from spaceform.study.verdict.overall import GoalChoice, Why
from spaceform.study.verdict.posterior import VarianceSource

_WORTH_NAMING = 0.05
_MORE_OFTEN = 0.03
"""A head is the best more often than another only beyond this: where two heads tie, draws differ by 1 %."""
LIKELY = 0.5
SHORTER = 0.8  # of the time: more is no gain


def sentences(verdict: GoalVerdict, choice: GoalChoice | None, name: Name = str) -> list[str]:
    """All sentences on one goal: first what to choose, then how sure that is, references and limits.

    `name` turns a label into what the reader calls it.
    """
    said = [chosen(verdict, choice, name)]
    said += [one for one in (rivals(verdict, choice, name), settling(verdict, name)) if one]
    said += [beside_reference(verdict, name)] if verdict.references and verdict.choice else []
    return said + limits(verdict, name)


def chosen(verdict: GoalVerdict, choice: GoalChoice | None, name: Name = str) -> str:
    """What to choose for a goal, in one sentence."""
    goal = verdict.goal
    if verdict.chance is not None:
        return f"There is nothing to choose by: {_by_chance(verdict)}."
    if verdict.untold is not None:
        return f"There is nothing to choose by, since {_WHY_UNTOLD[verdict.untold]}."
    if choice is None:
        gaps = [gap for gap in verdict.gaps if gap.runs == gap.of]
        reason = gaps[0].reason if gaps else Missing.NOT_MEASURED
        return f"There is nothing to choose by, since {_WHY_NONE[reason]}."
    one = verdict.of(choice.label)
    head = f"Choose {name(one.label)}"
    if choice.why is Why.ONLY:
        return f"{name(one.label)} is the only head with a value ({value(goal, one.mean)}): no choice."
    if choice.why in (Why.CHEAPER, Why.SIMPLER):
        near = f"with a probability of 95 % {at_most(goal, one.within)} behind the best"
        if one.within > goal.region:
            near = f"practically as good as {name(choice.first)}"
        return f"{head}: {near}, and {gain(choice, name)}."
    if choice.why is Why.LITTLE_LOST:
        return f"{head} ({value(goal, one.mean)}): {little_lost(verdict, choice, name)}."
    if choice.why is Why.FIRST:
        others = listed([name(label) for label in verdict.equivalent])
        verb = "is" if len(verdict.equivalent) == 1 else "are"
        return f"{head} ({value(goal, one.mean)}); {others} {verb} practically as good."
    if choice.why is Why.CLEAR:
        return f"{head} ({value(goal, one.mean)}): {_next(verdict, name)}."
    if one.best < LIKELY:
        return (
            f"{head} ({value(goal, one.mean)}): on average it loses the least against the best head "
            f"({amount(goal, one.regret)}), but it is the best with a probability of only "
            f"{probability(one.best)}."
        )
    return (
        f"{head} ({value(goal, one.mean)}): it is the best with a probability of {probability(one.best)}, "
        f"and on average it loses {amount(goal, one.regret)} against the best head."
    )


def gain(choice: GoalChoice, name: Name = str) -> str:
    """What is gained by a head that is practically as good as another: time, or simplicity."""
    first = name(choice.first)
    if choice.why is Why.CHEAPER and choice.time is not None:
        return faster(choice.time, first)
    return f"it is simpler than {first} at the same cost"


def little_lost(verdict: GoalVerdict, choice: GoalChoice, name: Name = str) -> str:
    """Why a head is chosen that is open and cheaper or simpler."""
    gained = "it is simpler at the same cost"
    if choice.time is not None and choice.time < SHORTER:
        gained = faster(choice.time, name(choice.first))
    best = probability(verdict.of(choice.label).best)
    return (
        f"it is the best with a probability of {best}, it is expected to be hardly worse than "
        f"{name(choice.first)}, and {gained}"
    )


def rivals(verdict: GoalVerdict, choice: GoalChoice | None, name: Name = str) -> str:
    """Which heads may be better than the choice, and which are worse; empty without a choice.

    The choice is the head that loses the least on average. Another head may be the best more often, but lose
    more where it is not; then the sentence says so.
    """
    if choice is None:
        return ""
    said, own = [], verdict.of(choice.label)
    others = [one for one in verdict.standings if one.label != own.label]
    in_doubt = (Relation.OPEN, Relation.CHOSEN) if own.relation is Relation.OPEN else (Relation.OPEN,)
    may = [one for one in others if one.relation in in_doubt and one.best >= _WORTH_NAMING]
    may.sort(key=lambda one: -one.best)
    often = [one for one in may if one.best > own.best + _MORE_OFTEN and one.regret > own.regret]
    if often:
        loses = "is the best more often, but loses more where it is not"
        lose = "are the best more often, but lose more where they are not"
        said.append(f"{_likely(often, name)} {loses if len(often) == 1 else lose}.")
    if rest := [one for one in may if one not in often]:
        said.append(f"The best may also be {_likely(rest, name, 'or')}.")
    same = [one for one in others if one.relation is Relation.EQUIVALENT]
    if same and may:
        said.append(f"{listed([name(one.label) for one in same])} {_are(same)} practically as good.")
    behind = [one for one in verdict.standings if one.relation is Relation.WORSE]
    if behind and (may or same):
        said.append(f"{listed([name(one.label) for one in behind])} {_are(behind)} worse.")
    return " ".join(said)


def settling(verdict: GoalVerdict, name: Name = str) -> str:
    """What would settle a goal; empty where nothing is open."""
    found, goal = verdict.settlement, verdict.goal
    if found is None or verdict.choice is None:
        return ""
    if not found.settled:
        region = amount(goal, goal.region)
        if found.seeds is not None:
            return (
                f"With about {found.seeds} seeds of each head the choice would be on average less than "
                f"{region} behind the best."
            )
        if found.items is not None:
            return (
                f"More seeds alone do not settle it (less than {region} behind the best, on average); "
                f"about {_round(found.items)} test items would (there are {verdict.items:,})."
            )
        return f"More seeds do not settle it (less than {region} behind the best, on average)."
    if found.rival is None or verdict.of(found.rival).relation is not Relation.OPEN:
        return ""
    pair = f"whether {name(verdict.choice)} or {name(found.rival)} is better, or that they are equally good"
    if found.seeds_to_tell is None:
        return f"Not even 100 seeds of each would show on this test split {pair}; little is lost with either."
    return f"About {found.seeds_to_tell} seeds of each would show {pair}; little is lost with either."


def beside_reference(verdict: GoalVerdict, name: Name = str) -> str:
    """A sentence that compares the choice with the best reference."""
    best, goal = verdict.reference, verdict.goal
    assert best is not None
    assert verdict.choice is not None
    lead, label = best.lead, name(best.label)
    if lead.sure and lead.mean > 0:
        return (
            f"{name(verdict.choice)} is {amount(goal, lead.mean)} better than {label} "
            f"(95 %: {span(goal, lead.low, lead.high)})."
        )
    if best.any_better:
        return f"Some head is better than {label}, but {name(verdict.choice)} is not shown to be."
    side = "ahead" if lead.mean > 0 else "behind"
    sure = " (this is sure)" if lead.sure else f" (95 %: {span(goal, lead.low, lead.high)})"
    return (
        f"No head is shown to be better than {label} here: "
        f"{name(verdict.choice)} is {amount(goal, abs(lead.mean))} {side}{sure}."
    )


def limits(verdict: GoalVerdict, name: Name = str) -> list[str]:
    """Sentences on what is missing: seeds, predictions of the items, or values."""
    goal, said = verdict.goal, []
    sources = {one.source for one in verdict.standings}
    if VarianceSource.TYPICAL in sources:
        typical = amount(goal, goal.typical_seed_deviation)
        said.append(
            "There is one seed of each head, so it is not known here how much seeds differ; "
            f"{typical} is assumed, which is typical of this value."
        )
    alone = [name(one.label) for one in verdict.standings if one.source is VarianceSource.OTHERS]
    if alone:
        has = "has" if len(alone) == 1 else "have"
        said.append(
            f"{listed(alone)} {has} one seed; it is assumed that seeds differ as those of the other heads do."
        )
    if not verdict.items and verdict.choice:
        said.append(
            "Only the values of the runs are known, not those of the items, so all this holds for this test "
            "split alone."
        )
    if verdict.choice:
        said += [_gap(gap, name) for gap in verdict.gaps if gap.reason is not Missing.NOT_MEASURED]
    return said


def why_left_out(verdict: GoalVerdict, name: Name) -> str:
    """Why a goal does not count in the overall recommendation."""
    title, whole = capital(verdict.goal.title), [gap for gap in verdict.gaps if gap.runs == gap.of]
    if verdict.chance is not None:
        return f"{title} does not count: {_by_chance(verdict)}."
    if verdict.choice is None and whole:
        return f"{title} does not count, since {_WHY_NONE[whole[0].reason]}."
    if not whole:
        return f"{title} does not count, since no seed of some head has all values."
    parts = [f"every run of {name(gap.label)} {_WHY_SOME[gap.reason]}" for gap in whole]
    return f"{title} does not count, since {listed(parts)}."


def _by_chance(verdict: GoalVerdict) -> str:
    """`the heads have 0.48 to 0.55, and with 360 test items values up to 0.58 may be chance`."""
    goal, means = verdict.goal, [one.mean for one in verdict.standings]
    assert verdict.chance is not None
    low, high, level = value(goal, min(means)), value(goal, max(means)), value(goal, verdict.chance)
    seen = f"the head has {low}" if len(means) == 1 else f"the heads have {low} to {high}"
    return f"{seen}, and with {verdict.items:,} test items values up to {level} may be chance"


_WHY_NONE = {
    Missing.NO_MISTAKES: "no run made a mistake, so there is nothing to tell right from wrong by",
    Missing.ALL_WRONG: "every run got every item wrong",
    Missing.NOTHING_RELEVANT: "no item has another item of its class to find",
    Missing.NOT_MEASURED: "no run has this value",
}


_WHY_UNTOLD = {
    Untold.CHANCE: "chance alone gives such values",
    Untold.FEW_ITEMS: f"fewer than {FEWEST_ITEMS} test items tell nothing",
    Untold.NOTHING_LEARNT: "no head is better than guessing",
}


_WHY_SOME = {
    Missing.NO_MISTAKES: "made no mistake",
    Missing.ALL_WRONG: "got every item wrong",
    Missing.NOTHING_RELEVANT: "had nothing to find",
    Missing.NOT_MEASURED: "did not measure it",
}


def _gap(gap: Gap, name: Name) -> str:
    which = "every run" if gap.runs == gap.of else f"{gap.runs} of {gap.of} runs"
    return f"{capital(which)} of {name(gap.label)} {_WHY_SOME[gap.reason]} and has no value here."


def _next(verdict: GoalVerdict, name: Name) -> str:
    others = [one for one in verdict.standings if one.label != verdict.choice]
    nearest: Standing = min(others, key=lambda one: one.behind.mean)
    goal, gap = verdict.goal, nearest.behind
    return (
        f"all other heads are worse; the next, {name(nearest.label)}, by {amount(goal, gap.mean)} "
        f"(95 %: {span(goal, gap.low, gap.high)})"
    )


def _likely(some: Sequence[Standing], name: Name, joint: str = "and") -> str:
    return listed([f"{name(one.label)} ({probability(one.best)})" for one in some], joint)


def _are(some: Sequence[Standing]) -> str:
    return "is" if len(some) == 1 else "are"


def _round(n: int) -> str:
    """A number rounded up to two significant digits."""
    step = 10 ** max(0, len(str(n)) - 2)
    return f"{-(-n // step) * step:,}"
