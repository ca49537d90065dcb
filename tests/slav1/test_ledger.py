"""The ledger: lines that any JSON reader takes, on a disk that fills, cut anywhere."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slav1.ledger import Entry, LedgerWriter, parse_ledger, read_ledger

FIELDS = ["time_ns", "attempt", "rank", "step", "phase", "kind", "rule", "statistic", "limit"]
FIELDS += ["unit", "mode", "action", "message", "evidence"]

facts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)
entries = st.builds(
    Entry,
    time_ns=st.integers(min_value=0),
    attempt=st.integers(min_value=0, max_value=9),
    kind=st.sampled_from(["start", "notice", "breach", "end"]),
    rank=st.none() | st.integers(min_value=0),
    statistic=st.none() | st.floats(),
    limit=st.none() | st.floats(),
    message=st.none() | st.text(max_size=40),
    evidence=st.dictionaries(st.text(max_size=9), facts, max_size=3),
)


def entry(number: int = 0, **fields: object) -> Entry:
    return Entry(time_ns=number, attempt=0, kind="notice", **fields)


def numbers(path: Path) -> list[int]:
    return [read.time_ns for read in read_ledger(path) if "num_lost" not in read.evidence]


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def open_writer(told: list[str]) -> Iterator[Callable[[Path], LedgerWriter]]:
    writers = []

    def open_one(path: Path) -> LedgerWriter:
        writers.append(LedgerWriter(path, told.append))
        return writers[-1]

    yield open_one
    for writer in writers:
        writer.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode != 0:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leaves no byte of the disk free."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue
    return ballast


def refuse_constant(text: str) -> None:
    raise AssertionError(f"{text} is not strict JSON")


@given(entries)
def test_every_line_is_strict_json_with_every_field(written):
    """
    Any entry is one line that a strict JSON reader takes, with every field present
    in the order of the interface page.
    """
    line = written.to_json()

    assert "\n" not in line
    assert list(json.loads(line, parse_constant=refuse_constant)) == FIELDS


@given(entries)
def test_numbers_come_back(written):
    """
    Statistic and limit come back exactly, those that are not finite included.
    """
    (read,), num_unreadable = parse_ledger(written.to_json().encode())

    assert num_unreadable == 0
    assert repr((read.statistic, read.limit)) == repr((written.statistic, written.limit))
    assert (read.time_ns, read.rank, read.message) == (
        written.time_ns,
        written.rank,
        written.message,
    )


def test_non_finite_numbers_have_fixed_names():
    """
    NaN and the infinities are written as text, inside the evidence too.
    """
    line = entry(statistic=math.nan, limit=-math.inf, evidence={"losses": [1.0, math.inf]})

    raw = json.loads(line.to_json())

    assert (raw["statistic"], raw["limit"]) == ("NaN", "-Infinity")
    assert raw["evidence"] == {"losses": [1.0, "Infinity"]}


def test_unknown_evidence_is_written_as_text(tmp_path):
    """
    A value that JSON does not know costs its form, never the line.
    """
    line = entry(evidence={"where": tmp_path}).to_json()

    assert json.loads(line)["evidence"] == {"where": str(tmp_path)}


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.lists(entries, max_size=3))
def test_a_ledger_cut_anywhere_reads(written):
    """
    From every prefix of a ledger's bytes exactly the entries come back whose text
    lies whole in it.
    """
    lines = [line.to_json().encode() for line in written]
    data = b"".join(line + b"\n" for line in lines)
    ends = [sum(map(len, lines[: i + 1])) + i for i in range(len(lines))]

    whole = [repr(entry) for entry in parse_ledger(data)[0]]

    for cut in range(len(data) + 1):
        read, num_unreadable = parse_ledger(data[:cut])
        num_whole = sum(end <= cut for end in ends)
        assert [repr(entry) for entry in read] == whole[:num_whole]
        assert num_unreadable <= 1


@given(st.binary(max_size=200))
def test_garbage_costs_only_itself(garbage):
    """
    Any bytes between two lines leave both lines readable.
    """
    good = entry(7).to_json().encode()

    read, _ = parse_ledger(good + b"\n" + garbage + b"\n" + good)

    assert [line.time_ns for line in read if line.time_ns == 7] == [7, 7]


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "null",
        "{}",
        '{"time_ns": 1, "attempt": 0}',
        '{"time_ns": true, "attempt": 0, "kind": "notice"}',
        '{"time_ns": 1, "attempt": 0, "kind": "notice", "rank": "0"}',
        '{"time_ns": 1, "attempt": 0, "kind": "notice", "statistic": "high"}',
        '{"time_ns": 1, "attempt": 0, "kind": "notice", "evidence": []}',
        "[" * 100_000,
    ],
)
def test_json_of_another_form_is_counted_as_unreadable(line):
    """
    JSON that is no ledger line is skipped and counted, not guessed at.
    """
    assert parse_ledger(line.encode()) == ([], 1)


def test_later_versions_read():
    """
    Keys and kinds of a later version do not hide a line.
    """
    raw = json.loads(entry(5).to_json()) | {"kind": "reshaped", "world": 4}

    (read,) = parse_ledger(json.dumps(raw).encode())[0]

    assert (read.time_ns, read.kind) == (5, "reshaped")


def test_a_line_is_in_the_file_when_write_returns(tmp_path, open_writer, told):
    """
    What was written is in the file at once, so the death of the writer loses nothing.
    """
    path = tmp_path / "ledger.jsonl"
    writer = open_writer(path)

    writer.write(entry(1))
    writer.write(entry(2))

    assert numbers(path) == [1, 2]
    assert writer.close() == 0
    assert told == []


def test_a_killed_writer_loses_nothing(tmp_path):
    """
    A process that ends without any clean-up leaves every line it wrote.
    """
    path = tmp_path / "ledger.jsonl"
    code = (
        "import os, sys; from slav1.ledger import Entry, LedgerWriter;"
        "w = LedgerWriter(sys.argv[1], print);"
        "[w.write(Entry(time_ns=i, attempt=0, kind='notice')) for i in range(50)];"
        "os.kill(os.getpid(), 9)"
    )

    subprocess.run([sys.executable, "-c", code, str(path)], check=False, timeout=60)

    assert numbers(path) == list(range(50))


def test_two_writers_keep_their_lines_whole(tmp_path, open_writer):
    """
    Lines of two writers of one file follow each other, never inside each other.
    """
    path = tmp_path / "ledger.jsonl"
    writers = [open_writer(path) for _ in range(2)]

    for i in range(40):
        writers[i % 2].write(entry(i, message="x" * i * 10))
    for writer in writers:
        writer.close()

    assert numbers(path) == list(range(40))


def test_an_old_torn_line_is_ended_first(tmp_path, open_writer):
    """
    A line that an earlier process left half-written costs only itself.
    """
    path = tmp_path / "ledger.jsonl"
    path.write_text(entry(1).to_json() + "\n" + entry(2).to_json()[:30])

    writer = open_writer(path)
    writer.write(entry(3))
    writer.close()

    assert numbers(path) == [1, 3]


def test_a_full_disk_loses_nothing(small_disk, open_writer, told):
    """
    While the disk is full nothing is raised and one notice is given; with space again
    every line is in the file, once and in order.
    """
    path = small_disk / "ledger.jsonl"
    writer = open_writer(path)
    writer.write(entry(0))
    ballast = fill(small_disk)

    for i in range(1, 200):
        writer.write(entry(i))
    assert 0 < writer.num_waiting < 199
    assert len(told) == 1
    assert str(path) in told[0]

    ballast.unlink()
    writer.flush()
    assert numbers(path) == list(range(200))
    assert writer.num_waiting == 0


def test_each_time_of_trouble_is_told_once(small_disk, open_writer, told):
    """
    A second full disk after a recovery is told again, and lines torn by both stay
    the only ones that do not read.
    """
    path = small_disk / "ledger.jsonl"
    writer = open_writer(path)

    for period in (0, 1):
        ballast = fill(small_disk)
        for i in range(30):
            writer.write(entry(100 * period + i, message="x" * 300))
        ballast.unlink()
        writer.write(entry(100 * period + 30))

    assert len(told) == 2
    assert numbers(path) == [*range(31), *range(100, 131)]
    assert parse_ledger(path.read_bytes())[1] <= 2


def test_closing_on_a_full_disk_says_what_is_missing(small_disk, open_writer):
    """
    Closing while the disk is full gives back how many lines never reached it.
    """
    path = small_disk / "ledger.jsonl"
    writer = open_writer(path)
    fill(small_disk)

    for i in range(200):
        writer.write(entry(i))
    num_missing = writer.close()

    assert num_missing > 0
    assert len(numbers(path)) + num_missing == 200


def test_memory_is_bounded(small_disk, open_writer, monkeypatch):
    """
    A disk that stays full costs a bounded number of lines; the oldest go first and
    the ledger later says how many.
    """
    monkeypatch.setattr(LedgerWriter, "MAX_WAITING", 20)
    path = small_disk / "ledger.jsonl"
    writer = open_writer(path)
    ballast = fill(small_disk)

    for i in range(100):
        writer.write(entry(i, message="x" * 2000))
        assert writer.num_waiting <= 20
    ballast.unlink()
    writer.flush()
    writer.flush()

    lost = [line.evidence["num_lost"] for line in read_ledger(path) if "num_lost" in line.evidence]
    kept = numbers(path)
    assert kept[-20:] == list(range(80, 100))
    assert lost == [100 - len(kept)]


def test_every_cut_of_a_write_is_mended(tmp_path, open_writer, monkeypatch):
    """
    Whatever part of a line the disk takes before it refuses the rest, the line is
    read exactly once in the end.
    """
    length = len(entry(2).to_json()) + 1
    real_write = os.write
    for cut in range(length + 1):
        path = tmp_path / f"{cut}.jsonl"
        writer = open_writer(path)
        writer.write(entry(1))
        monkeypatch.setattr(os, "write", lambda fd, data, cut=cut: real_write(fd, data[:cut]))
        writer.write(entry(2))
        monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, data[:1]))
        writer.flush()
        monkeypatch.setattr(os, "write", real_write)
        writer.write(entry(3))
        writer.close()

        assert numbers(path) == [1, 2, 3]


def test_a_folder_that_is_not_there_is_refused_at_once(tmp_path, open_writer):
    """
    A ledger that can't be opened is an error before training, not a notice in it.
    """
    with pytest.raises(OSError, match="missing"):
        open_writer(tmp_path / "missing" / "ledger.jsonl")


def test_a_closed_ledger_says_so(tmp_path, open_writer):
    """
    Writing after closing is refused by name; closing twice is harmless.
    """
    writer = open_writer(tmp_path / "ledger.jsonl")
    writer.close()

    assert writer.close() == 0
    with pytest.raises(ValueError, match="was closed"):
        writer.write(entry(1))
