"""Files are whole or not there; what is torn, altered or foreign is known."""

import errno
import os
import resource
import signal
import subprocess
import sys
import textwrap

import pytest
import safetensors.torch
import torch

from spaceform.run import files
from spaceform.run.recipe import RecipeError

pytestmark = pytest.mark.slow


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(5, 7, generator=generator),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "count": torch.tensor(7),
        "half": torch.randn(4, generator=generator).bfloat16(),
        "mask": torch.tensor([True, False]),
        "turned": torch.randn(3, 4, generator=generator).T,
    }


def test_round_trip_is_exact(tmp_path):
    state = {"epoch": 3, "score": 0.1 + 0.2, "none": None, "names": ["ä", "<script>"]}
    files.save_checkpoint(tmp_path, tensors(), state)
    read, back = files.latest_checkpoint(tmp_path)
    assert back == state
    assert read.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_nothing_there_is_none(tmp_path):
    assert files.latest_checkpoint(tmp_path) is None


def test_the_previous_one_is_kept(tmp_path):
    for epoch in range(3):
        files.save_checkpoint(tmp_path, tensors(epoch), {"epoch": epoch})
    assert files.read_tensors(tmp_path / files.CURRENT)[1] == {"epoch": 2}
    assert files.read_tensors(tmp_path / files.PREVIOUS)[1] == {"epoch": 1}
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([files.CURRENT, files.PREVIOUS])


def torn(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    return content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]


def other_state(content: bytes) -> bytes:
    at = content.index(b"epoch")
    return content[:at] + content[at:].replace(b": 1", b": 9", 1)


def foreign(_: bytes) -> bytes:
    return safetensors.torch.save({"w": torch.zeros(3)})


def pickled(content: bytes) -> bytes:
    return b"\x80\x04\x95" + content[:50]


@pytest.mark.parametrize("damage", [torn, flipped, other_state, foreign, pickled, lambda _: b""])
def test_damage_is_seen_and_the_previous_used(tmp_path, damage):
    files.save_checkpoint(tmp_path, tensors(0), {"epoch": 0})
    files.save_checkpoint(tmp_path, tensors(1), {"epoch": 1})
    path = tmp_path / files.CURRENT
    before = path.read_bytes()
    path.write_bytes(damage(before))
    assert path.read_bytes() != before
    with pytest.raises(files.CheckpointError, match=files.CURRENT):
        files.read_tensors(path)
    with pytest.warns(UserWarning, match="set aside"):
        read, state = files.latest_checkpoint(tmp_path)
    assert state == {"epoch": 0}
    assert torch.equal(read["w"], tensors(0)["w"])
    files.save_checkpoint(tmp_path, tensors(2), {"epoch": 2})  # the damaged one is out of the way
    assert files.read_tensors(tmp_path / files.PREVIOUS)[1] == {"epoch": 0}


def test_both_damaged_is_none(tmp_path):
    files.save_checkpoint(tmp_path, tensors(0), {"epoch": 0})
    files.save_checkpoint(tmp_path, tensors(1), {"epoch": 1})
    for name in (files.CURRENT, files.PREVIOUS):
        (tmp_path / name).write_bytes(b"nothing")
    with pytest.warns(UserWarning, match="set aside"):
        assert files.latest_checkpoint(tmp_path) is None


def test_a_full_disk_leaves_what_was_there(tmp_path):
    """A real limit on file size, in a process of its own, stands in for the disk: a write fails half-way."""
    files.save_checkpoint(tmp_path, tensors(0), {"epoch": 0})
    code = f"""
        import resource, signal, sys
        sys.dont_write_bytecode = True  # Python would leave a file cut short behind
        import torch
        from pathlib import Path
        from spaceform.run import files
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            files.save_checkpoint(Path({str(tmp_path)!r}), {{"w": torch.zeros(100_000)}}, {{"epoch": 1}})
        except OSError as error:
            print(error.errno, error.strerror)
    """
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    ).stdout
    assert said.startswith(f"{errno.EFBIG} cannot write {tmp_path / files.CURRENT} (File too large)")
    assert [p.name for p in tmp_path.iterdir()] == [files.CURRENT]
    assert files.latest_checkpoint(tmp_path)[1] == {"epoch": 0}
    assert resource.getrlimit(resource.RLIMIT_FSIZE) != (100_000, 100_000)


@pytest.mark.skipif(os.name != "posix", reason="permissions of another kind")
def test_others_may_read_what_the_umask_lets_them(tmp_path):
    before = os.umask(0o022)
    try:
        files.write_bytes(tmp_path / "file", b"1")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(OSError, match=r"cannot write .*nowhere.*No such file"):
        files.write_json(tmp_path / "nowhere" / "x.json", {})


def test_json_refuses_nan_before_it_touches_the_file(tmp_path):
    path = tmp_path / "x.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="Out of range float"):
        files.write_json(path, {"a": float("nan")})
    assert path.read_text() == '{\n  "a": 1\n}\n'


def test_killed_while_saving_one_is_always_whole(tmp_path):
    """A process that does nothing but save is killed again and again; one checkpoint is always readable."""
    code = f"""
        import itertools, torch
        from pathlib import Path
        from spaceform.run import files
        print("ready", flush=True)
        for epoch in itertools.count():
            w = torch.full((200_000,), float(epoch))
            files.save_checkpoint(Path({str(tmp_path)!r}), {{"w": w}}, {{"epoch": epoch}})
    """
    for delay in (0.02, 0.07):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
        )
        process.stdout.readline()
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        found = files.latest_checkpoint(tmp_path)
        if found is not None:
            read, state = found
            assert torch.equal(read["w"], torch.full((200_000,), float(state["epoch"])))
    files.remove_checkpoints(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_only_the_last_line_of_a_growing_file_may_be_damaged(tmp_path):
    path = tmp_path / "trials.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert files.read_lines(path, growing=True) == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1}\n{"a"\n{"a": 3}\n')
    with pytest.raises(RecipeError, match=r"trials.jsonl cannot be read \(.*, in line 2\); restore the file"):
        files.read_lines(path, growing=True)
