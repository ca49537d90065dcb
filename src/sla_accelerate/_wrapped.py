"""Finding what a model was wrapped in, from the model."""

import gc
from typing import Any

from torch.nn.parallel import DistributedDataParallel


def outermost(model: Any) -> Any:
    """The DDP model that ``model`` was made into; itself if there is none.

    Accelerate's own list has the model as it was before, and nobody but the user holds what
    became of it.
    """
    for one in gc.get_objects():
        # By its type: other objects may answer to `isinstance` with work, or with an error.
        if issubclass(type(one), DistributedDataParallel) and one.module is model:
            return one
    return model
