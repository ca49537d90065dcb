"""What a process that is ending dies of."""

import sys


def dying_of() -> BaseException | None:
    """The exception that ends this process; None if it ends in good order.

    Only means something while the process ends. A script has printed its exception by
    then, and the interpreter keeps it; a child of ``multiprocessing`` still has it in
    hand. ``sys.exit(0)`` is good order, ``sys.exit(1)`` in a script can't be told from it.
    """
    error = sys.exc_info()[1]
    # In an interactive session the last exception is only the last mistake.
    if error is None and not hasattr(sys, "ps1"):
        error = getattr(sys, "last_value", None)
    if isinstance(error, SystemExit):
        return None if error.code in (None, 0) else error.__context__ or error
    return error
