"""``python -m sla_accelerate.run``: the script is what it would be alone, and watched."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from _launch import free_port

from ._runs import entries, messages, told

SCRIPTS = Path(__file__).parent / "_scripts"

# Says what a script can see of how it was started, and ends in the way that is asked for.
SEEN = """
import json, os, pickle, signal, sys, threading

class Own: pass

main = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv, "name": __name__, "file": __file__, "path": sys.path, "package": __package__,
    "spec": __spec__ and __spec__.name, "pickled": type(pickle.loads(pickle.dumps(Own()))).__name__,
    "heavy": [name for name in ("torch", "accelerate", "numpy") if name in sys.modules],
    "names": sorted(vars(main)), "is_main": vars(main) is globals(),
}))

def fail(kind):
    raise kind("the user's own")

how = sys.argv[1]
if how == "code":
    sys.exit(7)
if how == "text":
    sys.exit("the end")
if how == "chain":
    try:
        fail(KeyError)
    except KeyError as error:
        raise RuntimeError("after it") from error
if how == "interrupt":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)
if how == "exit hook":
    import atexit
    atexit.register(lambda: print(Own.__name__, __name__))
"""


def python(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs this Python with these words."""
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.smoke
@pytest.mark.slow
@pytest.mark.parametrize("how", ["", "code", "text", "chain", "interrupt", "exit hook"])
def test_a_script_is_what_it_is_alone(tmp_path, how):
    """
    Arguments, names, path, ``__main__``, output, traceback and exit status are those of the
    script run by itself, and nothing heavy is imported for it.
    """
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "script.py").write_text(SEEN)
    alone = python("folder/script.py", how, cwd=tmp_path)

    watched = python("-m", "sla_accelerate.run", "folder/script.py", how, cwd=tmp_path)

    assert json.loads(alone.stdout.splitlines()[0])["argv"] == ["folder/script.py", how]
    assert watched.stdout == alone.stdout
    assert watched.stderr == alone.stderr
    assert watched.returncode == alone.returncode


@pytest.mark.slow
def test_a_module_is_what_it_is_alone(tmp_path):
    """
    The same for a module, or the ``__main__`` of a package; of the traceback only Python's own
    first lines are missing.
    """
    (tmp_path / "script.py").write_text(SEEN)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "__main__.py").write_text(SEEN)
    for name in ("script", "package"):
        alone = python("-m", name, "chain", cwd=tmp_path)

        watched = python("-m", "sla_accelerate.run", "-m", name, "chain", cwd=tmp_path)

        assert watched.stdout == alone.stdout
        assert watched.stderr == re.sub(r"  File \"<frozen runpy>\".*\n", "", alone.stderr)
        assert watched.returncode == alone.returncode == 1


@pytest.mark.slow
def test_a_script_with_a_mistake_fails_as_it_does_alone(tmp_path):
    """
    What does not compile is shown as Python shows it.
    """
    (tmp_path / "script.py").write_text("def f(:\n")

    alone = python("script.py", cwd=tmp_path)
    watched = python("-m", "sla_accelerate.run", "script.py", cwd=tmp_path)

    assert (watched.stderr, watched.returncode) == (alone.stderr, alone.returncode)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "got nothing"),
        (["--fast", "x.py"], "got --fast x.py"),
        (["x.py"], "no file 'x.py'"),
        (["-m"], "the name of a module"),
        (["-m", "nowhere.to.be.found"], "no module 'nowhere.to.be.found'"),
    ],
)
def test_nothing_to_run_is_said_in_one_line(tmp_path, words, said):
    """
    Without a script that can be run the exit code is 2, and one line says what is needed.
    """
    ended = python("-m", "sla_accelerate.run", *words, cwd=tmp_path)

    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert said in ended.stderr and "usage: " in ended.stderr
    assert ended.stdout == ""


@pytest.mark.ranks
@pytest.mark.parametrize(
    "kind", ["own", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("plain", "named"))]
)
def test_every_accelerator_of_a_script_is_watched(ranks, kind):
    """
    However a script comes by its accelerator, two ranks that know of no contract train under
    one.
    """
    env = {"ACCELERATE_USE_CPU": "true"}
    ended = ranks("run_unchanged.py", str(SCRIPTS / "unchanged.py"), kind, env=env)

    assert ended.succeeded(), ended
    assert messages(ranks.run_dir, "start")[0].startswith("Watching 2 rank(s)")
    assert messages(ranks.run_dir, "end") == ["Training ended."]
    made = told(ended.out[1], "made")
    name = "Own" if kind == "own" else "SLAAccelerator"
    assert (made["type"], made["num_steps"], made["ranks"]) == (name, 10, 2)


@pytest.mark.ranks
@pytest.mark.slow
def test_a_planned_fault_acts_in_an_unchanged_script(launch):
    """
    A fault that the environment plans ends the script as an exception of its own would, and
    the ledger names it.
    """
    ended = launch.command(
        *("-m", "sla_accelerate.run", str(SCRIPTS / "unchanged.py"), "named"),
        env={
            "ACCELERATE_USE_CPU": "true",
            "SLA_INJECT": "exception:rank=0,step=4",
            "SLA_RUN_DIR": str(launch.folder / "runs"),
        },
    )

    assert ended.exit_codes == {-1: 1}
    (first,) = entries(launch.folder / "runs", "first_exception")
    assert (first.rank, first.step) == (0, 4)
    assert "unchanged.py" in ended.err[-1] and "run.py" not in ended.err[-1]


@pytest.mark.ranks
@pytest.mark.thorough
@pytest.mark.slow
def test_accelerate_launch_runs_it(launch):
    """
    ``accelerate launch --config_file`` starts two ranks of an unchanged script under contract.
    """
    config = launch.folder / "x.yaml"
    config.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_machines: 1\n"
        "num_processes: 2\nmachine_rank: 0\nmixed_precision: 'no'\n"
    )
    port = str(free_port())
    ended = launch.command(
        *("-m", "accelerate.commands.launch", "--config_file", str(config)),
        *("--main_process_port", port, "-m", "sla_accelerate.run"),
        *(str(SCRIPTS / "unchanged.py"), "own"),
        env={"ACCELERATE_USE_CPU": "true", "SLA_RUN_DIR": str(launch.folder / "runs")},
    )

    assert ended.succeeded(), ended
    assert told(ended.out[-1], "made")["ranks"] == 2
    assert ended.out[-1].count('"tell"') == 2
    assert messages(launch.folder / "runs", "end") == ["Training ended."]
