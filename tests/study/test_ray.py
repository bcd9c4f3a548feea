"""A real Ray cluster of two nodes on this machine; one of them dies in the middle of a study."""

import os
import threading
import time
from pathlib import Path

import pytest

from spaceform.run.recipe import QUICK, RecipeError, replace
from spaceform.study.folder import Job, StudyFolder
from spaceform.study.place import Event

ray = pytest.importorskip("ray", reason="install spaceform[cluster] to test runs on Ray")
from spaceform.run.cluster import ClusterError  # noqa: E402 (needs ray)
from spaceform.study.ray import Ray  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

TINY = {"budget.episodes": 20, "budget.instances": 3, "net.hidden": 16, "net.dim": 4}


def job(seed: int, epochs: int) -> Job:
    changes = {**TINY, "budget.epochs": epochs, "budget.patience": epochs, "seed": seed}
    return Job(f"cosine-seed{seed}", "cosine", replace(QUICK["digits/cosine"], changes))


@pytest.fixture
def cluster(monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # the workers need nothing but this project; shape checks of the tests stay here
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield made
    ray.shutdown()
    made.shutdown()


def test_every_run_completes_once_although_a_node_dies(cluster, tmp_path):
    other = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    study = StudyFolder.plan(tmp_path / "s", [job(seed, 60) for seed in range(3)])
    events: list[Event] = []
    killed = threading.Event()

    def watch(event: Event | None) -> None:
        if event is not None:
            events.append(event)
        busy = {e.job.name for e in events if e.kind == "progress"}
        if len(busy) == 2 and not killed.is_set():  # both nodes are at work
            killed.set()
            cluster.remove_node(other, allow_graceful=False)

    began = time.monotonic()
    Ray(cluster.address).finish(study, watch)
    print(f"{time.monotonic() - began:.0f} s")
    assert killed.is_set()
    kinds = [(e.job.name, e.kind) for e in events if e.kind != "progress"]
    assert sum(kind == "lost" for _, kind in kinds) == 1
    finished = [name for name, kind in kinds if kind == "finished"]
    assert sorted(finished) == ["cosine-seed0", "cosine-seed1", "cosine-seed2"]
    table = study.collect()
    assert list(table["state"]) == ["finished"] * 3
    assert list(table["epochs"]) == [60] * 3
    assert table["accuracy"].gt(0.5).all()
    assert not [p for p in (study.folder / "runs").iterdir() if p.name.startswith(".")]

    stamps = {p: p.stat().st_mtime_ns for p in Path(study.folder).glob("runs/*/*")}
    Ray(cluster.address).finish(study)  # nothing is left to do
    assert stamps == {p: p.stat().st_mtime_ns for p in Path(study.folder).glob("runs/*/*")}

    greedy = StudyFolder.plan(tmp_path / "greedy", [job(9, 1)])
    with pytest.raises(RecipeError, match="no host of the cluster has 1 CPUs and 4 GPUs"):
        Ray(cluster.address, gpus=4.0).finish(greedy)


def test_where_no_cluster_answers_it_says_how_to_start_one(tmp_path):
    study = StudyFolder.plan(tmp_path / "s", [job(0, 1)])
    os.environ.pop("RAY_ADDRESS", None)
    with pytest.raises(ClusterError, match="ray start --head"):
        Ray().finish(study)
