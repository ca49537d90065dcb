"""A loader's worker ends when its trainer has ended, however that came about."""

import os
import select
import threading
import time

LEAVE_S = 6.0
"""How long a worker may take to leave by itself, in seconds: torch lets it look every five."""


def end_with(trainer: int) -> None:
    """Ends this process soon after another one. To be called in a worker.

    By itself a worker looks whether its parent is still the same. Of one from a fork server
    that is the server, which in turn waits for its workers; and one whose last batch does not
    fit into its pipe waits for ever for somebody who takes it.

    Args:
        trainer: The other process.
    """
    if trainer == os.getpid():
        return
    try:
        pidfd = os.pidfd_open(trainer)
    except ProcessLookupError:
        pidfd = None
    except (AttributeError, OSError):
        # Not on Linux, or it is forbidden there: what torch does by itself is all there is.
        return
    threading.Thread(target=_leave_after, args=(pidfd,), name="slav1-end", daemon=True).start()


def _leave_after(pidfd: int | None) -> None:
    if pidfd is not None:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll()
    time.sleep(LEAVE_S)
    os._exit(1)
