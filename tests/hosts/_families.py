"""Which of Lightning's strategies can run here."""

import importlib.util

import pytest

needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="DeepSpeed is not installed; docs/assumptions.md says how to",
)
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="transformers is not installed: pip install -e '.[transformers]'",
)
