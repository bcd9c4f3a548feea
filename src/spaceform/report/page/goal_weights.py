"""The goals' weights on the page: what the script needs to recommend a head for other weights.

The weighted expected loss of a head is Σ weight · expected loss / region over the goals, so no new draws are
needed. A loss of 1 is the smallest difference that matters.
"""

from collections.abc import Mapping
from typing import Any

from spaceform.report.looks import display
from spaceform.report.page.viewer import script_json
from spaceform.study.judge import Advice
from spaceform.study.verdict.amounts import amount
from spaceform.study.verdict.decide import GoalVerdict


def weights(key: str, advice: Advice | None, heads: Mapping[str, str]) -> dict[str, Any] | None:
    """The goals in which every head has a value, their weights, and the expected loss of each head in them.

    None where there is no choice. `heads` has the head of each label.
    """
    if advice is None or advice.recommendation is None or len(advice.verdict.labels) < 2:
        return None
    labels, shares = advice.verdict.labels, advice.recommendation.weights
    goals = [one for one in advice.verdict.goals if one.goal.weight > 0 and _whole(one, labels)]
    data = {
        "heads": [{"label": display(label), "row": f"{key}-weighed-{i}"} for i, label in enumerate(labels)],
        "goals": [
            {
                "title": one.goal.title,
                "weight": round(100 * shares.get(one.goal.column, 0.0)),
                "loss": [
                    one.of(label).regret / one.counted(shares.get(one.goal.column, 0.0)) for label in labels
                ],
            }
            for one in goals
        ],
        "choice": labels.index(advice.recommendation.choice.label),
        "sentence": advice.overall(display)[0],
    }
    return {
        "goals": [
            {
                "id": f"{key}-weight-{i}",
                "title": one.goal.title,
                "weight": round(100 * shares.get(one.goal.column, 0.0)),
                "region": amount(one.goal, one.goal.region),
            }
            for i, one in enumerate(goals)
        ],
        "heads": [
            {"id": f"{key}-weighed-{i}", "head": heads[label], "label": display(label)}
            for i, label in enumerate(labels)
        ],
        "json": script_json(data),
    }


def _whole(one: GoalVerdict, labels: tuple[str, ...]) -> bool:
    return one.choice is not None and {standing.label for standing in one.standings} == set(labels)
