"""Updates that not all ranks made."""

from slav1.detectors import UpdateSkew
from slav1.sample import Round, Sample


def seen(*left_out: bool) -> Round:
    samples = [
        Sample(rank=rank, step=9, time_s=0.0, is_update_left_out=is_left_out)
        for rank, is_left_out in enumerate(left_out)
    ]
    return Round(step=9, samples=tuple(samples))


def test_names_the_rank_that_left_out_alone():
    """
    An update that one rank of three left out is a breach that names it; one that all or none
    left out is not.
    """
    detector = UpdateSkew()

    _, breach = detector.observe(detector.start(), seen(False, True, False))

    assert breach is not None
    assert (breach.rank, breach.step, breach.is_actionable) == (1, 9, True)
    assert "on rank 1 only" in breach.message
    for event in (seen(True, True, True), seen(False, False, False), seen(True)):
        assert detector.observe(detector.start(), event) == (detector.start(), None)


def test_names_no_rank_where_several_did():
    """
    Of four ranks two of which left the update out, nobody knows which are right.
    """
    detector = UpdateSkew()

    _, breach = detector.observe(detector.start(), seen(True, True, False, False))

    assert breach is not None
    assert (breach.rank, breach.evidence["ranks"]) == (None, [0, 1])
