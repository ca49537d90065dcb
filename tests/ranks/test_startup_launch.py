"""The test helper that starts real ranks."""

import signal
import time

import psutil
import pytest

pytestmark = pytest.mark.ranks


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


def test_torchrun_is_reached_too(launch):
    """
    Under ``torchrun`` the launcher's exit code and the ranks' outputs are returned.
    """
    ended = launch.torchrun("import os; print('rank', os.environ['RANK'])", num_ranks=2)

    assert ended.exit_codes == {-1: 0}, str(ended)
    assert ended.out[1] == "rank 1\n"
