"""The command line: what it says, what it writes, and how it exits."""

import os
import pty
import re
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from spaceform import data
from spaceform.cli import app as cli
from spaceform.cli import verbosity

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

FAST = ["--set", "budget.epochs=2", "--set", "budget.episodes=3", "--quiet"]


def test_train_evaluate_and_again(call, tmp_path):
    out = tmp_path / "run"
    code, said, _ = call("train", "digits/cosine", *FAST, "--out", out)
    assert code == 0
    assert f"{out}: finished after 2 epochs" in said
    code, said, _ = call("train", "digits/cosine", *FAST, "--out", out)
    assert code == 0
    assert "already finished after 2 epochs" in said
    code, said, _ = call("evaluate", out)
    assert code == 0
    assert "calibration_error_l2" in said
    assert sorted(p.name for p in out.iterdir() if not p.name.startswith(".")) == [
        "calibrators.json",
        "held_out.npz",
        "history.jsonl",
        "metrics.json",
        "model.safetensors",
        "outputs.npz",
        "recipe.json",
        "result.json",
        "timing.json",
    ]
    np.savez(tmp_path / "x.npz", X=data.load("digits").inputs[:30].numpy())
    asked = ("predict", out, tmp_path / "x.npz", "-o", tmp_path / "sets.csv", "--unknown", "0.1")
    code, said, _ = call(*asked, "--coverage", "0.9")
    assert code == 0
    assert re.search(r"sets.csv: 30 items; \d+ unknown; [\d.]+ classes in a set", said)
    header = (tmp_path / "sets.csv").read_text().splitlines()[0]
    assert header == "item,class,probability,confidence,set,unknown"
    code, _, error = call(*asked, "--coverage", "1")
    assert code == 2
    assert error == "error: coverage must lie between 0 and 1, both excluded, got 1.0\n"
    code, _, error = call("train", "digits/cosine", *FAST, "--set", "seed=1", "--out", out)
    assert code == 2
    assert (
        error == f"error: {out} holds a run of another recipe (its seed is 0, not 1); choose another folder\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ["train", "digits/cosin", "--out", "OUT"],
            2,
            "unknown recipe 'digits/cosin'; did you mean 'digits/cosine'",
        ),
        (
            ["train", "digits/cosine", "--set", "optim.lr=-1", "--out", "OUT"],
            2,
            "optim.lr must be greater than 0",
        ),
        (["train", "digits/cosine", "--set", "data.name=digit", "--out", "OUT"], 2, "did you mean 'digits'"),
        (["train", "digits/cosine", "--out", "/proc/none/run"], 2, "/proc/none"),
        (
            ["train", "digits/standard", *FAST, "--set", "optim.lr=1e30", "--out", "OUT"],
            1,
            "not finite in epoch 1",
        ),
        (["train", "digits/cosine"], 2, "missing option '--out'; 'spaceform train -h' shows its usage"),
        (["train", "digits/cosine", "--oot", "OUT"], 2, "no such option: --oot"),
        (["train", "digits/cosine", "--devices", "two", "--out", "OUT"], 2, "'--devices'"),
        (["evaluate", "nowhere"], 2, "there is no run 'nowhere'"),
        (["data", "get", "minst"], 2, "unknown data set 'minst'; did you mean 'mnist'"),
        (["compar", "digits"], 2, "no such command 'compar'; did you mean 'compare'? 'spaceform -h' shows"),
    ],
)
def test_mistakes_are_one_sentence_and_an_exit_code(call, tmp_path, arguments, code, said):
    out = str(tmp_path / "run")
    left, _, error = call(*[out if a == "OUT" else a for a in arguments])
    assert left == code
    assert said in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    if code == 2:
        assert not (tmp_path / "run").exists()


def test_debug_shows_where(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["spaceform", "train", "nothing", "--out", str(tmp_path / "x"), "--debug"]
    )
    with pytest.raises(ValueError, match="unknown recipe 'nothing'"):
        cli.main()


def test_version_and_data(call):
    assert call("--version")[1].startswith("spaceform 0.")
    code, said, _ = call("data", "list")
    assert code == 0
    assert "fashion-mnist" in said
    code, said, _ = call("data", "check", "digits")
    assert code == 0
    assert "ok    counts: 1,797 items, 10 classes" in said


def test_a_full_disk_is_one_sentence_and_the_run_goes_on_later(call, tmp_path):
    """A limit on the size of files, in a real process, makes the first checkpoint fail half-way."""
    out = tmp_path / "run"
    command = ["train", "digits/cosine", *FAST, "--out", str(out)]
    code = f"""
        import resource, signal, sys
        sys.dont_write_bytecode = True  # Python would leave a file cut short behind
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        from spaceform.cli import app as cli
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        sys.argv = ["spaceform", *{command!r}]
        cli.main()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"error: cannot write {out / 'checkpoint.safetensors'} (File too large)")
    assert "Traceback" not in done.stderr
    assert not list(out.glob("*.safetensors"))
    assert not list(out.glob(".*.tmp"))
    code, _, told = call(*command)
    assert code == 0, told


def test_quiet_and_verbose_anywhere_in_the_line(call, tmp_path):
    out = tmp_path / "run"
    command = ["train", "digits/cosine", "--set", "budget.epochs=2", "--set", "budget.episodes=3", "--out"]
    code, said, told = call("-q", *command, out / "quiet")
    assert (code, told) == (0, "")
    assert "finished after 2 epochs" in said
    code, said, told = call(*command, out / "verbose", "--verbose")
    assert code == 0
    assert re.search(r"^spaceform 0\.\S+: [\d.]+ s, exit 0$", told.splitlines()[-1])
    code, _, told = call(*command, out / "both", "-q", "-v")
    assert (code, told) == (2, "error: --quiet and --verbose contradict each other; give one of them\n")
    code, _, told = call("evaluate", "nowhere", "--quiet")
    assert code == 2
    assert told.startswith("error: there is no run 'nowhere'")
    code, _, told = call("evaluate", "--", "--quiet")  # after a lone -- it is the name of a folder
    assert code == 2
    assert "there is no run '--quiet'" in told


def test_a_note_says_more_under_verbose_and_nothing_under_quiet(capsys):
    for level, told in (
        ("quiet", ""),
        ("normal", "note: beware\n"),
        ("verbose", "note: beware (UserWarning, a.py:7)\n"),
    ):
        verbosity.set_level(level)
        cli._note("beware", UserWarning, "a.py", 7)
        assert capsys.readouterr().err == told
    verbosity.set_level("normal")


def in_a_terminal(*command: str, **environment: str) -> str:
    """What the command writes where its output is a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    full = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm-256color"} | environment
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=full)
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux says so at the end
            break
        if not part:
            break
        said += part
    os.close(ours)
    assert process.wait() == 0
    return said.decode()


def test_no_color_is_honoured():
    colour = re.compile("\x1b\\[[0-9;]*(?:3[0-7]|9[0-7]|38;[0-9;]+)m")
    command = (sys.executable, "-m", "spaceform", "--help")
    assert colour.search(in_a_terminal(*command))
    assert not colour.search(in_a_terminal(*command, NO_COLOR="1"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_and_completes(shell):
    def run(*arguments: str, **environment: str) -> str:
        done = subprocess.run(
            [str(Path(sys.executable).with_name("spaceform")), *arguments],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"} | environment,
        )
        return done.stdout

    assert "_SPACEFORM_COMPLETE" in run("--show-completion", shell)
    words = {"COMP_WORDS": "spaceform ex", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "spaceform ex"}
    fish = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"} if shell == "fish" else {}
    assert "export" in run(_SPACEFORM_COMPLETE=f"complete_{shell}", **words, **fish)


def cpu_seconds(code: str) -> float:
    """The processor's seconds of a fresh process: neighbours on the machine hardly count."""
    # compiled files where Python keeps them: what it costs to compile is paid at installation
    kept = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE")
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT, env=kept)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_takes_less_than_a_second():
    command = "from spaceform.__main__ import main; import sys; sys.argv[1:] = ['--help']; main()"
    assert min(cpu_seconds(command) for _ in range(2)) < 1


def test_the_import_adds_little_to_that_of_torch():
    """Less than 0.3 s, and less than a third of torch's own with all of the core's modules in use."""
    code = """
        from time import process_time as now
        began = now(); import torch; torch_took = now() - began
        began = now(); import spaceform; assert now() - began < 0.3, now() - began
        spaceform.HEADS, spaceform.metrics, spaceform.calibrators, spaceform.special
        assert now() - began < max(0.3, torch_took / 3), (now() - began, torch_took)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
