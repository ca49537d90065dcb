"""Worker processes of loaders, when their trainer ends without another word."""

import time
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.ranks, pytest.mark.slow, pytest.mark.thorough]

GONE_LIMIT_S = 30.0


@pytest.mark.parametrize(("host", "mode"), [("lightning", "check"), ("accelerate", "off")])
def test_no_worker_outlives_its_trainer(ranks: Any, host: str, mode: str) -> None:
    """
    After a trainer has ended at once, in an evaluation, its workers end too: one from a fork
    server, which torch leaves behind, and one whose batch nobody takes any more.
    """
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    ended = ranks("workers_left.py", host, mode, num_ranks=1)
    left = [one for one in psutil.Process().children(recursive=True) if one.pid not in before]
    names = [one.name() for one in left if one.status() != psutil.STATUS_ZOMBIE]
    deadline_s = time.monotonic() + GONE_LIMIT_S
    while any(is_at_work(one) for one in left) and time.monotonic() < deadline_s:
        time.sleep(0.1)

    assert ended.exit_codes == {0: 70}, ended
    assert names.count("pt_data_worker") == 2
    assert not [one for one in left if is_at_work(one)]


def is_at_work(process: psutil.Process) -> bool:
    """Whether a process runs; one that has ended may be waiting to be asked how."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
