"""How many seeds a comparison gives each head: a fixed number, or as many as it takes to choose."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from spaceform.study.folder import StudyFolder
from spaceform.study.judge import evidence, finished
from spaceform.study.verdict.goals import Goal
from spaceform.study.verdict.race import FIRST_SEEDS, Decision, race
from spaceform.study.verdict.race_words import racing

_SEARCH_SHARE = 0.5
"""The share of `--minutes` that the search may take."""


@final
@dataclass(frozen=True)
class Round:
    """What comes after a round of runs."""

    go_on: bool
    counts: Mapping[str, int]
    """How many seeds each label has at the end of the next round."""
    record: dict[str, Any]
    """For the study's notes."""
    sentences: list[str]


@final
@dataclass(frozen=True)
class Seeds:
    """A rule: how many seeds every head gets first, and whether heads get more where these are needed."""

    first: int
    racing: bool
    began: float
    deadline: float | None = None
    """No further round begins after this time of the monotonic clock."""

    @classmethod
    def of(cls, seeds: int | Literal["auto"] | None, *, auto: bool, minutes: float | None) -> "Seeds":
        """The rule that was asked for. Without `seeds`, `auto` says whether heads get more as needed."""
        if isinstance(seeds, int) and seeds < 1:
            raise ValueError(f"--seeds must be at least 1, or auto, got {seeds}")
        if minutes is not None and not minutes > 0:
            raise ValueError(f"--minutes must be positive, got {minutes:g}")
        now = time.monotonic()
        deadline = None if minutes is None else now + 60 * minutes
        if isinstance(seeds, int):
            return cls(seeds, False, now, deadline)
        if not (auto or seeds == "auto"):
            return cls(FIRST_SEEDS, False, now, deadline)
        return cls(FIRST_SEEDS if minutes is None else 1, True, now, deadline)

    def searching(self, heads: int, processes: int) -> float | None:
        """Seconds that the search of one head may take; None where there is no limit."""
        if self.deadline is None:
            return None
        return _SEARCH_SHARE * (self.deadline - self.began) * min(processes, heads) / heads

    def reference_trials(self, trials: int) -> int:
        """Settings to try for each reference: `trials`, but no more than four for each minute of a limit."""
        if self.deadline is None:
            return trials
        return max(2, min(trials, round((self.deadline - self.began) / 15)))

    def next(self, study: StudyFolder) -> Round | None:
        """What to run after these runs; None where the rule is a plain number, or a run failed."""
        if not self.racing or study.unfinished():
            return None
        found = evidence(finished(study))
        if found is None:
            return None
        decision = race(found, first=self.first)
        late = self.deadline is not None and time.monotonic() >= self.deadline
        said = racing(decision, found.goals) + (["The minutes are over."] if late and decision.go_on else [])
        record = _record(decision, found.goals, late)
        return Round(decision.go_on and not late, decision.seeds, record, said)


def _record(decision: Decision, goals: tuple[Goal, ...], late: bool) -> dict[str, Any]:
    """The decision as plain values."""
    titles = {goal.column: goal.title for goal in goals}
    return {
        "reason": "minutes" if late and decision.go_on else decision.reason.value,
        "seeds": dict(decision.seeds),
        "questions": [
            {
                "goal": titles[one.column],
                "choice": one.choice,
                "regret": one.regret,
                "region": one.region,
                "settled": one.settled,
                "few_items": one.few_items,
                "heads": list(one.heads),
            }
            for one in decision.questions
        ],
    }
