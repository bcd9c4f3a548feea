"""Interrupt commands at random moments of a busy machine: each must end in one sentence, without a traceback.

    python benchmarks/interrupts.py --moments 100 --together 4 --out results/benchmarks/interrupts.json

Takes `compare` (of pictures and of features), `search`, `train` and `predict` in turn, each from its
beginning; those that run at the same time are the load of each other. Ctrl-C goes to every process of the
command, as a terminal sends it; SIGTERM to every process, or to the first alone, as clusters and containers
do. Moments lie anywhere between the first and the last of a command: the first is when it has its handlers
in place (before that, Python itself is starting), the last is measured. They are counted in processor seconds
of all its processes, so that a moment is the same one however busy the machine is. Prints one line for each
moment, and ends with 1 if any was wrong. Moments that the record holds already are not tried again, so that
the same command goes on where it was stopped.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STOPPED = "error: stopped; the same command goes on with what is done"
SHORT = ["--set", "budget.epochs=10", "--set", "budget.episodes=10"]
COMMANDS = {
    "compare": "report:",
    "features": "report:",
    "search": "--recipes",
    "train": "finished after",
    "predict": "items",
}
"""What is interrupted, and what it says when all is done."""
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@dataclass(frozen=True)
class Found:
    """How a command ended."""

    code: int
    result: str
    """What it said on standard output."""
    said: str
    """What it said on standard error."""
    seconds: float
    """From the signal to the end of every process."""


def command(name: str, folder: Path, tag: str) -> list[str]:
    """What is interrupted, in an empty folder; `predict` takes the run that `prepare` made."""
    out = str(folder / f"{name}-{tag}")
    match name:
        case "compare":
            heads = ["--heads", "cosine,vmf", "--seeds", "2"]
            return ["compare", "digits", *heads, *SHORT, "--processes", "2", "--out", out]
        case "features":
            heads = ["--heads", "cosine,vmf", "--seeds", "2", "--search", "3"]
            return ["compare", str(folder / "features.npz"), *heads, "--processes", "2", "--out", out]
        case "search":
            trials = ["--head", "cosine", "--trials", "6"]
            return ["search", "digits", *trials, *SHORT, "--processes", "2", "--out", out]
        case "train":
            return ["train", "digits/vmf", "--set", "budget.epochs=30", "--out", out]
        case _:
            return ["predict", str(folder / "run"), str(folder / "many.npz"), "-o", f"{out}.csv"]


def prepare(folder: Path) -> None:
    """Features, a finished run, and enough rows that predicting takes a while."""
    import numpy as np
    from sklearn.datasets import load_digits

    spaceform("train", "digits/vmf", "--set", "budget.epochs=2", "--out", str(folder / "run"), "--quiet")
    digits = load_digits()
    np.savez(folder / "features.npz", X=digits.data, y=digits.target)
    images = digits.images[:, None].repeat(60, 0)
    np.savez(folder / "many.npz", X=(images * (255 / 16)).astype(np.uint8))


def spaceform(*arguments: str) -> float:
    """Run a command to its end; processor seconds of all its processes."""
    process = subprocess.Popen([sys.executable, "-m", "spaceform", *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"spaceform {' '.join(arguments)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def worked(group: int) -> float:
    """Processor seconds of a group so far, those of its ended processes included."""
    ticks = 0
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has just ended
            continue
        if int(fields[2]) == group:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def start(arguments: list[str], result: Path, log: Path) -> subprocess.Popen[bytes]:
    """A command in a session of its own; what it and its children say goes to two files."""
    with open(result, "wb") as output, open(log, "wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "spaceform", *arguments],
            stdout=output,
            stderr=file,
            start_new_session=True,
            # a shell starts background jobs with interrupts ignored, and children inherit that
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )


def ready(process: subprocess.Popen[bytes]) -> bool:
    """Whether SIGTERM is caught: Python alone does not."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return False
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def wait_until_ready(process: subprocess.Popen[bytes]) -> None:
    """Return once the command has put its handlers in place, or has ended."""
    while process.poll() is None and not ready(process):
        time.sleep(0.001)


def interrupt(arguments: list[str], after: float, number: signal.Signals, whole: bool, place: Path) -> Found:
    """Send a signal after a share of a command's work, in processor seconds, and wait for the end."""
    result, log = place.with_suffix(".result"), place.with_suffix(".said")
    process = start(arguments, result, log)
    wait_until_ready(process)
    while process.poll() is None and worked(process.pid) < after:
        time.sleep(0.05 * random.random())
    began = time.monotonic()
    if process.poll() is None:
        os.killpg(process.pid, number) if whole else process.send_signal(number)
    code = process.wait(timeout=1200)
    while members(process.pid) and time.monotonic() - began < 300:
        time.sleep(0.05)
    told = [path.read_text(errors="replace") for path in (result, log)]
    return Found(code, *told, time.monotonic() - began)


def members(group: int) -> list[int]:
    """Processes of a group that are alive."""
    listed = subprocess.run(
        ["ps", "-e", "-o", "pid=,pgid=,stat="], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in listed.stdout.splitlines()]
    return [int(pid) for pid, pgid, state in rows if int(pgid) == group and not state.startswith("Z")]


def wrong(found: Found, number: signal.Signals, end: str) -> str:
    """What is wrong with an end; empty where all is well."""
    if "Traceback" in found.said or "Exception ignored" in found.said:
        return "traceback"
    if found.code in (0, -number):  # it was faster; in its last instant Python is ended by the signal itself
        return "" if end in found.result else "no result"
    if found.code != CODES[number]:
        return f"exit code {found.code}"
    return "" if found.said.count(STOPPED) == 1 else "not one sentence"


def ended(found: Found, fault: str) -> str:
    """How a command ended, in words."""
    if fault:
        return fault
    return "before the signal" if found.code not in CODES.values() else f"one sentence, exit {found.code}"


def attempt(moment: int, name: str, longest: float, seed: int, folder: Path) -> dict[str, Any]:
    """Interrupt a command once, at a moment that the seed decides."""
    draw = random.Random(f"{seed}/{moment}")
    after = longest * draw.random()
    number = draw.choice([signal.SIGINT, signal.SIGINT, signal.SIGTERM])
    whole = number == signal.SIGINT or draw.random() < 0.5
    arguments = command(name, folder, str(moment))
    found = interrupt(arguments, after, number, whole, folder / f"moment-{moment}")
    fault = wrong(found, number, COMMANDS[name])
    if fault:
        print(found.said, flush=True)
    return {
        "moment": moment,
        "command": name,
        "signal": number.name,
        "to": "all" if whole else "one",
        "after_cpu_s": round(after, 2),
        "of_cpu_s": round(longest, 2),
        "ended": ended(found, fault),
        "wrong": bool(fault),
        "took_s": round(found.seconds, 2),
        "others_at_work": round(os.getloadavg()[0], 1),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How many moments ended how, of each command and in all."""
    counts = {name: Counter(row["ended"] for row in rows if row["command"] == name) for name in COMMANDS}
    whole = Counter(row["ended"] for row in rows)
    return {"moments": len(rows), "wrong": sum(row["wrong"] for row in rows), "ended": whole, **counts}


def write(path: Path | None, rows: list[dict[str, Any]], load: int, together: int) -> None:
    """Keep what was found so far."""
    if path is None:
        return
    from spaceform.run.environment import environment

    made = {"made_with": environment(), "busy_loops": load, "commands_at_once": together}
    made |= {"summary": summary(rows), "rows": sorted(rows, key=lambda row: row["moment"])}
    path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Interrupt, and say what happened."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--moments", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--load", type=int, default=0, help="processes that keep the machine busy meanwhile")
    parser.add_argument("--together", type=int, default=1, help="commands that run at the same time")
    parser.add_argument("--only", choices=COMMANDS)
    parser.add_argument("--out", type=Path, help="the record; it is gone on with where there is one")
    options = parser.parse_args()
    known = options.out is not None and options.out.exists()
    rows = json.loads(options.out.read_text(encoding="utf-8"))["rows"] if known else []
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.load)]
    try:
        with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(options.together) as pool:
            folder = Path(place)
            prepare(folder)
            names = [options.only] if options.only else list(COMMANDS)
            whole = pool.map(lambda name: spaceform(*command(name, folder, "whole"), "--quiet"), names)
            longest = dict(zip(names, whole, strict=True))
            print(
                "to the end:", ", ".join(f"{name} {work:.0f} s" for name, work in longest.items()), flush=True
            )

            def one(moment: int) -> dict[str, Any]:
                name = names[moment % len(names)]
                return attempt(moment, name, longest[name], options.seed, folder)

            left = set(range(options.moments)) - {row["moment"] for row in rows}
            for done in as_completed([pool.submit(one, moment) for moment in sorted(left)]):
                rows.append(done.result())
                print(*rows[-1].values(), flush=True)
                write(options.out, rows, options.load, options.together)
    finally:
        for process in busy:
            process.kill()
    bad = sum(row["wrong"] for row in rows)
    print(f"{len(rows)} moments, {bad} wrong")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
