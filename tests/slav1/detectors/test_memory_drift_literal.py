"""The published text's rule about memory: what it finds, and where it is blind."""

import random

from _detector_tools import breaches, brief, watch

from slav1.breach import Status
from slav1.detectors import MemoryDriftLiteral
from slav1.sample import Sample, Usage


def rounds(values):
    return (
        Sample(rank=0, step=step, time_s=step, allocated_mib=value)
        for step, value in enumerate(values)
    )


def test_a_leak_after_flat_rounds_is_found_at_the_end_of_its_round():
    """
    Ten rounds of 64 readings that do not change, then one that rises: its cumulative drift is
    1, above mean plus any multiple of a standard deviation of 0; the next flat one ends it.
    """
    values = [100.0] * 640 + [100.0 + i for i in range(64)] + [163.0] * 64

    found = watch(MemoryDriftLiteral(), rounds(values))

    assert brief(found) == [(703, "breach"), (767, "recovered")]
    assert (found[0].statistic, found[0].limit) == (1.0, 0.0)


def test_a_lasting_leak_becomes_the_calibration():
    """
    A leak that never ends is called healthy from its second round on.
    """
    values = [100.0] * 640 + [100.0 + i for i in range(2_000)]

    found = watch(MemoryDriftLiteral(limit_sigmas=3.0), rounds(values))

    assert brief(found)[0] == (703, "breach")
    assert found[-1].status is Status.RECOVERED


def test_noise_alone_reaches_its_limit():
    """
    In 20,000 steps of nothing but noise there are several alarms.
    """
    rng = random.Random(1)

    found = watch(MemoryDriftLiteral(), rounds(rng.gauss(100.0, 5.0) for _ in range(20_000)))

    assert len(breaches(found)) >= 3


def test_host_memory_counts_only_where_there_is_no_device():
    """
    A rank without a device is judged by its host memory, one with a device never is.
    """
    host = [
        Usage(rank=0, step=step, time_s=step, host_mib=100.0 + max(0, step - 639))
        for step in range(768)
    ]
    device = rounds([50.0] * 768)
    both = [event for pair in zip(device, host, strict=True) for event in pair]

    assert [b.evidence["series"] for b in breaches(watch(MemoryDriftLiteral(), host))] == ["host"]
    assert watch(MemoryDriftLiteral(), both) == []
