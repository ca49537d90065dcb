"""Makes the samples importable: test folders are no packages."""

import importlib.util
import sys
from pathlib import Path


def _load_samples() -> None:
    path = Path(__file__).parent / "_samples.py"
    spec = importlib.util.spec_from_file_location("_checkpoint_samples", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["_checkpoint_samples"] = module
    spec.loader.exec_module(module)


_load_samples()
