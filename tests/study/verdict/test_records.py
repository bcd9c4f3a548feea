"""What JSON can hold."""

import json

from spaceform.study.verdict import decide
from spaceform.study.verdict.overall import recommend
from spaceform.study.verdict.plain_values import record
from spaceform.study.verdict.race import race
from study.verdict.studies import study


def test_findings_become_json():
    evidence = study({"cosine": 95.0, "vmf": 90.0}, references={"LogisticRegression": 93.0})
    verdict = decide(evidence)
    kept = json.loads(json.dumps(record(verdict), allow_nan=False))
    one = kept["goals"][0]
    assert one["choice"] == "cosine"
    assert one["standings"][1]["relation"] == "worse"
    assert one["pairs"]["cosine / vmf"]["better"] > 0.99
    assert kept["seeds"] == {"cosine": 3, "vmf": 3}
    stop = json.loads(json.dumps(record(race(evidence)), allow_nan=False))
    assert (stop["go_on"], stop["reason"]) == (False, "settled")
    overall = json.loads(json.dumps(record(recommend(evidence, verdict)), allow_nan=False))
    assert overall["verdict"]["goal"]["most"] is None  # no bound
    assert overall["weights"] == {"accuracy": 1.0}
