"""What the launcher of this process was given; it does not tell its workers."""

import os
from collections.abc import Sequence

import psutil

MAX_ABOVE = 8
"""Processes above this one that are looked at."""

_OPTIONS = ("--config_file", "--config-file")
_PROGRAMS = ("accelerate-launch", "accelerate.commands.launch")
_PROGRAMS_WITH_COMMANDS = ("accelerate", "sla-accelerate", "accelerate.commands.accelerate_cli")


def config_file_of_launcher() -> str | None:
    """Returns the file that ``accelerate launch``, above this process, was given by
    ``--config_file``; None without one, also under another launcher."""
    try:
        process = psutil.Process()
        below = process.cmdline()
        for above in process.parents()[:MAX_ABOVE]:
            words = above.cmdline()
            if options := options_of_launcher(words, below):
                named = config_file_among(options)
                return None if named is None else os.path.join(above.cwd(), named)  # noqa: PTH118 - an absolute one stays
            below = words
    except psutil.Error:
        # A process of somebody else, or one that has just ended, says nothing.
        return None
    return None


def options_of_launcher(words: Sequence[str], below: Sequence[str]) -> list[str]:
    """Returns what ``accelerate launch`` was told for itself.

    Args:
        words: Command line of a process.
        below: That of the process that it started: ends like the other one, by the script
            and the script's own words.

    Returns:
        The launcher's words from its own name on; empty if it is another program.
    """
    for place, word in enumerate(words[:6]):
        name = os.path.basename(word)  # noqa: PTH119 - a word, not always a path
        is_launch = name in _PROGRAMS or (
            name in _PROGRAMS_WITH_COMMANDS and list(words[place + 1 : place + 2]) == ["launch"]
        )
        if is_launch:
            num_of_script = 0
            while (
                num_of_script < min(len(words) - place - 1, len(below))
                and words[-1 - num_of_script] == below[-1 - num_of_script]
            ):
                num_of_script += 1
            return list(words[place : len(words) - num_of_script])
    return []


def config_file_among(options: Sequence[str]) -> str | None:
    """Returns the value of the last ``--config_file`` among a launcher's words."""
    found = None
    for place, word in enumerate(options):
        name, sign, value = word.partition("=")
        if name in _OPTIONS:
            found = value if sign else next(iter(options[place + 1 : place + 2]), found)
    return found
