"""``sla-accelerate launch``: Accelerate's own launch, which then tells its workers the file."""

import os
from pathlib import Path
from typing import Any

from sla_accelerate._config.file import VARIABLE, speaks_of_contract


def launch(words: list[str]) -> None:
    """Starts a job as ``accelerate launch`` does.

    Args:
        words: What ``accelerate launch`` is to be told. Whatever it raises is left alone.
    """
    # Only here: importing it changes how this process logs.
    from accelerate.commands import launch as host  # type: ignore[import-untyped]
    from accelerate.commands.config.config_args import (  # type: ignore[import-untyped]
        default_config_file,
    )

    options: Any = host.launch_command_parser().parse_args(words)
    usual = None if VARIABLE in os.environ else default_config_file
    path = Path(options.config_file or usual or "")
    if path.is_file() and speaks_of_contract(path):
        os.environ[VARIABLE] = str(path.absolute())
    host.launch_command(options)
