"""Memory of a real GPU: what is recorded of it, and the line of code that leaks."""

import pytest
import torch

from slav1.recorder import Block, Recorder
from slav1.torch_memory import AllocatorHistory, DeviceMemory, growth_by_stack

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; this machine has none"),
]


def test_the_record_holds_what_the_allocator_holds() -> None:
    """
    Every fifth record tells what tensors hold and what the allocator holds, in MiB.
    """
    block = Block.create(rank=0, num_slots=64)
    recorder = Recorder(block)
    memory = DeviceMemory(recorder)
    held = torch.ones(64 << 18, device="cuda")
    for step in range(6):
        memory.read(step)
        recorder.publish(recorder.end_step(step))

    samples = list(recorder.reader().new_samples())
    expected = torch.cuda.memory_allocated() / (1 << 20)
    block.close()

    assert held.numel() == 64 << 18
    assert [sample.allocated_mib for sample in samples] == [expected, *[None] * 4, expected]
    assert samples[0].reserved_mib >= expected >= 64.0


def test_the_line_that_leaks_is_named() -> None:
    """
    Of two looks at the allocator the stack that grew most is the one that keeps tensors.
    """
    history = AllocatorHistory()
    try:
        kept = [torch.ones(1 << 18, device="cuda")]
        before = history.look()
        for _ in range(10):
            passing = torch.ones(1 << 20, device="cuda")
            kept.append(torch.ones(1 << 18, device="cuda"))
            del passing
        after = history.look()
    finally:
        history.close()

    added, stack = growth_by_stack(before, after)[0]
    assert len(kept) == 11 and added == 10 << 20
    assert "test_memory.py" in stack[0]
