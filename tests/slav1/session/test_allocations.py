"""Which line of code holds more memory: recorded looks at an allocator, and a rank's answer."""

from collections import deque

from slav1.contract import Contract
from slav1.session import allocations
from slav1.session.allocations import Allocations
from slav1.torch_memory import growth_by_stack, held_by_stack

TORCH = {"filename": "/env/site-packages/torch/nn/functional.py", "line": 1500, "name": "relu"}
MODEL = {"filename": "/home/me/model.py", "line": 40, "name": "forward"}
LOOP = {"filename": "/home/me/train.py", "line": 12, "name": "training_step"}


def block(size, *frames, state="active_allocated"):
    return {"size": 2 * size, "requested_size": size, "state": state, "frames": list(frames)}


def snapshot(*blocks):
    """What torch.cuda.memory._snapshot() returns, cut to what is read."""
    return {"segments": [{"device": 0, "blocks": list(blocks)}], "device_traces": []}


def test_the_growing_line_is_the_users_own():
    """
    Of two looks the stack that holds more is named from the innermost frame of the user's
    own code on; memory that was given back, or taken before stacks were kept, is left out.
    """
    before = held_by_stack(snapshot(block(100, TORCH, MODEL), block(5_000, LOOP)))
    after = held_by_stack(
        snapshot(
            block(100, TORCH, MODEL),
            block(300, TORCH, MODEL, LOOP),
            block(5_000, LOOP),
            block(9_000, LOOP, state="inactive"),
            block(7_000),
        )
    )

    assert growth_by_stack(before, after) == [
        (300, ("/home/me/model.py:40 forward", "/home/me/train.py:12 training_step"))
    ]


def test_a_stack_without_own_code_is_told_as_it_is():
    """
    Where all frames are a library's, the innermost ones are told.
    """
    after = held_by_stack(snapshot(block(10, TORCH)))

    assert growth_by_stack({}, after) == [
        (10, ("/env/site-packages/torch/nn/functional.py:1500 relu",))
    ]


class Looks:
    """A search whose looks are given."""

    def __init__(self, *held):
        self.held = deque(held)
        self.is_closed = False

    def look(self):
        return self.held.popleft()

    def close(self):
        self.is_closed = True


def answers(monkeypatch, search, contract=None):
    told = []
    monkeypatch.setattr(allocations, "PythonAllocations", lambda: search)
    contract = contract or Contract.level("L1").override(memory_drift={"trace_host_steps": 20})
    return told, Allocations(lambda text, **evidence: told.append((text, evidence)), contract)


def test_a_rank_looks_twice_and_tells_once(monkeypatch):
    """
    After the monitor's word the rank looks twice, some steps apart, tells the line with the
    bytes it added, ends the search, and does nothing until it is asked again.
    """
    search = Looks({("a.py:1",): 1 << 20}, {("a.py:1",): 3 << 20})
    told, rank = answers(monkeypatch, search)

    rank.look(0, 5)
    for step in (10, 12, 20, 22, 30, 40, 50, 60):
        rank.look(2, step)

    ((text, _),) = told
    assert text.startswith("The memory held by Python that grew most in steps 21 to 40 was ")
    assert text.endswith("allocated at a.py:1: 2.0 MiB more.")
    assert told[0][1]["stacks"] == [{"added_bytes": 2 << 20, "frames": ["a.py:1"]}]
    assert search.is_closed and not search.held


def test_python_is_slowed_down_only_where_the_contract_says_so(monkeypatch):
    """
    By default nothing is traced for host memory, and without CUDA nothing for a device.
    """
    search = Looks()
    told, rank = answers(monkeypatch, search, Contract.level("L1"))

    for step in range(0, 100, 10):
        rank.look(2 if step < 50 else 5, step)

    assert told == []


def test_a_search_that_fails_is_told_and_ends(monkeypatch):
    """
    An error in a look never reaches the training.
    """
    search = Looks()
    told, rank = answers(monkeypatch, search)

    rank.look(2, 10)
    rank.look(2, 30)
    rank.look(2, 60)

    assert len(told) == 1 and "can't be found" in told[0][0]
    assert search.is_closed


def test_tracemalloc_names_the_line_that_keeps():
    """
    The real search finds the line of this file that keeps memory.
    """
    search = allocations.PythonAllocations()
    try:
        before = search.look()
        kept = [bytes(1 << 20) for _ in range(4)]
        after = search.look()
    finally:
        search.close()

    added, stack = growth_by_stack(before, after)[0]
    assert len(kept) == 4 and added >= 4 << 20
    assert "test_allocations.py" in stack[0]
