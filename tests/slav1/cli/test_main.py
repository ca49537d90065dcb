"""The command itself: help, mistakes, interruptions, and what it must not load."""

import re
import signal

import pytest

import slav1
from slav1.cli._output import print_table
from slav1.cli.program import FAILED, READER_GONE
from slav1.ledger import Entry

# What a drawn box or a traceback would show.
ADORNMENT = re.compile(r"[\u2500-\u257f]|Traceback|File \"")

MISTAKES = [
    (["frobnicate"], ["frobnicate", "contract, demo, replay, verdict, verify"]),
    (["--frob"], ["--frob", "contract, demo, replay, verdict, verify"]),
    (["contract", "shwo"], ["shwo", "check, show"]),
    (["contract", "show"], ["sla contract show", "LEVEL"]),
    (["contract", "show", "L4"], ["'L4'", "L1, L2, L3"]),
    (["contract", "show", "l1"], ["'l1'", "Did you mean L1?"]),
    (["contract", "show", "L1", "L2"], ["L2", "sla contract show"]),
    (["contract", "show", "L1", "--jsn"], ["--jsn", "sla contract show"]),
    (["contract", "check"], ["FILE", "sla contract check"]),
    (["contract", "check", "no/such.yaml"], ["no/such.yaml", "path of a contract"]),
    (["contract", "check", "/"], ["is no file"]),
    (["verdict"], ["RUN_DIR", "sla verdict"]),
    (["verdict", "no/such/run"], ["no/such/run", "run folder"]),
    (["verdict", "--contract"], ["--contract"]),
    (["verify"], ["PATH", "sla verify"]),
    (["verify", "no/such.pt"], ["no/such.pt", "is not a checkpoint"]),
    (["replay"], ["FILE.csv|RUN_DIR"]),
    (["replay", "no/such.csv"], ["no/such.csv"]),
    (["demo", "--ranks", "two"], ["--ranks", "sla demo"]),
]


@pytest.mark.parametrize(("words", "parts"), MISTAKES, ids=[" ".join(m[0]) for m in MISTAKES])
def test_a_mistake_is_one_line_and_status_2(sla, words, parts):
    """
    A mistake on the command line says on one line of stderr what is wrong and what is
    right, prints nothing else, and ends with status 2.
    """
    result = sla(*words)

    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("sla: ")
    assert result.err.count("\n") == 1
    assert not ADORNMENT.search(result.err)
    for part in parts:
        assert part in result.err


@pytest.mark.parametrize(
    "words",
    [[], ["--help"], ["-h"], ["contract"], ["contract", "check", "--help"], ["verdict", "-h"]],
)
def test_help_is_no_mistake(sla, words):
    """
    Without a command, or asked for help, it prints help and ends with status 0.
    """
    result = sla(*words)

    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("Usage: sla")
    assert not ADORNMENT.search(result.out)


def test_version_is_told(sla):
    """
    It prints the version that is installed, and ends with status 0.
    """
    result = sla("--version")

    assert (result.status, result.err) == (0, "")
    assert result.out == f"slav1 {slav1.__version__}\n"


def test_help_names_every_command(sla):
    """
    The help of ``sla`` names all commands there are.
    """
    out = sla().out

    for command in ("contract", "demo", "replay", "verdict", "verify"):
        assert f"\n  {command} " in out


@pytest.mark.slow
def test_the_demo_is_loaded_only_when_it_is_meant(start_sla):
    """
    Printing a contract loads neither torch nor lightning nor the demo.
    """
    before = (
        "import atexit, sys\n"
        "heavy = ('torch', 'numpy', 'lightning', 'accelerate', 'slav1.cli.demo')\n"
        "atexit.register(lambda: print([n for n in heavy if n in sys.modules], file=sys.stderr))"
    )

    process = start_sla("contract", "show", "L1", before=before)
    out, err = process.communicate(timeout=60)

    assert process.returncode == 0
    assert out.startswith("level: L1")
    assert err == "[]\n"


@pytest.mark.slow
def test_an_unreadable_letter_is_no_traceback(start_sla, tmp_path):
    """
    On a terminal without the letters of a message, the message is still printed.
    """
    (tmp_path / "contract.yaml").write_text("level: L1\n")
    breach = Entry(time_ns=0, attempt=0, kind="breach", rule="hang", message="Rang détaché.")
    (tmp_path / "ledger.jsonl").write_text(breach.to_json() + "\n")
    before = "import sys; sys.stdout.reconfigure(encoding='ascii')"

    process = start_sla("verdict", tmp_path, before=before)
    out, err = process.communicate(timeout=60)

    assert process.returncode == 3
    assert "Rang d\\xe9tach\\xe9." in out
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_reader_that_leaves_ends_it_quietly(start_sla):
    """
    When what reads the output closes it, the command ends without a word.
    """
    before = "import sys; print('ready', file=sys.stderr, flush=True); sys.stdin.readline()"
    process = start_sla("contract", "show", "L1", before=before)
    assert process.stderr.readline() == "ready\n"
    process.stdout.close()
    process.stdin.close()

    process.wait(timeout=60)

    assert process.returncode == READER_GONE
    assert process.stderr.read() == ""


@pytest.mark.slow
def test_a_full_disk_under_the_output_is_one_line(start_sla):
    """
    Where there is no room for the output, one line says so, and the status is neither that
    of success nor that of a finding.
    """
    process = start_sla(
        "contract", "show", "L1", before="import sys; sys.stdout = open('/dev/full', 'w')"
    )
    _, err = process.communicate(timeout=60)

    assert process.returncode == FAILED
    assert err == "sla: standard output can't be written to: No space left on device.\n"


@pytest.mark.slow
def test_closed_outputs_are_no_traceback(start_sla):
    """
    Started without standard output or standard error, as by a scheduler, a command ends with
    its usual status, and what is meant for one is never written into the other.
    """
    no_out = start_sla("contract", "show", "L1", before="import sys; sys.stdout = None")
    assert no_out.communicate(timeout=60)[1] == ""
    assert no_out.returncode == 0

    no_err = start_sla("contract", "show", "L4", before="import sys; sys.stderr = None")
    assert no_err.communicate(timeout=60)[0] == ""
    assert no_err.returncode == 2


@pytest.mark.parametrize("num_columns", [30, 100])
def test_a_narrow_terminal_loses_no_column(monkeypatch, capsys, num_columns):
    """
    On a terminal that has no room for the last column rows are left to the terminal to wrap.
    """
    monkeypatch.setenv("COLUMNS", str(num_columns))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)

    print_table(["clause", "verdict", "why"], [["replica_divergence", "met", "8 samples."]])

    out = capsys.readouterr().out
    assert all(part in out for part in ("clause", "why", "replica_divergence", "met", "8 samples."))


@pytest.mark.slow
def test_ctrl_c_ends_it_quietly(start_sla):
    """
    Ctrl-C ends a command with status 130 and without a word.
    """
    before = (
        "import signal, slav1.cli._main as m, time\n"
        # A shell starts what runs in the background with this signal ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def wait(*_, **__):\n"
        "    print('waiting', flush=True)\n"
        "    time.sleep(60)\n"
        "m._run = wait"
    )
    process = start_sla("contract", "show", "L1", before=before)
    assert process.stdout.readline() == "waiting\n"

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)

    assert (process.returncode, err) == (130, "")
