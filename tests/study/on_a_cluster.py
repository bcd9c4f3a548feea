"""Run by a test in an interpreter of its own: studies, features and predictions on a real Ray cluster.

Ray ends every process that has joined a cluster when the cluster goes, without a word. The cluster has two
nodes on this machine; one of them dies in the middle of the work.
"""

import hashlib
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import ray
import torch
from PIL import Image
from typer.testing import CliRunner

from photo_folders import NET, write_weights
from spaceform import data, extract_features
from spaceform.cli.app import app
from spaceform.data.dataset import DataError
from spaceform.run import extraction
from spaceform.run.cluster import ActorWork, ClusterError, by_actors
from spaceform.run.evaluate import evaluate
from spaceform.run.on_ray import predict_by
from spaceform.run.predict import PredictionPlan, predict
from spaceform.run.recipe import QUICK, RecipeError, replace
from spaceform.run.train import train
from spaceform.study.folder import Job, StudyFolder
from spaceform.study.place import Event
from spaceform.study.ray import Ray

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

PHOTOS, SHARD = 96, 8
TINY = {"budget.episodes": 20, "budget.instances": 3, "net.hidden": 16, "net.dim": 4}


def job(seed: int, epochs: int) -> Job:
    changes = {**TINY, "budget.epochs": epochs, "budget.patience": epochs, "seed": seed}
    return Job(f"cosine-seed{seed}", "cosine", replace(QUICK["digits/cosine"], changes))


@pytest.mark.parametrize("address", ["127.0.0.1:9", "auto"])
def test_where_no_cluster_answers_it_says_how_to_start_one(address, tmp_path, monkeypatch):
    """Stands first: "auto" is any cluster of this machine, also the one that the other tests start."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address == "auto" and ray._private.services.find_gcs_addresses():
        pytest.skip("a Ray cluster of somebody else runs on this machine")
    study = StudyFolder.plan(tmp_path / "s", [job(0, 1)])
    with pytest.raises(ClusterError, match="ray start --head"):
        Ray(address).finish(study)


def test_a_cluster_that_died_is_not_waited_for(tmp_path, monkeypatch):
    """Ray keeps the address; it would try for minutes."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:9")
    study = StudyFolder.plan(tmp_path / "s", [job(0, 1)])
    began = time.monotonic()
    with pytest.raises(ClusterError, match="ray start --head"):
        Ray("auto").finish(study)
    assert time.monotonic() - began < 60


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # the workers need nothing but this project; shape checks of the tests stay here
        patch.setenv("OMP_NUM_THREADS", "1")
        # Ray's own 15 starves its workers where anything else runs
        patch.setenv("RAY_worker_niceness", "0")
        # five questions in a row that nobody answers are a dead node, as ever, but in 2 s and not 20
        patch.setenv("RAY_health_check_initial_delay_ms", "0")
        patch.setenv("RAY_health_check_period_ms", "400")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder, random = tmp_path_factory.mktemp("photos") / "grain", np.random.default_rng(0)
    for i in range(PHOTOS):
        place = folder / ("fine" if i % 2 else "coarse")
        place.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{i:03}.png")
    return folder


def digests(folder: Path) -> dict[str, str]:
    found = sorted(folder.glob("*.arrow"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def test_no_part_is_lost_or_doubled_when_a_node_dies(cluster, tmp_path):
    """Both nodes are at work when one dies: on each the first part waits for the other node."""
    other = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    at_work = str(tmp_path)

    class Slow(ActorWork):
        def settle(self, device, workers):
            self.where = device, workers, ray.get_runtime_context().get_node_id()

        def __call__(self, task):
            Path(at_work, self.where[2]).touch()
            began = time.monotonic()
            while len(list(Path(at_work).iterdir())) < 2:
                assert time.monotonic() - began < 600, "the other node did not begin"
                time.sleep(0.05)
            time.sleep(0.2)
            return self.where, [10 * row for row in task]

    tasks = {number: [number, number + 0.5] for number in range(24)}
    found, hosts, killed = [], [], False
    for number, (where, rows) in by_actors(Ray(cluster.address), Slow(), tasks):
        assert where[:2] == ("cpu", 1)
        assert rows == [10 * number, 10 * number + 5]
        found.append(number)
        hosts.append(where[2])
        if len(set(hosts)) == 2 and not killed:  # both are at work
            killed = True
            cluster.remove_node(other, allow_graceful=False)
    assert killed
    assert len(found) == len(set(found)) == 24
    assert 24 not in {hosts.count(host) for host in set(hosts)}


def test_what_an_actor_refuses_is_raised_here(cluster, monkeypatch):
    class Wrong(ActorWork):
        def settle(self, device, workers):
            pass

        def __call__(self, task):
            raise DataError(f"photo {task} is broken; replace it.")

    readers: list[str] = []

    def leave(shutdown=ray.shutdown) -> None:
        names = [thread.name for thread in threading.enumerate()]
        readers.extend(name for name in names if name.startswith(("iter_threaded", "StreamingExecutor")))
        shutdown()

    monkeypatch.setattr(ray, "shutdown", leave)
    with pytest.raises(DataError, match="photo 7 is broken"):
        list(by_actors(Ray(cluster.address), Wrong(), dict.fromkeys(range(12), 7)))
    assert not readers  # one that is left would end this process without a word
    with pytest.raises(RecipeError, match="no host of the cluster has 1 CPUs and 2 GPUs"):
        list(by_actors(Ray(cluster.address, gpus=2.0), Wrong(), {0: 7}))


DRIVER = """
import sys
from spaceform.run import extraction
extraction.SHARD = {shard}
from spaceform.cli.app import main
sys.argv = ["spaceform", "features", *{arguments!r}]
main()
"""


def test_features_are_the_same_bytes_although_the_driver_is_killed(cluster, photos, tmp_path, monkeypatch):
    weights = write_weights(tmp_path / "net.safetensors")
    monkeypatch.setattr(extraction, "SHARD", SHARD)
    here = extract_features(photos, tmp_path / "here", net=NET, weights=weights, batch=4)
    out = tmp_path / "far"
    options = ["--net", NET, "--weights", str(weights), "--batch", "4", "--on", "ray"]
    arguments = [str(photos), "-o", str(out), *options, "--address", cluster.address]
    code = DRIVER.format(shard=SHARD, arguments=arguments)
    driver = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    while driver.poll() is None and len(digests(out)) < 2:
        time.sleep(0.02)
    driver.send_signal(signal.SIGKILL)
    said = driver.communicate()[1]
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.arrow")}
    assert 2 <= len(before) < PHOTOS // SHARD, said
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{PHOTOS} rows of 96 features" in done.stdout
    assert before == {path: path.stat().st_mtime_ns for path in before}  # taken as they were
    assert digests(out) == digests(tmp_path / "here")
    assert data.load(out).labels.tolist() == here.load().labels.tolist()


def test_predictions_and_embeddings_are_those_of_this_process(cluster, tmp_path):
    changes = {"budget.epochs": 2, "budget.episodes": 20, "net.hidden": 16, "net.dim": 4}
    run = train(replace(QUICK["digits/vmf"], changes), tmp_path / "run", accelerator="cpu")
    evaluate(run)
    x = data.load("digits").inputs[:300].numpy()
    np.save(tmp_path / "x.npy", x)
    here = predict(run, [tmp_path / "x.npy"], coverage=0.9, unknown=0.05)
    plan, folder = PredictionPlan(coverage=0.9, unknown=0.05), tmp_path / ".out.parts"

    class Stopped(Exception):
        pass

    def stop(done, parts):
        assert parts == 6
        if done == 2:
            raise Stopped

    far = partial(predict_by, Ray(cluster.address), run, [tmp_path / "x.npy"], folder, plan, part=50)
    with pytest.raises(Stopped):
        far(tell=stop)
    told = []
    found = far(tell=lambda done, parts: told.append((done, parts)))
    assert told == [(3, 6), (4, 6), (5, 6), (6, 6)]
    for name in ("probabilities", "confidence", "embedding"):
        torch.testing.assert_close(getattr(found, name), getattr(here, name), rtol=1e-5, atol=1e-6)
    assert torch.equal(found.sets, here.sets)
    assert torch.equal(found.unknown, here.unknown)
    with pytest.raises(RecipeError, match="parts of other items or of another run"):
        predict_by(Ray(cluster.address), run, [tmp_path / "x.npy"], folder, PredictionPlan(), part=50)

    table = tmp_path / "far.csv"
    arguments = ["predict", str(run.path), str(tmp_path / "x.npy"), "-o", str(table), "--on", "ray"]
    outcome = CliRunner().invoke(app, [*arguments, "--address", cluster.address])
    assert outcome.exit_code == 0, outcome.output
    assert list(pd.read_csv(table)["class"].astype(str)) == list(here.table()["class"])
    assert not (tmp_path / ".far.csv.parts").exists()


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

    Ray(cluster.address).finish(study, watch)
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
