"""Runs one of the examples of the documentation as it is, on processors."""

import os
import runpy
import sys
import warnings
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


def main() -> None:
    """Runs the example that is named first, with the words that follow."""
    warnings.filterwarnings("ignore")
    name = sys.argv[1]
    if name.startswith("fsdp"):
        from accelerate.state import PartialState
        from accelerate.utils import DistributedType

        # Accelerate shards on GPUs only; told that these are some, it does so anywhere.
        PartialState(cpu=True)
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    sys.argv = [str(EXAMPLES / f"{name}.py"), *sys.argv[2:]]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
