"""What a value was made with: commands that can be typed again, and the commit of the project alone."""

import subprocess

from spaceform.run.environment import _command, _commit, environment, versions


def test_commands_are_those_that_were_typed():
    assert _command(["/somewhere/bin/spaceform", "compare", "digits"]) == "spaceform compare digits"
    assert _command(["/somewhere/spaceform/__main__.py", "train", "x"]) == "spaceform train x"
    assert _command(["benchmarks/questions.py", "all"]) == "python benchmarks/questions.py all"
    assert _command(["/somewhere/benchmarks/questions.py", "all"]) == "python questions.py all"


def test_the_commit_is_that_of_the_project_and_of_no_other(tmp_path):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], cwd=tmp_path, check=True)
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    found = _commit(tmp_path)
    assert found
    assert asked.stdout.startswith(found)
    inside = tmp_path / "venv" / "lib" / "site-packages" / "spaceform"
    inside.mkdir(parents=True)
    assert _commit(inside.parents[1]) is None


def test_versions_name_no_command():
    assert versions().keys() == environment().keys() - {"command", "date"}
    assert versions()["torch"]
