"""Device memory that torch's allocator holds and no tensor uses."""

from slav1.sample import Sample

_LARGEST_MIB = 1e12


def fragmentation_percent(sample: Sample) -> float | None:
    """Share of the reserved memory that is not allocated.

    Args:
        sample: One step of one rank.

    Returns:
        ``(reserved - allocated) / reserved`` in percent, 0 to 100; None where device
        memory was not measured, as on processors.
    """
    allocated, reserved = sample.allocated_mib, sample.reserved_mib
    if allocated is None or reserved is None:
        return None
    if not (0 <= allocated <= _LARGEST_MIB and 0 < reserved <= _LARGEST_MIB):
        return None
    return max(0.0, 100.0 * (reserved - allocated) / reserved)
