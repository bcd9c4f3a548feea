"""Studies with real processes: planned once, continued after any death, never mixed, never twice."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from spaceform.cli import app as cli
from spaceform.run.finished import Run
from spaceform.run.recipe import QUICK, Recipe, RecipeError, replace
from spaceform.study.folder import Failure, Job, StudyFolder, flat_metrics
from spaceform.study.lock import at_work, locked
from spaceform.study.place import Event, perform
from spaceform.study.processes import Pool, Processes

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("lasting_processes")]

TINY = {"budget.epochs": 3, "budget.episodes": 4, "budget.instances": 3, "net.hidden": 16, "net.dim": 4}


def tiny(head: str = "cosine", seed: int = 0, **changes: object) -> Recipe:
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return replace(QUICK[f"digits/{head}"], {**TINY, **dotted, "seed": seed})


def job(head: str = "cosine", seed: int = 0, **changes: object) -> Job:
    return Job(f"{head}-seed{seed}", head, tiny(head, seed, **changes))


# The folder


def test_a_plan_is_read_back_as_it_was(tmp_path):
    jobs = (job(), job("vmf", 3))
    study = StudyFolder.plan(tmp_path / "s", jobs, {"budget": "quick"})
    again = StudyFolder.open(tmp_path / "s")
    assert again.jobs == study.jobs == jobs
    assert again.notes == {"budget": "quick"}
    assert [again.status(j).state for j in jobs] == ["waiting", "waiting"]


def test_plans_join_and_other_settings_are_refused(tmp_path):
    StudyFolder.plan(tmp_path / "s", [job(seed=0)])
    joined = StudyFolder.plan(tmp_path / "s", [job(seed=0), job(seed=1)])
    assert [j.name for j in StudyFolder.open(joined.folder).jobs] == ["cosine-seed0", "cosine-seed1"]
    with pytest.raises(RecipeError, match=r"optim\.lr was 0\.1 and is now 0\.2.*another --out"):
        StudyFolder.plan(tmp_path / "s", [job(seed=1, optim__lr=0.2)])
    assert len(StudyFolder.open(joined.folder).jobs) == 2


def test_a_folder_that_is_no_study_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("dear reader")
    with pytest.raises(RecipeError, match="holds no study"), locked(tmp_path):
        pass
    with pytest.raises(RecipeError, match="holds no study"):
        StudyFolder.open(tmp_path)
    with pytest.raises(RecipeError, match="is a file"), locked(tmp_path / "thesis.tex"):
        pass
    below = tmp_path / "thesis.tex" / "study"
    with pytest.raises(RecipeError, match=r"cannot be made .*choose another --out"), locked(below):
        pass
    (tmp_path / "study.json").write_text('{"runs": 3, "notes": {}}')
    with pytest.raises(RecipeError, match=r"study.json cannot be read \(runs must be an object, got 3"):
        StudyFolder.open(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["study.json", "thesis.tex"]


def test_one_process_at_a_time(tmp_path):
    with locked(tmp_path / "s"):
        assert at_work(tmp_path / "s")
        with (
            pytest.raises(RecipeError, match=r"another process is working on .*status"),
            locked(tmp_path / "s"),
        ):
            pass
    assert not at_work(tmp_path / "s")
    with locked(tmp_path / "s"):
        pass


def test_a_run_of_another_machine_is_adopted_whole(tmp_path):
    study = StudyFolder.plan(tmp_path / "s", [job()])
    one = study.jobs[0]
    study.record_failure(one, Failure("ProcessLost", "lost"))
    assert study.status(one).state == "failed"
    result = b'{"epochs": 2, "score": 0.5, "seconds": 1.5}'
    study.adopt(
        one,
        {
            "result.json": result,
            "metrics.json": b'{"task": "classification", "accuracy": 0.25, "calibrated": {"t": {"nll": 1}}}',
        },
    )
    assert study.status(one).state == "finished"
    row = study.collect().iloc[0]
    assert (row["accuracy"], row["calibrated.t.nll"], row["epochs"]) == (0.25, 1, 2)
    with pytest.raises(RecipeError, match="no plain name"):
        study.adopt(one, {"../../evil": b""})
    assert study.status(one).state == "finished"


def test_figures_have_dotted_names_and_those_of_the_chosen_calibrator():
    calibrated = {"temperature": {"nll": 1.0}, "vector": {"nll": 2.0}}
    flat = {"accuracy": 0.5, "calibrated.temperature.nll": 1.0, "calibrated.vector.nll": 2.0}
    assert flat_metrics({"accuracy": 0.5, "calibrated": calibrated}) == flat
    found = flat_metrics({"accuracy": 0.5, "calibrator": "vector", "calibrated": calibrated})
    assert found == {**flat, "calibrator": "vector", "calibrated.chosen.nll": 2.0}
    assert flat_metrics({}) == {}


# Processes


def test_runs_fail_alone_finish_once_and_are_tried_again(tmp_path):
    bad = job("standard", optim__lr=1e30)
    study = StudyFolder.plan(tmp_path / "s", [bad, job("cosine"), job("vmf")])
    events: list[Event] = []
    Processes(1).finish(study, lambda event: events.append(event) if event else None)
    ends = [(e.job.name, e.kind) for e in events if e.kind not in ("started", "progress")]
    assert ends == [("standard-seed0", "failed"), ("cosine-seed0", "finished"), ("vmf-seed0", "finished")]
    assert any(e.kind == "progress" and e.progress and e.progress.done for e in events)
    table = study.collect()
    assert list(table["state"]) == ["failed", "finished", "finished"]
    assert "not finite in epoch 1" in table["error"][0]
    assert "lower optim.lr" in table["error"][0]
    assert table["accuracy"].notna().tolist() == [False, True, True]
    assert table["retrieval.map_at_r"][1:].between(0, 1).all()
    pd.testing.assert_frame_equal(pd.read_parquet(study.folder / "results.parquet"), table)

    before = {p: p.stat().st_mtime_ns for p in study.folder.glob("runs/[cv]*/*")}
    events.clear()
    Processes(1).finish(study, lambda event: events.append(event) if event else None)
    assert {e.job.name for e in events} == {"standard-seed0"}
    assert {p: p.stat().st_mtime_ns for p in study.folder.glob("runs/[cv]*/*")} == before


def test_a_killed_worker_costs_nothing_but_time(tmp_path):
    long = job("cosine", budget__epochs=40, budget__patience=40)
    study = StudyFolder.plan(tmp_path / "s", [long])
    kinds: list[str] = []
    with Pool(1) as pool:
        pool.submit(long, study.path(long))
        while pool.busy:
            for event in pool.events():
                kinds.append(event.kind)
                if kinds.count("progress") == 10 and event.kind == "progress":
                    os.kill(pool._workers[0].process.pid, signal.SIGKILL)
    assert kinds.count("lost") == 1
    assert kinds[-1] == "finished"
    run = Run.load(study.path(long))
    assert [record["epoch"] for record in run.history] == list(range(40))


def test_a_run_can_be_asked_to_stop_and_the_worker_serves_on(tmp_path):
    long, short = job("cosine", budget__epochs=500, budget__patience=500), job("cosine", 1)
    ends: list[tuple[str, str]] = []
    with Pool(1) as pool:
        pool.submit(long, tmp_path / "long", partial(perform, measure=False))
        while pool.busy:
            for event in pool.events():
                if event.kind == "progress" and event.job == long:
                    pool.stop(long)
                if event.kind in ("stopped", "finished"):
                    ends.append((event.job.name, event.kind))
            if pool.room and len(ends) == 1:
                pool.submit(short, tmp_path / "short", partial(perform, measure=False))
    assert ends == [("cosine-seed0", "stopped"), ("cosine-seed1", "finished")]
    assert not (tmp_path / "short" / "metrics.json").exists()


# The command line


def compare(folder: Path) -> list[str]:
    """A study without end."""
    heads = ["--heads", "cosine,standard", "--seeds", "1", "--processes", "1"]
    settings = ["budget.episodes=4", "budget.epochs=100000", "budget.patience=100000"]
    options = [text for setting in settings for text in ("--set", setting)]
    return ["compare", "digits", "--out", str(folder), *heads, *options]


def here(monkeypatch, *arguments: str) -> int | str | None:
    """Run a command in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["spaceform", *arguments])
    monkeypatch.setattr("warnings.showwarning", None)  # main sets its own
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "spaceform", *compare(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell starts background jobs with interrupts ignored, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def wait_for(condition, seconds: float = 600.0) -> float:
    """How long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, "it did not happen in time"
        time.sleep(0.1)
    return time.monotonic() - began


def children(pid: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    parents = {int(line.split()[0]): int(line.split()[1]) for line in listed.splitlines()}
    own = [child for child, parent in parents.items() if parent == pid]
    return own + [below for child in own for below in children(child)]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes through /proc, which is Linux's")
def test_killed_interrupted_locked_and_continued(tmp_path, monkeypatch, capsys):
    """Its end is sooner than its start, which takes five seconds or more, however busy the machine is."""
    out = tmp_path / "s"
    history = out / "runs" / "cosine-seed0" / "history.jsonl"

    first = start(out)
    try:
        starting = wait_for(lambda: history.exists() and history.stat().st_size)
        assert here(monkeypatch, *compare(out)) == 2
        assert f"error: another process is working on {out}" in capsys.readouterr().err
        workers = children(first.pid)
        assert workers
    finally:
        first.kill()
        first.communicate()
    wait_for(lambda: not any(map(alive, workers)), starting)

    third = start(out)
    try:
        seen = history.stat().st_mtime_ns
        starting = wait_for(lambda: history.stat().st_mtime_ns > seen)
        os.killpg(third.pid, signal.SIGINT)
        _, said = third.communicate(timeout=starting)
    finally:
        third.kill()
        third.wait()
    assert third.returncode == 130
    assert said.strip().splitlines()[-1].startswith("error: stopped; the same command goes on")
    assert "Traceback" not in said
    study = StudyFolder.open(out)
    assert [study.status(j).state for j in study.jobs] == ["running", "waiting"]
    assert not at_work(out)
    assert not here(monkeypatch, "status", str(out))
    told = capsys.readouterr().out
    assert "1 waiting, 1 stopped" in told
    assert "no process is at work; the same command as before continues" in told
