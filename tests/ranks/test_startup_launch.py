"""What the tests themselves rely on: real ranks, and a check that nothing stays behind."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.ranks, pytest.mark.slow]


def is_running(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_ranks_get_their_places_and_own_logs(launch):
    """
    Every rank runs with its own rank, the same world size and port, and one thread;
    what it writes and how it ends is kept apart.
    """
    ended = launch(
        """
        import os, sys
        e = os.environ
        print(e["RANK"], e["WORLD_SIZE"], e["LOCAL_RANK"], e["OMP_NUM_THREADS"], e["MASTER_PORT"])
        print("bad", e["RANK"], file=sys.stderr)
        sys.exit(int(e["RANK"]) * 3)
        """,
        num_ranks=2,
    )

    assert ended.exit_codes == {0: 0, 1: 3}
    assert ended.out[0].split()[:4] == ["0", "2", "0", "1"]
    assert ended.out[0].split()[4] == ended.out[1].split()[4]
    assert ended.err[1] == "bad 1\n"
    assert not ended.succeeded()


def test_a_job_that_runs_too_long_is_killed(launch):
    """
    After the time bound every process and its children are gone, and the text shows
    the logs.
    """
    with pytest.raises(TimeoutError, match="here I am"):
        launch(
            """
            import subprocess, time
            child = subprocess.Popen(["sleep", "60"])
            print("here I am", child.pid)
            time.sleep(60)
            """,
            num_ranks=1,
            timeout_s=1.0,
        )
    child = int(launch.jobs[0].read(0, "out").split()[-1])

    deadline_s = time.monotonic() + 5
    while is_running(child) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not is_running(child)


def test_a_running_rank_can_be_signalled(launch):
    """
    A test can wait for a line of a rank and then send that rank a signal.
    """
    with launch.start("import time; print('ready'); time.sleep(60)", absent=(0,)) as job:
        job.wait_for("ready", rank=1)
        job.signal(1, signal.SIGTERM)
        ended = job.wait()

    assert ended.exit_codes == {1: -signal.SIGTERM}


@pytest.mark.thorough
def test_torchrun_is_reached_too(launch):
    """
    Under ``torchrun`` the launcher's exit code and the ranks' outputs are returned.
    """
    ended = launch.torchrun("import os; print('rank', os.environ['RANK'])", num_ranks=2)

    assert ended.exit_codes == {-1: 0}, str(ended)
    assert ended.out[1] == "rank 1\n"


LEAKS = """
import pathlib, socket, subprocess, threading, time
import pytest

pytestmark = pytest.mark.ranks
kept = []
stop = threading.Event()


def test_process():
    subprocess.run(["setsid", "sh", "-c", "sleep 60 &"], check=True)


def test_rank_that_starts_a_daemon(launch):
    code = "import subprocess as s; s.Popen(['sleep', '60'], start_new_session=True)"
    launch(code, num_ranks=1)


def test_thread():
    threading.Thread(target=stop.wait, name="mine").start()


def test_socket():
    kept.append(socket.socket())


def test_shared_memory():
    pathlib.Path("/dev/shm/{name}").write_text("")


def test_nothing(launch):
    stop.set()
    assert launch("pass", num_ranks=2).succeeded()
"""


def test_what_a_test_leaves_behind_fails_it(tmp_path):
    """
    A process, even a daemon of a rank, a thread, a socket and a shared-memory file are
    each found at the end of the test that left them; a clean test passes.
    """
    tests, name = Path(__file__).parents[1], f"slav1-leak-{os.getpid()}"
    (tmp_path / "ranks").mkdir()
    for name_of_file in ("_launch.py", "_forks.py"):
        shutil.copy(tests / "ranks" / name_of_file, tmp_path / "ranks")
    shutil.copy(tests.parent / "pyproject.toml", tmp_path)
    conftest = (tests / "conftest.py").read_text().replace("GRACE_S = 3.0", "GRACE_S = 0.5")
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_leaks.py").write_text(LEAKS.replace("{name}", name))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_leaks.py"]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    (Path("/dev/shm") / name).unlink()

    assert "6 passed, 5 errors" in ended.stdout, ended.stdout + ended.stderr
    assert "thread mine" in ended.stdout
    assert f"shared memory /dev/shm/{name}" in ended.stdout
