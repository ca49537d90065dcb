"""Makes the shared helpers importable: test folders are no packages."""

import importlib.util
import sys
from pathlib import Path


def _load_tools() -> None:
    path = Path(__file__).parent / "_detector_tools.py"
    spec = importlib.util.spec_from_file_location("_detector_tools", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["_detector_tools"] = module
    spec.loader.exec_module(module)


_load_tools()
