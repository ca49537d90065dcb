"""Write, then verify: checkpoints that Lightning writes as one file."""

import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from sla_lightning.paths import is_remote


class SLACheckpointIO(TorchCheckpointIO):
    """Writes single files straight to the disk they belong on, flushed and in full.

    As a plugin, ``Trainer(plugins=[SLACheckpointIO()])``, it takes the place of Lightning's
    own, which puts the whole file together in memory twice, writes it to the folder for
    temporary files, flushes nothing, and says nothing where it may not write.

    Alone it proves nothing. What reads back, votes and commits is the ``SLACallback``,
    with this plugin or without it. And no plugin of this kind ever sees the sharded
    checkpoints of FSDP, the distributed ones of FSDP2, or DeepSpeed's: these the callback
    guards as well.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Writes one file; a remote path goes Lightning's own way.

        Raises:
            OSError: If the file can't be written in full. It is gone then.
        """
        if storage_options is not None or is_remote(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        write_file(checkpoint, Path(path))


def write_file(checkpoint: dict[str, Any], path: Path) -> None:
    """Writes one file and flushes it.

    Raises:
        OSError: If it can't be written in full. It is gone then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
