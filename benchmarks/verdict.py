"""Does a verdict keep its word? By simulation, where the truth is known, and on the saved runs of studies.

    python benchmarks/verdict.py simulated --studies 400
    python benchmarks/verdict.py runs STUDY ... --resamplings 100
    python benchmarks/verdict.py metrics results/mnist results/fashion-mnist

`runs` needs studies of many seeds with their outputs: `spaceform compare digits --seeds 40 --out STUDY`.
`metrics` needs metrics.json alone. Prints JSON, with the command and versions; --out writes it too.

names      the same head under two names: how often the two are called different (aim: at most 5 %)
calibrated of the pairs stated at 85 to 95 %, how many hold (aim: what was stated)
apart      pairs told apart at the usual 95 %, and at equal shares of wrong calls, against Welch with Holm
race       racing against 20 seeds for all: the same answer, and the share of the runs
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from spaceform.geometry import Euclidean, Sphere
from spaceform.metrics import retrieval
from spaceform.run.environment import environment
from spaceform.study.verdict.decide import decide
from spaceform.study.verdict.evidence import Evidence, Series, evidence_from
from spaceform.study.verdict.goals import CLASSIFICATION_GOALS, GOALS, Goal
from spaceform.study.verdict.item_outputs import ItemOutputs
from spaceform.study.verdict.posterior import Posterior, posterior
from spaceform.study.verdict.race import race

_BANDS = ((0.5, 0.65), (0.65, 0.8), (0.8, 0.85), (0.85, 0.95), (0.95, 0.975), (0.975, 1.01))
_SURE = 0.975
_SEARCHED = 1_500
_DRAWS = 2_048


class Calls:
    """Pairs, what was stated of each, and what was true."""

    def __init__(self) -> None:
        self.stated: list[float] = []
        self.p: list[float] = []
        self.right: list[bool] = []
        self.called: list[bool] = []
        self.errors: list[float] = []
        self.welch_right: list[bool] = []

    def add(
        self,
        goal: Goal,
        series: Mapping[str, Series],
        truth: Mapping[str, float],
        known: Posterior,
        fresh: int,
    ) -> None:
        """All pairs of one goal. With `fresh` seeds behind the truth, it errs itself: that is stated too."""
        draws = goal.sign * known.draw(_DRAWS, 0)
        noise = np.random.default_rng(1).standard_normal(draws.shape)
        measured = draws + noise * np.sqrt(known.seed_variance / fresh) if fresh else draws
        pairs = list(combinations(range(len(known.labels)), 2))
        means = [series[label].means for label in known.labels]
        true = [goal.sign * truth[label] for label in known.labels]
        for (a, b), p in zip(pairs, holm([welch(means[a], means[b]) for a, b in pairs]), strict=True):
            better = float((measured[:, a] > measured[:, b]).mean())
            self.stated.append(max(better, 1 - better))
            self.right.append((better > 0.5) == (true[a] > true[b]))
            gap = draws[:, a] - draws[:, b]
            self.called.append(max((gap > 0).mean(), (gap < 0).mean()) >= _SURE)
            self.errors.append(abs(gap.mean()) / gap.std())
            self.p.append(p)
            ahead = goal.sign * (means[a].mean() - means[b].mean())
            self.welch_right.append((ahead > 0) == (true[a] > true[b]))

    def calibration(self) -> list[dict[str, float]]:
        """Stated and held, by bands of what was stated."""
        stated, right = np.array(self.stated), np.array(self.right)
        bands = [(low, (stated >= low) & (stated < high)) for low, high in _BANDS]
        return [
            {
                "from": low,
                "pairs": int(m.sum()),
                "stated": round(float(stated[m].mean()), 3),
                "held": round(float(right[m].mean()), 3),
            }
            for low, m in bands
            if m.any()
        ]

    def apart(self) -> dict[str, Any]:
        """Pairs told apart by either method."""
        ours, errors, right = np.array(self.called), np.array(self.errors), np.array(self.right)
        p, welch_right = np.array(self.p), np.array(self.welch_right)
        theirs = p <= 0.05
        rate = float((~welch_right[theirs]).mean()) if theirs.any() else 0.0
        rates = sorted({0.005, 0.01, 0.02, round(rate, 4)})
        return {
            "pairs": len(p),
            "ours": int(ours.sum()),
            "ours wrong": round(float((~right[ours]).mean()), 4) if ours.any() else 0.0,
            "welch": int(theirs.sum()),
            "welch wrong": round(rate, 4),
            "at equal shares of wrong calls": {
                str(x): {"ours": _most(-errors, right, x), "welch": _most(p, welch_right, x)} for x in rates
            },
        }


def _most(doubt: NDArray[np.float64], right: NDArray[np.bool_], rate: float) -> int:
    """Most calls, surest first, of which no more than this share is wrong."""
    order = np.argsort(doubt, kind="stable")
    share = np.cumsum(~right[order]) / np.arange(1, len(order) + 1)
    return int(np.flatnonzero(share <= rate).max(initial=-1)) + 1


def welch(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Two-sided p-value; where neither varies, 1 if the means are equal and else 0."""
    if len(a) < 2 or len(b) < 2:
        return 1.0
    if np.ptp(a) == 0 and np.ptp(b) == 0:
        return float(a[0] == b[0])
    return float(stats.ttest_ind(a, b, equal_var=False).pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjustment."""
    order = np.argsort(p, kind="stable")
    raised = np.maximum.accumulate((len(p) - np.arange(len(p))) * np.array(p)[order]).clip(max=1.0)
    return list(raised[np.argsort(order, kind="stable")])


# Simulated studies ---------------------------------------------------------------------------------------


def simulated(studies: int, seeds: int, items: int, rng: np.random.Generator) -> dict[str, Any]:
    """Six heads whose truth is known, anew in every study; then one head under two names."""
    calls, covered, called = Calls(), [], []
    for _ in range(studies):
        study, truth = _simulated_study(6, seeds, items, rng)
        for column, series in study.items():
            goal = next(goal for goal in CLASSIFICATION_GOALS if goal.column == column)
            known = posterior(series, (), goal)
            calls.add(goal, series, truth[column], known, 0)
            low, high = known.interval(0.95)
            true = np.array([truth[column][label] for label in known.labels])
            covered += ((low <= true) & (true <= high)).tolist()
        study, _ = _simulated_study(2, seeds, items, rng, spread=0.0)
        for column, series in study.items():
            goal = next(goal for goal in CLASSIFICATION_GOALS if goal.column == column)
            called.append(_told(goal, posterior(series, (), goal)))
    return {
        "seeds": seeds,
        "items": items,
        "studies": studies,
        "names": round(float(np.mean(called)), 4),
        "interval covers": round(float(np.mean(covered)), 4),
        "calibrated": calls.calibration(),
        "apart": calls.apart(),
    }


def _simulated_study(
    heads: int, seeds: int, items: int, rng: np.random.Generator, spread: float | None = None
) -> tuple[dict[str, dict[str, Series]], dict[str, dict[str, float]]]:
    """A margin x = 2 + head + item + head×item + seed + run×item: right if x > 0, NLL log(1 + e⁻ˣ)."""
    τ = np.exp(rng.uniform(np.log(0.01), np.log(0.4))) if spread is None else spread
    level = np.exp(rng.uniform(np.log(0.02), np.log(0.2)))
    item = 2.0 * rng.standard_normal(items)
    series: dict[str, dict[str, Series]] = {"accuracy": {}, "nll": {}}
    truth: dict[str, dict[str, float]] = {"accuracy": {}, "nll": {}}
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    for h in range(heads):
        centre, label = 2 + τ * rng.standard_normal(), f"head {h}"
        σ = level * (np.exp(0.4 * rng.standard_normal()) if spread is None else 1.0)
        x = centre + item + 0.7 * rng.standard_normal(items) + σ * rng.standard_normal((seeds, 1))
        x = x + 0.8 * rng.standard_normal((seeds, items))
        width = np.sqrt(4 + 0.49 + 0.64 + σ**2)
        numbers = tuple(range(seeds))
        series["accuracy"][label] = Series(numbers, 100.0 * (x > 0), {}, 100.0**2 * 0.5 / items**2)
        series["nll"][label] = Series(numbers, np.logaddexp(0, -x))
        truth["accuracy"][label] = 100 * float(stats.norm.cdf(centre / width))
        truth["nll"][label] = float(
            (weights * np.logaddexp(0, -(centre + width * nodes))).sum() / weights.sum()
        )
    return series, truth


def _told(goal: Goal, known: Posterior) -> bool:
    """Whether the two labels are called different."""
    draws = goal.sign * known.draw(_DRAWS, 0)
    better = float((draws[:, 0] > draws[:, 1]).mean())
    return max(better, 1 - better) >= _SURE


# Saved runs ----------------------------------------------------------------------------------------------


def runs(folder: Path, resamplings: int, rng: np.random.Generator) -> dict[str, Any]:
    """Everything that a study of many seeds can show."""
    evidence = _evidence(folder)
    seeds = sorted(set.intersection(*(set(evidence.seeds(label)) for label in evidence.labels)))
    found: dict[str, Any] = {"labels": evidence.labels, "seeds": len(seeds)}
    for S in (3, 5):
        found[f"names, {S} seeds"] = _names(evidence, S, resamplings, rng)
        calls = Calls()
        for _ in range(resamplings):
            order = rng.permutation(seeds)
            fresh = order[S:][:20]
            for goal, series in _complete(evidence, order[:S]):
                rows = evidence.series[goal.column]
                truth = {label: _mean_over(rows[label], fresh) for label in series}
                if all(np.isfinite([*truth.values()])):
                    known = posterior(series, (), goal, new_items=False)
                    calls.add(goal, series, truth, known, len(fresh))
        found[f"calibrated, {S} seeds"] = calls.calibration()
        found[f"apart, {S} seeds"] = calls.apart()
    if len(seeds) >= 20:
        found["race"] = _races(evidence, seeds, max(20, resamplings // 2), rng)
    return found


def _names(evidence: Evidence, S: int, resamplings: int, rng: np.random.Generator) -> dict[str, float]:
    """One head's runs as two heads, at every goal; the shares over resamplings and heads."""
    found: dict[str, float] = {}
    for goal in evidence.goals:
        called = []
        for _ in range(max(1, resamplings // len(evidence.labels) + 1)):
            for one in evidence.series[goal.column].values():
                if len(one.seeds) < 2 * S:
                    continue
                rows = rng.permutation(len(one.seeds))[: 2 * S]
                halves = {
                    name: Series(tuple(range(S)), one.values[part], {}, one.doubt)
                    for name, part in (("one", rows[:S]), ("other", rows[S:]))
                }
                called.append(_told(goal, posterior(halves, (), goal, new_items=False)))
        found[goal.column] = round(float(np.mean(called)), 4)
    found["all"] = round(float(np.mean([*found.values()])), 4)
    return found


def _complete(evidence: Evidence, seeds: Sequence[int]) -> Iterator[tuple[Goal, dict[str, Series]]]:
    """Goals at which all of these runs have a value."""
    some = evidence.only({label: [int(seed) for seed in seeds] for label in evidence.labels})
    for goal in evidence.goals:
        series = dict(some.series[goal.column])
        if all(len(one.seeds) == len(seeds) for one in series.values()):
            yield goal, series


def _mean_over(series: Series, seeds: Sequence[int]) -> float:
    rows = [series.seeds.index(seed) for seed in seeds if seed in series.seeds]
    return float(series.values[rows].mean()) if rows else float("nan")


def _races(
    evidence: Evidence, seeds: Sequence[int], studies: int, rng: np.random.Generator
) -> dict[str, float]:
    """Races within studies of 20 seeds, against all 20."""
    same, near, spent = [], [], []
    for _ in range(studies):
        order = [int(seed) for seed in rng.permutation(seeds)[:20]]
        counts = dict.fromkeys(evidence.labels, 3)
        while True:
            now = evidence.only({label: order[:n] for label, n in counts.items()})
            decision = race(now)
            if not decision.go_on:
                break
            counts = dict(decision.seeds)
        spent.append(sum(counts.values()) / (20 * len(counts)))
        full = decide(evidence.only(dict.fromkeys(evidence.labels, order)), new_items=False)
        for question in decision.questions:
            all_seeds = full.of(question.column)
            assert all_seeds.choice is not None
            gap = all_seeds.goal.sign * (
                all_seeds.of(all_seeds.choice).mean - all_seeds.of(question.choice).mean
            )
            same.append(question.choice == all_seeds.choice)
            near.append(gap <= all_seeds.goal.region)
    return {
        "studies": studies,
        "same head": round(float(np.mean(same)), 4),
        "same head or one within the region of it": round(float(np.mean(near)), 4),
        "share of the runs": round(float(np.mean(spent)), 4),
    }


def _evidence(folder: Path) -> Evidence:
    plan = json.loads((folder / "study.json").read_text("utf-8"))["runs"]
    found: dict[str, dict[int, ItemOutputs]] = {}
    for name, job in plan.items():
        run = folder / "runs" / name
        if not (run / "metrics.json").exists():
            continue
        calibrator = json.loads((run / "metrics.json").read_text("utf-8"))["calibrator"]
        with np.load(run / "outputs.npz") as archive:
            arrays = {key: archive[key] for key in archive.files}
        arrays.setdefault("average_precision", _average_precision(arrays, job["recipe"]["head"]["name"]))
        found.setdefault(job["label"], {})[job["recipe"]["seed"]] = ItemOutputs.of(arrays, calibrator)
    return evidence_from(found)


def _average_precision(arrays: Mapping[str, NDArray[Any]], head: str) -> NDArray[np.float64]:
    """Of the same items for every run; by the ball's limit at small curvature for hyperbolic heads."""
    some = np.sort(np.random.default_rng(0).permutation(len(arrays["labels"]))[:_SEARCHED])
    z, y = (torch.from_numpy(arrays[key][some]) for key in ("embeddings", "labels"))
    geometry = Euclidean() if head in ("standard", "hyperbolic") else Sphere()
    return retrieval(z, y, geometry, k=(1,)).average_precision.numpy()


# Saved metrics -------------------------------------------------------------------------------------------


def saved_metrics(folder: Path) -> dict[str, Any]:
    """Pairs that a study of which only metrics.json is left tells apart, by either method."""
    plan = json.loads((folder / "study.json").read_text("utf-8"))["runs"]
    found: dict[str, dict[int, ItemOutputs]] = {}
    task = "classification"
    for name, job in plan.items():
        path = folder / "runs" / name / "metrics.json"
        if path.exists():
            metrics = json.loads(path.read_text("utf-8"))
            task = metrics["task"]
            found.setdefault(job["label"], {})[job["recipe"]["seed"]] = ItemOutputs(measured=_flat(metrics))
    evidence = evidence_from(found, goals=GOALS[task])
    verdict = decide(evidence)
    out: dict[str, Any] = {}
    for one in verdict.goals:
        pairs = list(combinations([s.label for s in one.standings], 2))
        series = evidence.series[one.goal.column]
        p = holm([welch(series[a].means, series[b].means) for a, b in pairs])
        out[one.goal.column] = {
            "pairs": len(pairs),
            "ours": sum(one.pairs[pair].sure for pair in pairs),
            "welch": sum(bool(x <= 0.05) for x in p),
        }
    out["all"] = {key: sum(one[key] for one in out.values()) for key in ("pairs", "ours", "welch")}
    return out


def _flat(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    chosen = metrics.get("calibrated", {}).get(metrics.get("calibrator"))
    flat: dict[str, Any] = {}
    for name, value in ({**metrics, "calibrated": {"chosen": chosen}} if chosen else metrics).items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("simulated", "runs", "metrics"))
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--studies", type=int, default=400)
    parser.add_argument("--resamplings", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rng = np.random.default_rng(asked.seed)
    options = f"--studies {asked.studies} --resamplings {asked.resamplings} --seed {asked.seed}"
    named = " ".join([asked.what, *(folder.name for folder in asked.folders)])
    found: dict[str, Any] = {"command": f"benchmarks/verdict.py {named} {options}", **environment()}
    if asked.what == "simulated":
        found["simulated"] = [
            simulated(asked.studies, seeds, items, rng) for seeds in (1, 3, 5) for items in (300, 3_000)
        ]
    elif asked.what == "runs":
        found |= {folder.name: runs(folder, asked.resamplings, rng) for folder in asked.folders}
    else:
        found |= {folder.name: saved_metrics(folder) for folder in asked.folders}
    text = json.dumps(found, indent=1, ensure_ascii=False)
    print(text)
    if asked.out is not None:
        asked.out.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
