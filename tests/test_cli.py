"""The command line: what it says, what it writes, and how it exits."""

import subprocess
import sys
import textwrap

import pytest

from spaceform import cli

FAST = ["--set", "budget.epochs=2", "--set", "budget.episodes=3", "--quiet"]


def spaceform(*arguments: str, monkeypatch, capsys) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["spaceform", *arguments])
    monkeypatch.setattr("warnings.showwarning", None)  # main sets its own
    with pytest.raises(SystemExit) as left:
        cli.main()
    said = capsys.readouterr()
    return left.value.code, said.out, said.err


@pytest.fixture
def call(monkeypatch, capsys):
    return lambda *arguments: spaceform(*map(str, arguments), monkeypatch=monkeypatch, capsys=capsys)


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
        "history.jsonl",
        "metrics.json",
        "model.safetensors",
        "outputs.npz",
        "recipe.json",
        "result.json",
    ]
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
            "not finite in epoch 0",
        ),
        (["train", "digits/cosine"], 2, "Missing option"),
        (["evaluate", "nowhere"], 2, "there is no run 'nowhere'"),
        (["data", "get", "minst"], 2, "unknown data set 'minst'; did you mean 'mnist'"),
        (["no-such-command"], 2, "No such command"),
    ],
)
def test_mistakes_are_one_sentence_and_an_exit_code(call, tmp_path, arguments, code, said):
    out = str(tmp_path / "run")
    left, _, error = call(*[out if a == "OUT" else a for a in arguments])
    assert left == code
    assert said in error
    assert "Traceback" not in error
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


def test_a_full_disk_is_one_sentence_and_the_run_goes_on_later(tmp_path):
    """A limit on the size of files, in a real process, makes the first checkpoint fail half-way."""
    out = tmp_path / "run"
    command = ["train", "digits/cosine", *FAST, "--out", str(out)]
    code = f"""
        import resource, signal, sys
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        from spaceform import cli
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
    done = subprocess.run(
        [sys.executable, "-m", "spaceform.cli", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
