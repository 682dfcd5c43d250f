"""What nobody expected is one line and exit code 70; a signal ends a run as in a shell."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plan3d.cli.main import main

ROOT = Path(__file__).parents[3]
SEARCH = ["search", "--model", "gpt3-1.3b", "--cluster", "h100-sxm", "--gpus", "8"]
SEARCH += ["--sequence", "2048", "--global-batch", "8"]


def ends_in(error):
    def progress(count):
        raise error

    return progress


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (KeyError("x\x1b[2J"), r"KeyError: 'x\x1b[2J'"),
        (MemoryError(), "MemoryError;"),
        (RecursionError("too deep"), "RecursionError: too deep"),
        (ValueError("x" * 9000), "x..."),
    ],
)
def test_an_internal_error_is_one_line(capsys, error, shown):
    assert main(SEARCH, progress=ends_in(error)) == 70
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("plan3d: internal error (")
    assert shown in err
    assert "please report" in err
    assert "--traceback" in err
    assert "\x1b" not in err
    assert len(err) < 500


def test_traceback_shows_the_rest(capsys):
    assert main([*SEARCH, "--traceback"], progress=ends_in(KeyError("x"))) == 70
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("plan3d: internal error (KeyError: 'x'")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_ends_a_solver(number, code):
    """Python ends itself by SIGINT where an interrupt met the text of a class that it compiles;
    a shell says 130 of that too."""
    words = [sys.executable, "-m", "plan3d", "search", "--model", "gpt3-175b", "--gpus", "256"]
    words += ["--cluster", "h100-sxm", "--backend", "integer-programming", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        while not listens(child.pid):
            time.sleep(0.01)
        time.sleep(1.0)
        assert child.poll() is None
        child.send_signal(number)
        child.communicate(timeout=30)
    assert child.returncode in (code, -number)


def listens(process):
    """Whether a process handles SIGTERM, where the system says so: a busy machine starts late."""
    status = Path(f"/proc/{process}/status")
    if not status.exists():
        time.sleep(1.0)
        return True
    caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt:"))
    return int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1


def test_little_is_loaded_before_signals_are_listened_to():
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import plan3d.__main__"
    code += "; print(*sys.modules)"
    words = [sys.executable, "-I", "-S", "-c", code]
    loaded = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert not {"typing", "pathlib", "re"} & set(loaded)


def test_a_signal_that_comes_with_the_end_does_not_change_its_code():
    """No thread gets its turn between SIGTERM and the end, as on a busy machine."""
    code = (
        "import io, os, signal, sys, time\n"
        "sys.setswitchinterval(100)\n"
        "class Stream(io.StringIO):\n"
        "    def flush(self):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.stdout, sys.argv = Stream(), ['plan3d', '--version']\n"
        "from plan3d.__main__ import main\n"
        "code = main()\n"
        "time.sleep(0.1)\n"
        "os._exit(code)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_grace_after_sigterm_is_counted_in_seconds_of_the_process():
    """An answer that a busy machine writes late is written."""
    program = (
        "import io, os, signal, sys, time\n"
        "class Stream(io.StringIO):\n"
        "    def flush(self):\n"
        "        try:\n"
        "            os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)\n"
        "        except KeyboardInterrupt:\n"
        "            time.sleep(1.8)\n"
        "            os.write(1, b'answer')\n"
        "            raise\n"
        "sys.stdout, sys.argv = Stream(), ['plan3d', '--version']\n"
        "from plan3d.__main__ import main\n"
        "os._exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert (done.stdout, done.returncode) == (b"answer", 143)


def test_what_an_interrupt_breaks_is_no_internal_error(capsys):
    error = ImportError("numpy._core.multiarray failed to import")
    error.__cause__ = KeyboardInterrupt()
    assert main(SEARCH, progress=ends_in(error)) == 130
    assert capsys.readouterr().err == "plan3d: interrupted\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_that_an_import_swallows_has_its_code(number, code):
    """As extension modules do, which raise errors of their own in its place."""
    program = (
        "import io, os, sys, time\n"
        "class Stream(io.StringIO):\n"
        "    def flush(self):\n"
        "        try:\n"
        f"            os.kill(os.getpid(), {int(number)}); time.sleep(5)\n"
        "        except KeyboardInterrupt:\n"
        "            pass\n"
        "        raise SystemError('initialization failed')\n"
        "sys.stdout, sys.argv = Stream(), ['plan3d', '--version']\n"
        "from plan3d.__main__ import main\n"
        "os._exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    assert done.returncode == code
