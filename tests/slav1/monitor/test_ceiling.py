"""Host memory there is for a rank: limits of made-up control groups of both versions."""

from pathlib import Path

import pytest

from slav1.monitor.ceiling import Ceiling, MemoryCeiling

MIB = 1 << 20
HOST = "MemTotal:       8388608 kB\nMemFree: 1 kB\nMemAvailable:   6291456 kB\n"
V2_MOUNT = "30 23 0:26 {inside} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
V1_MOUNT = "40 32 0:36 {inside} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def host(root: Path, *, cgroup: str, mounts: str, files: dict[str, str]) -> MemoryCeiling:
    """A host whose process 42 is in some control groups."""
    files = {
        "proc/meminfo": HOST,
        "proc/42/cgroup": cgroup,
        "proc/self/mountinfo": "22 1 8:1 / / rw - ext4 /dev/vda1 rw\n" + mounts,
    } | {f"sys/fs/cgroup/{path}": text for path, text in files.items()}
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return MemoryCeiling(42, root)


def test_the_smallest_limit_on_the_way_up_counts(tmp_path):
    """
    Version 2: the process's own group says "max", one above it 3 GiB, one above that 4 GiB:
    the ceiling is 3 GiB, and what is left under it counts pages of files, which can be
    dropped, whether they were used lately or not.
    """
    ceiling = host(
        tmp_path,
        cgroup="0::/jobs/a/step\n",
        mounts=V2_MOUNT.format(inside="/"),
        files={
            "jobs/a/step/memory.max": "max\n",
            "jobs/a/memory.max": f"{3072 * MIB}\n",
            "jobs/a/memory.current": f"{1024 * MIB}\n",
            "jobs/a/memory.stat": f"anon 5\ninactive_file {256 * MIB}\nactive_file {64 * MIB}\n",
            "jobs/memory.max": f"{4096 * MIB}\n",
        },
    )

    assert ceiling.read() == Ceiling(limit_mib=3072.0, free_mib=3072.0 - 1024.0 + 320.0)


def test_version_1_has_numbers_for_no_limit(tmp_path):
    """
    Version 1: the huge number that stands for no limit is none; a nested limit is found
    where a container sees its own part of the tree only, and where the rest is no memory.
    """
    ceiling = host(
        tmp_path,
        cgroup="5:cpu,cpuacct:/\n4:memory:/docker/abc/inner\n0::/\n",
        mounts=V1_MOUNT.format(inside="/docker/abc") + V2_MOUNT.format(inside="/"),
        files={
            "memory/inner/memory.limit_in_bytes": f"{512 * MIB}\n",
            "memory/inner/memory.usage_in_bytes": f"{128 * MIB}\n",
            "memory/inner/memory.stat": (
                f"total_inactive_file {20 * MIB}\ntotal_active_file {8 * MIB}\n"
            ),
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )

    assert ceiling.read() == Ceiling(limit_mib=512.0, free_mib=412.0)


@pytest.mark.parametrize(
    ("cgroup", "mounts"),
    [
        ("0::/a\n", V2_MOUNT.format(inside="/")),
        ("4:memory:/a\n", V1_MOUNT.format(inside="/")),
        ("0::/../elsewhere\n", V2_MOUNT.format(inside="/")),
        ("nonsense\n", "more nonsense\n"),
        ("", ""),
    ],
)
def test_without_a_limit_it_is_the_hosts_memory(tmp_path, cgroup, mounts):
    """
    "max" all the way up, no files, no mount or unreadable text: the host's memory counts.
    """
    ceiling = host(tmp_path, cgroup=cgroup, mounts=mounts, files={"a/memory.max": "max\n"})

    assert ceiling.read() == Ceiling(limit_mib=8192.0, free_mib=6144.0)


def test_a_limit_above_the_hosts_memory_is_none(tmp_path):
    """
    A container that may have more than there is has what there is.
    """
    ceiling = host(
        tmp_path,
        cgroup="0::/\n",
        mounts=V2_MOUNT.format(inside="/"),
        files={"memory.max": f"{1 << 50}\n", "memory.current": "4096\n"},
    )

    assert ceiling.read() == Ceiling(limit_mib=8192.0, free_mib=6144.0)


def test_a_system_without_any_of_it_is_no_error(tmp_path):
    """
    Where neither control groups nor /proc exist, nothing is known and nothing fails.
    """
    assert MemoryCeiling(42, tmp_path).read() == Ceiling(limit_mib=None, free_mib=None)
