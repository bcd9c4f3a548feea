"""Ctrl-C and SIGTERM end a command in one sentence, whatever it is doing.

`benchmarks/interrupts.py` does the same to real commands at random moments.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes through /proc"),
]

STOPPED = "error: stopped; the same command goes on with what is done\n"
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


def told(code: str, *signals: signal.Signals, pause: float = 0.0) -> tuple[int, str]:
    """Run code that says `ready`, send it signals, and give its exit code and what it said on stderr."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for number in signals:
        os.killpg(process.pid, number)
        time.sleep(pause)
    _, said = process.communicate(timeout=600)
    return process.returncode, said


WAIT = """
    import sys, time
    from spaceform.cli.interrupts import one_sentence
    with one_sentence():
        print("ready", flush=True)
        {}
        sys.exit(0)
"""


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize(
    "doing",
    [
        "time.sleep(60)",
        # a library that swallows the exception, or makes another one of it
        "exec('try: time.sleep(60)\\nexcept BaseException: raise RuntimeError')",
        # an exception in a finaliser goes no further
        "exec('class A:\\n def __del__(self): time.sleep(60)\\nA()'); time.sleep(60)",
    ],
    ids=["waiting", "changed", "finaliser"],
)
def test_one_sentence_and_an_exit_code(number, doing):
    assert told(WAIT.format(doing), number) == (CODES[number], STOPPED)


@pytest.mark.parametrize("number", CODES)
def test_inside_an_import_it_leaves_at_once(tmp_path, number):
    """The slow module would make an ImportError of any exception, as compiled ones do."""
    (tmp_path / "slow.py").write_text(
        "import time\ntry:\n    time.sleep(60)\n"
        "except BaseException:\n    raise ImportError('half') from None\n"
    )
    code = f"sys.path.insert(0, {str(tmp_path)!r}); import slow"
    assert told(WAIT.format(code), number) == (CODES[number], STOPPED)


@pytest.mark.parametrize("number", CODES)
def test_inside_the_import_of_multiprocessing_too(tmp_path, number):
    """It is there then, but has no function yet that would name its children."""
    (tmp_path / "multiprocessing.py").write_text("import time\ntime.sleep(60)\n")
    first = f"sys.modules.pop('multiprocessing', 0); sys.path.insert(0, {str(tmp_path)!r})"
    code = f"{first}; import multiprocessing"
    assert told(WAIT.format(code), number) == (CODES[number], STOPPED)


def slow_to_clean_up(patience: int) -> str:
    """Code that says so where its clean-up was waited for."""
    from_now = f"import spaceform.cli.interrupts as i; i._SECONDS_TO_STOP = {patience}"
    slow = 'try: time.sleep(60)\\nfinally: time.sleep(60); print("waited", file=sys.stderr)'
    return WAIT.format(f"{from_now}; exec('{slow}')")


def test_a_second_signal_does_not_wait_for_the_clean_up():
    code = slow_to_clean_up(patience=1000)
    assert told(code, signal.SIGINT, signal.SIGINT, pause=0.5) == (130, STOPPED)


@pytest.mark.parametrize("number", CODES)
def test_a_clean_up_that_takes_too_long_is_not_waited_for(number):
    assert told(slow_to_clean_up(patience=1), number) == (CODES[number], STOPPED)


def test_a_copy_of_the_process_is_left_to_its_parent():
    code = "import os; child = os.fork(); time.sleep(1 if child == 0 else 60); child == 0 and os._exit(7)"
    assert told(WAIT.format(code), signal.SIGINT) == (130, STOPPED)


def test_an_ignored_interrupt_stays_ignored():
    code = """
        import signal, sys, time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        from spaceform.cli.interrupts import one_sentence
        with one_sentence():
            print("ready", flush=True)
            time.sleep(1)
            sys.exit(0)
    """
    assert told(code, signal.SIGINT) == (0, "")


def test_a_worker_cannot_be_interrupted_from_its_first_instruction():
    """The first process of all too, which starts Python's tracker of resources: that one unblocks signals."""
    code = """
        import signal, sys
        from pathlib import Path
        from spaceform.study.processes import _Worker

        workers = [_Worker.make(slot) for slot in range(2)]
        for worker in workers:
            worker.start()
            status = Path(f"/proc/{worker.process.pid}/status").read_text().splitlines()
            blocked = int(next(line for line in status if line.startswith("SigBlk")).split()[1], 16)
            assert all(blocked >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGTERM)), blocked
        assert not {signal.SIGINT, signal.SIGTERM} & signal.pthread_sigmask(signal.SIG_BLOCK, ())
        for worker in workers:
            worker.process.kill()
            worker.process.join()
        print("ready", flush=True)
    """
    assert told(code) == (0, "")


def test_without_a_home_matplotlib_gets_a_folder_and_a_note_says_so():
    code = """
        import os, sys
        import spaceform.report
        print("ready", flush=True)
        print(os.environ["MPLCONFIGDIR"], file=sys.stderr)
    """
    homeless = {k: v for k, v in os.environ.items() if k not in ("MPLCONFIGDIR",) and "XDG" not in k}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
        env=homeless | {"HOME": "/proc/none"},
    )
    assert "the home folder cannot be written: matplotlib keeps its files in" in done.stderr
    assert "Matplotlib created" not in done.stderr
    assert not Path(done.stderr.splitlines()[-1]).exists()  # a temporary one goes with the process
