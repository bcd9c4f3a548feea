"""Heads whose classes are split over processes: four gloo processes against one that holds everything."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from spaceform.heads import HEADS

sys.path.insert(0, str(Path(__file__).parent))
import four_processes as four

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What four processes wrote; they are started once."""
    folder = tmp_path_factory.mktemp("four")
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(here / "four_processes.py"), str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def found(folder):
    """One record of each rank."""
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(four.RANKS)]


def test_every_shardable_head_is_tried():
    tried = {name for name, _ in four.HEAD_CASES.values()}
    assert tried == {name for name, head in HEADS.items() if head.shardable}


def test_objective_and_gradients_are_those_of_one_process(found):
    for of_rank in found:
        assert len(of_rank["exactness"]) == 2 * len(four.HEAD_CASES) * len(four.BATCHES)
        for case, worst in of_rank["exactness"].items():
            assert {"objective", "dz", "weight"} <= set(worst)
            assert max(worst.values()) < 1e-6, (case, worst)


def test_the_most_probable_classes_are_those_of_one_process(found):
    for of_rank in found:
        for title, case in of_rank["predictions"].items():
            assert case["labels"] == 0, title
            assert max(case["probability"], case["whole"]) < 1e-12, title


def test_a_head_that_nobody_holds_whole_starts_as_a_whole_one(found):
    for rank, of_rank in enumerate(found):
        for case in of_rank["many_classes_of_few"].values():
            assert case["rows"] == (501, 501, 501, 499)[rank]
            assert case["distinct"] == 1.0
            assert case["spread"] == pytest.approx(1, abs=0.03)  # 12,012 numbers: five standard errors
            assert case["prediction"] < 1e-5


def test_bytes_received_follow_the_formula(found):
    for of_rank in found:
        for counted, formula in of_rank["communication"].values():
            assert counted == formula


def test_the_best_classes_are_found_without_gathering_logits(found):
    """Rows of all ranks, a reduction of one number a row, and three probabilities and labels of each rank."""
    rows, share = 8 * four.RANKS, (four.RANKS - 1) / four.RANKS
    for of_rank in found:
        few, many = of_rank["bytes_of_top_k"]["40"], of_rank["bytes_of_top_k"]["4000"]
        assert few == many
        assert few <= share * rows * (4 * four.DIM + 2 * 2 * 2 * 4 + four.RANKS * 3 * (4 + 8))


def test_classes_are_split_along_one_axis_of_a_mesh(found):
    for rank, of_rank in enumerate(found):
        found_there = dict(of_rank["along_an_axis"])
        assert found_there.pop("rows") == (5, 4)[rank % 2]
        assert max(found_there.values()) < 1e-12


def test_a_head_beside_ddp_trains_as_in_one_process(found):
    for of_rank in found:
        assert max(of_rank["beside_ddp"].values()) < 1e-12


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_four_ranks_save_and_two_or_one_load_the_same_bits(found, folder):
    for of_rank in found:
        assert of_rank["checkpoint"]["two ranks"]
        assert of_rank["checkpoint"]["rows"] == 5
        assert "exp_avg/weight" in of_rank["checkpoint"]["keys"]
    state = four.empty_state(HEADS["vmf"](four.DIM, 10))
    dcp.load(state, checkpoint_id=folder / "saved", no_dist=True)
    wanted = torch.load(folder / "wanted.pt")
    assert set(state) == set(wanted)
    assert all(torch.equal(state[key], wanted[key]) for key in wanted)


def test_a_sample_of_classes_is_biased_by_the_classes_it_leaves_out(found):
    """With a share r of the classes the sum is about r times as large: the objective is lower by log 1/r."""
    sampled = found[0]["sampled"]
    assert sampled["1.0"]["bias"] == pytest.approx(0, abs=1e-12)
    assert sampled["0.5"]["bias"] == pytest.approx(-0.69, abs=0.15)
    assert sampled["0.1"]["bias"] == pytest.approx(-2.3, abs=0.3)
    for of_rank in found:
        for share, case in of_rank["sampled"].items():
            assert case["touched"] == pytest.approx(float(share))
            assert case["targets"]


def test_what_cannot_be_is_refused_in_one_sentence(found):
    said = found[0]["refusals"]
    assert "HyperbolicHead cannot be split" in said["hyperbolic"]
    assert "split already" in said["twice"]
    assert "5 classes over 4 ranks" in said["few"]
    assert "got 0.0" in said["sample"]
    assert "2 of 8" in said["smoothing"]
    assert "top_k" in said["proba"]
    assert "got 9" in said["k"]


def test_top_k_in_one_process():
    head, z = HEADS["vmf"](5, 7), torch.randn(3, 5)
    p, label = head.top_k(z, 2)
    wanted = head.predict_proba(z)
    torch.testing.assert_close(p, wanted.topk(2).values)
    assert torch.equal(label, wanted.topk(2).indices)
