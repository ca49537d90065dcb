"""The settings of a script, the same on all ranks."""

import os
from pathlib import Path
from typing import Any

from sla_accelerate._config.file import find_document
from slav1.contract import Contract
from slav1.session.rendezvous import store_of_group
from slav1.session.settings_agreement import agree
from slav1.session.settings_source import Resolved, resolve

Asked = tuple[Contract | str | Path | None, str | Path | None]
"""Contract and run directory as the script gave them."""


class _Last:
    asked: Asked | None = None
    store: Any = None
    settings: Resolved | None = None


def settings_for(state: Any, asked: Asked) -> Resolved:
    """Collective where ranks know of each other, unless the script has asked for the same before.

    Args:
        state: Any ``accelerate.Accelerator``: knows ranks.
        asked: What the script gave.

    Raises:
        ValueError: On all ranks, if one of them can't use its settings, or they differ.
    """
    group = store_of_group()
    store = None if group is None else group()

    def find() -> Resolved:
        return resolve(*asked, os.environ, lambda: find_document(os.environ))

    if store is None:
        return find()
    if _Last.settings is None or asked != _Last.asked or store is not _Last.store:
        rank, world_size = state.process_index, state.num_processes
        _Last.settings = agree(store, find, rank=rank, world_size=world_size)
        _Last.asked, _Last.store = asked, store
    return _Last.settings
