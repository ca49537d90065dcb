"""Digests of tensors by their bits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slav1.replicas import Digester, Workspace
from slav1.replicas.hashing import bits_of
from slav1.testing._memory import flip_bit

CPU = torch.device("cpu")
TYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int64,
    torch.int8,
    torch.bool,
    torch.complex64,
]
LAYOUTS = {
    "small": lambda kind: _filled((33,), kind),
    "read in place": lambda kind: _filled((70, 141), kind),
    "turned round": lambda kind: _filled((64, 50), kind).t(),
    "with gaps": lambda kind: _filled((64, 50), kind)[::2, 1::3],
    "channels last": lambda kind: _filled((4, 3, 5, 5), kind).to(memory_format=torch.channels_last),
    "askew": lambda kind: _filled((5001,), kind)[1:],
}


def _filled(shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(shape, generator=generator) * 50).to(kind)


def digests(tensors: list[torch.Tensor], turn: int = 0) -> list[int]:
    """Digests as a rank makes them."""
    digester = Digester(tensors, Workspace(CPU))
    return digester.digests(digester.sums(turn).tolist())


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_every_bit_counts(kind: torch.dtype) -> None:
    """
    One bit that flips changes the digest in each turn, whatever its position, the type of
    the tensor and how it lies in memory; flipped back, the digest is what it was.
    """
    workspace = Workspace(CPU)
    workspace.in_place_bytes = 0
    for layout, make in LAYOUTS.items():
        tensor = make(kind)
        digester = Digester([tensor], workspace)
        before = [digester.sums(turn).tolist() for turn in (0, 1)]
        for bit in range(8 * bits_of(tensor).element_size()):
            element = 7919 * (bit + 1) % tensor.numel()
            flip_bit(tensor, bit, element)
            for turn in (0, 1):
                assert digester.sums(turn).tolist() != before[turn], (layout, bit, element)
            flip_bit(tensor, bit, element)
        assert [digester.sums(turn).tolist() for turn in (0, 1)] == before


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(2, 40_000),
    elements=st.tuples(st.integers(0, 2**32), st.integers(0, 2**32)),
    bit=st.integers(0, 31),
)
def test_two_bits_are_found_in_two_turns(size: int, elements: tuple[int, int], bit: int) -> None:
    """
    The same bit that flips in two elements is found in one of two turns at the latest.
    """
    tensor = torch.zeros(size)
    first, second = (element % size for element in elements)
    before = [digests([tensor], turn) for turn in (0, 1)]

    flip_bit(tensor, bit, first)
    flip_bit(tensor, bit, second)

    after = [digests([tensor], turn) for turn in (0, 1)]
    assert (after != before) == (first != second)


def test_elements_that_changed_places_are_found() -> None:
    """
    Two words that changed places are found in one of two turns at the latest.
    """
    tensor = _filled((130, 257), torch.float64)
    before = [digests([tensor], turn) for turn in (0, 1)]
    for other in (1, 64, 4096, 4097, 33_000):
        swapped = tensor.clone().view(-1)
        swapped[[0, other]] = swapped[[other, 0]]

        assert [digests([swapped], turn) for turn in (0, 1)] != before


def _mixed() -> list[torch.Tensor]:
    """Tensors of all kinds in one list, as a model and its optimizer have them."""
    kinds = (torch.float32, torch.bfloat16, torch.float64, torch.int8)
    return [
        *(_filled((length,), kind) for kind in kinds for length in (9000, 12, 3001, 1)),
        _filled((130, 257), torch.float32),
        _filled((64, 50), torch.float32).t(),
    ]


@pytest.mark.parametrize("scratch_bytes", [1 << 14, 16 << 20])
def test_a_flipped_bit_changes_the_digest_of_its_tensor_alone(
    monkeypatch: pytest.MonkeyPatch, scratch_bytes: int
) -> None:
    """
    Equal tensors have equal digests wherever they lie, gathered at once or in several
    rounds; of one that differs the digest differs, and of no other.
    """
    monkeypatch.setattr("slav1.replicas.hashing.SCRATCH_BYTES", scratch_bytes)
    here, there = _mixed(), [tensor.clone() for tensor in _mixed()]
    assert digests(here) == digests(there)

    for number, tensor in enumerate(there):
        flip_bit(tensor, 3, tensor.numel() - 1)
        pairs = zip(digests(here), digests(there), strict=True)
        assert [at for at, (mine, other) in enumerate(pairs) if mine != other] == [number]
        flip_bit(tensor, 3, tensor.numel() - 1)


def test_what_was_gathered_before_leaves_no_trace() -> None:
    """
    Digests made one after the other in the same memory are those that each makes alone.
    """
    workspace = Workspace(CPU)
    groups = [_mixed(), [_filled((7,), torch.float64)], [_filled((3,), torch.int8)]]
    digesters = [Digester(group, workspace) for group in groups]

    for _ in range(2):
        for group, digester in zip(groups, digesters, strict=True):
            assert digester.digests(digester.sums(0).tolist()) == digests(group)


def test_zero_and_minus_zero_differ() -> None:
    """
    Numbers that compare as equal and have other bits are told apart.
    """
    assert digests([-torch.zeros(3)]) != digests([torch.zeros(3)])


def test_folding_by_exclusive_or_finds_every_bit_too() -> None:
    """
    Where digests are made by exclusive or, as on a GPU, every single bit counts as well.
    """
    if not hasattr(torch, "hash_tensor"):
        pytest.skip("this torch has no hash_tensor")
    workspace = Workspace(CPU)
    workspace.is_xor = True
    tensor = _filled((130, 257), torch.float32)
    digester = Digester([tensor], workspace)
    for turn in (0, 1):
        before = digester.sums(turn).tolist()
        for bit in range(32):
            flip_bit(tensor, bit, 7919 * bit % tensor.numel())
            assert digester.sums(turn).tolist() != before
            flip_bit(tensor, bit, 7919 * bit % tensor.numel())


def test_a_tensor_that_moved_is_noticed() -> None:
    """
    A digester says when a tensor lies elsewhere than it did.
    """
    tensor = torch.nn.Parameter(torch.zeros(8))
    digester = Digester([tensor], Workspace(CPU))
    assert digester.fits([tensor])

    moved = tensor.detach().clone()
    tensor.data = moved

    assert not digester.fits([tensor])
