"""What adoption costs: examples as users have them, beside the same under contract."""

import difflib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ._runs import entries

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
WATCHED = sorted(path.stem for path in EXAMPLES.glob("*_watched.py"))
WORDS = {
    "loop": ("--epochs", 2, "--cpu"),
    "fsdp_fine_tune": ("--steps", 12),
    **({"trainer": ("--steps", 12, "--cpu")} if find_spec("transformers") else {}),
}
NUM_STEPS = {"loop": 16, "fsdp_fine_tune": 12, "trainer": 12}
NUM_SAVES = {"loop": 2, "fsdp_fine_tune": 1, "trainer": 2}


def plain(name: str) -> str:
    return name.removesuffix("_watched")


def untimed(out: str) -> list[str]:
    """What was said, but for how long something took."""
    return [line for line in out.splitlines() if "_runtime" not in line]


@pytest.mark.parametrize("name", WATCHED)
def test_one_line_is_changed(name: str) -> None:
    """
    The watched script is the plain one with one line changed, or one line added.
    """
    before, after = (
        (EXAMPLES / f"{one}.py").read_text().splitlines() for one in (plain(name), name)
    )
    changes = [
        max(old_end - old, new_end - new)
        for kind, old, old_end, new, new_end in difflib.SequenceMatcher(
            None, before, after, autojunk=False
        ).get_opcodes()
        if kind != "equal"
    ]
    assert changes == [1]


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in WATCHED if plain(name) in WORDS])
def test_the_watched_script_does_what_the_plain_one_does(ranks: Any, name: str) -> None:
    """
    On two ranks both say the same to the last digit, and the contract has seen every step of
    the watched one and every checkpoint.
    """
    words = WORDS[plain(name)]
    # Without the contract, too, a process with gloo can hang at its very end.
    before = ranks("example.py", plain(name), *words, timeout_s=60)
    after = ranks("example.py", name, *words, timeout_s=60)

    assert before.succeeded(), before
    assert after.succeeded(), after
    for rank, out in before.out.items():
        assert untimed(out) == untimed(after.out[rank])
    assert untimed(before.out[0])
    ledger = entries(ranks.run_dir)
    (verdict,) = (e for e in ledger if e.kind == "verdict" and e.rule == "loss_variance")
    assert verdict.evidence["num_samples"] == NUM_STEPS[plain(name)]
    num_saves = sum(1 for e in ledger if e.kind == "checkpoint_committed")
    assert num_saves == NUM_SAVES[plain(name)]
    assert [e for e in ledger if e.kind in ("breach", "decision")] == []
