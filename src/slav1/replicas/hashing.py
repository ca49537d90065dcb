"""Digests of many tensors at once, by their bits, where they lie.

Imports torch, so nothing that the monitor imports may import this module.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

NARROW = 16
"""Lines of a tile, and words of a line, of tensors that are gathered."""

WIDE = {"cuda": 256}
"""The same of tensors that are read in place, by kind of device: a GPU folds shorter lines at
half of its memory's speed."""

SCRATCH_BYTES = 16 << 20
"""Most that is gathered at once, in bytes: it stays in a GPU's cache."""

IN_PLACE_BYTES = {"cpu": 64 << 10}
"""From this size on a tensor is read in place, by kind of device: smaller ones cost more by
being called for one by one than by being copied together."""

_ELSEWHERE_IN_PLACE_BYTES = 1 << 20
_ELSEWHERE_WIDE = 64
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORD_BYTES = 8
_NARROW_BYTES = NARROW * NARROW * _WORD_BYTES


def method_of(device: torch.device) -> str:
    """Name of the way digests are made on a device; only equal ways can be compared."""
    is_xor = device.type == "cuda" and hasattr(torch, "hash_tensor")
    return f"{'xor' if is_xor else 'sum'}-{device.type}"


class Workspace:
    """Memory of one device that all digests made there share."""

    def __init__(self, device: torch.device) -> None:
        """Starts empty.

        Args:
            device: Where the tensors lie.
        """
        self.device = device
        self.is_xor = method_of(device).startswith("xor")
        self.in_place_bytes = IN_PLACE_BYTES.get(device.type, _ELSEWHERE_IN_PLACE_BYTES)
        self.wide = WIDE.get(device.type, _ELSEWHERE_WIDE)
        self._scratch = torch.empty(0, dtype=torch.uint8, device=device)
        self._user: object = None
        self._weights = torch.empty(0, 2, dtype=torch.int64, device=device)

    def scratch(self, num_bytes: int, user: object) -> Tensor:
        """Bytes to gather tensors in; ``(num_bytes,)``, uint8.

        Args:
            num_bytes: How many.
            user: Who gathers; what lies between its tensors is 0 when it comes again at once.
        """
        if self._scratch.numel() < num_bytes:
            self._scratch = torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
            self._user = None
        scratch = self._scratch[:num_bytes]
        if self._user is not user:
            self._user = user
            scratch.zero_()
        return scratch

    def weights(self, num_lines: int) -> Tensor:
        """What the halves of each line are multiplied with; ``(num_lines, 2)``, int64."""
        if len(self._weights) < num_lines:
            self._weights = _weights(num_lines, self.device)
        return self._weights[:num_lines]


class Digester:
    """Makes the digests of some tensors of one device.

    A tensor's bits are taken as words of 64 bits. The words of each line are folded into
    one, by exclusive or or by a sum, and the lines are summed up with weights of their own,
    modulo 2^64. So one bit that flips always changes the digest, whatever its position; so
    does all that is changed in one word. Of what changes in several words about one in 2^32
    or less is missed, but for changes in one line that cancel: the same bit in an even number
    of words, or, by a sum, as much up as down. Lines run across those of the turn before, so
    the next turn sees these.
    """

    def __init__(self, tensors: Sequence[Tensor], workspace: Workspace) -> None:
        """Plans what is read in place and what is gathered.

        Args:
            tensors: Any shapes, types and strides, all on the device of ``workspace``.
            workspace: Shared memory of that device.
        """
        self._workspace = workspace
        self._num_tensors = len(tensors)
        self._places = [tensor.data_ptr() for tensor in tensors]
        self._in_place: list[Tensor] = []
        segments: list[tuple[int, int]] = []
        pieces: list[tuple[int, Tensor]] = []
        for number, tensor in enumerate(tensors):
            bits = bits_of(tensor)
            words = _words_in_place(bits, workspace)
            if words is not None:
                self._in_place.append(words)
                segments.append((number, words.numel() // workspace.wide))
                bits = bits[words.numel() * _WORD_BYTES // bits.element_size() :]
            pieces += [(number, piece) for piece in _cut(bits)]
        self._batches = list(_batches(pieces))
        for batch in self._batches:
            segments += batch.segments
        self._owners = [number for number, _ in segments]
        ends = torch.tensor([lines for _, lines in segments], dtype=torch.int64).cumsum(0) - 1
        self._num_lines = int(ends[-1]) + 1 if segments else 0
        if workspace.device.type == "cuda":
            # From pinned memory it gets there without anybody waiting.
            ends = ends.pin_memory()
        self._ends = ends.to(workspace.device, non_blocking=True)

    @property
    def num_sums(self) -> int:
        """Length of what :meth:`sums` returns."""
        return len(self._owners)

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the tensors still lie where they lay."""
        return self._places == [tensor.data_ptr() for tensor in tensors]

    def sums(self, turn: int) -> Tensor:
        """What :meth:`digests` makes digests of, left on the device.

        Args:
            turn: Counts the rounds: lines run along in even ones, across in odd ones.

        Returns:
            Shape ``(number of segments,)``, int64.
        """
        workspace, dim = self._workspace, 2 - turn % 2
        lines = [_fold(words, dim, is_xor=workspace.is_xor) for words in self._in_place]
        for batch in self._batches:
            scratch = workspace.scratch(batch.num_bytes, batch)
            batch.gather(scratch)
            words = scratch.view(torch.int64).view(-1, NARROW, NARROW)
            lines.append(_fold(words, dim, is_xor=workspace.is_xor))
        halves = torch.cat(lines).view(torch.int32).view(-1, 2)
        weighted = (halves * workspace.weights(self._num_lines)).sum(1)
        return weighted.cumsum(0)[self._ends]

    def digests(self, sums: Sequence[int]) -> list[int]:
        """Digests of all tensors, each from 0 to 2^64 - 1, of sums that are on the host."""
        found = [0] * self._num_tensors
        before = 0
        for owner, total in zip(self._owners, sums, strict=True):
            found[owner] += total - before
            before = total
        return [digest % (1 << 64) for digest in found]


def bits_of(tensor: Tensor) -> Tensor:
    """The elements of a tensor as integers of the same width, without a copy.

    In one dimension, in the order in which they lie in memory, if they lie there without
    gaps; in the shape of the tensor otherwise.
    """
    held = tensor.detach()
    if held.is_complex():
        held = torch.view_as_real(held.resolve_conj())
    bits = held.view(_INTEGERS[held.element_size()])
    strides = bits.stride()
    order = sorted(range(bits.dim()), key=lambda one: -strides[one])
    in_order = bits.permute(order)
    return in_order.view(-1) if in_order.is_contiguous() else bits


class _Batch:
    """Pieces that are gathered at once."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.segments: list[tuple[int, int]] = []
        self._pieces: list[tuple[int, Tensor]] = []
        self._place = 0
        self._copies: list[tuple[list[Tensor], list[Tensor]]] = []

    def has_room(self, num_bytes: int) -> bool:
        return not self._pieces or self.num_bytes + num_bytes <= SCRATCH_BYTES

    def add(self, number: int, piece: Tensor) -> None:
        num_tiles = -(-_size(piece) // _NARROW_BYTES)
        self._pieces.append((self.num_bytes, piece))
        self.segments.append((number, num_tiles * NARROW))
        self.num_bytes += num_tiles * _NARROW_BYTES

    def gather(self, scratch: Tensor) -> None:
        """Copies every piece to its place."""
        if self._place != scratch.data_ptr():
            self._place, self._copies = scratch.data_ptr(), list(self._plan(scratch))
        for there, here in self._copies:
            # One launch for all of them, where copying one by one is one for each.
            torch._foreach_copy_(there, here)

    def _plan(self, scratch: Tensor) -> Iterable[tuple[list[Tensor], list[Tensor]]]:
        kinds: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for start, piece in self._pieces:
            there, here = kinds.setdefault(piece.dtype, ([], []))
            place = scratch[start : start + _size(piece)]
            there.append(place.view(piece.dtype).view(piece.shape))
            here.append(piece)
        return kinds.values()


def _batches(pieces: Iterable[tuple[int, Tensor]]) -> Iterator[_Batch]:
    batch = _Batch()
    for number, piece in pieces:
        if not batch.has_room(_size(piece)):
            yield batch
            batch = _Batch()
        batch.add(number, piece)
    if batch.segments:
        yield batch


def _words_in_place(bits: Tensor, workspace: Workspace) -> Tensor | None:
    """The first tiles of a tensor as words; None if it is too small or lies askew."""
    wide = workspace.wide
    num_bytes, tile_bytes = _size(bits), wide * wide * _WORD_BYTES
    is_askew = bits.dim() != 1 or bits.data_ptr() % _WORD_BYTES
    if is_askew or num_bytes < max(workspace.in_place_bytes, tile_bytes):
        return None
    offset_bytes = bits.storage_offset() * bits.element_size()
    if offset_bytes % _WORD_BYTES:
        return None
    num_bytes -= num_bytes % tile_bytes
    head = bits[: num_bytes // bits.element_size()]
    return head.view(torch.int64).view(-1, wide, wide)


def _cut(bits: Tensor) -> Iterator[Tensor]:
    """Yields a tensor in pieces that can be gathered."""
    if not bits.numel():
        return
    if bits.dim() == 0:
        yield bits
        return
    row_bytes = bits.numel() // len(bits) * bits.element_size()
    yield from bits.split(max(1, SCRATCH_BYTES // row_bytes))  # type: ignore[no-untyped-call]


def _fold(words: Tensor, dim: int, *, is_xor: bool) -> Tensor:
    if is_xor:
        return torch.hash_tensor(words, dim).view(torch.int64).view(-1)
    return words.sum(dim).view(-1)


def _weights(num_lines: int, device: torch.device) -> Tensor:
    """Numbers without a pattern; the first of each pair twice an odd one, the second odd.

    A bit that flips moves the halves of its line's sum by a power of two, and by one if it
    carries over: with these weights the two never cancel.
    """
    mixed = torch.arange(1, 2 * num_lines + 1, dtype=torch.int64, device=device)
    for factor, shift in ((_signed(0x9E3779B97F4A7C15), 30), (_signed(0xBF58476D1CE4E5B9), 27)):
        mixed = mixed * factor
        mixed = mixed ^ ((mixed >> shift) & ((1 << (64 - shift)) - 1))
    mixed = (mixed * _signed(0x94D049BB133111EB)) | 1
    pairs = mixed.view(-1, 2)
    pairs[:, 0] *= 2
    return pairs


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
