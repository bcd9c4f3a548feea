"""What is said after a round of the race for seeds."""

from collections.abc import Sequence

from spaceform.foundation.messages import capital, listed
from spaceform.study.verdict.amounts import Name, amount
from spaceform.study.verdict.goals import Goal
from spaceform.study.verdict.race import SAFE, Decision, Question, Reason


def racing(decision: Decision, goals: Sequence[Goal], name: Name = str) -> list[str]:
    """Why a race goes on or stops, and how each goal stands."""
    titles = {goal.column: goal for goal in goals}
    going = list(dict.fromkeys(decision.runs))
    said = {
        Reason.FIRST_SEEDS: "Every head gets its first seeds.",
        Reason.REGRET: f"More seeds for {listed([name(label) for label in going])}." if going else "",
        Reason.SETTLED: "No more seeds: they would hardly change the choice of any goal.",
        Reason.MOST_SEEDS: "No more seeds: the heads in question have as many as any head gets.",
        Reason.NOTHING_TOLD: "No more seeds: these test items cannot tell which head to choose.",
        Reason.ONE_HEAD: "No more seeds: there is one head only.",
    }[decision.reason]
    return [said, *(_question(one, titles[one.column], name) for one in decision.questions)]


def _question(one: Question, goal: Goal, name: Name) -> str:
    wanted = f"{SAFE * one.region:g} {goal.unit.name}".rstrip()
    state = f"a loss of {wanted} or less is accepted"
    if one.few_items:
        state = "more test items would tell, more seeds would not"
    elif not one.settled:
        state += f"; still in question: {listed([name(label) for label in one.heads])}"
    choice = name(one.choice) + ("" if one.settled else " so far")
    loss = f"on average it loses {amount(goal, one.regret)} against the best head on these test items"
    return f"{capital(goal.title)}: {choice}; {loss}; {state}."
