"""How the demo shows a run."""

import io
import json

import pytest
from rich.console import Console

from slav1.cli._demo_picture import Picture, progress_line, sparkline
from slav1.cli._demo_rings import RankNow
from slav1.cli._demo_view import JsonView, LiveView, PlainView, event_line
from slav1.ledger import Entry
from slav1.phase import Phase

BREACH = Entry(
    time_ns=0, attempt=0, kind="breach", rule="hang", rank=1, message="Rank 1 [stuck] sits."
)


def rank(number, step=12):
    return RankNow(rank=number, step=step, phase=Phase.BACKWARD, loss=2.5, step_time_s=0.02)


BOTH = (rank(0), rank(1, step=11))


def picture(elapsed_s=5.0, ranks=BOTH, **fields):
    return Picture(
        elapsed_s=elapsed_s, num_steps=400, num_ranks=2, ranks=ranks, losses=[4.0, 2.5], **fields
    )


def test_a_line_of_progress_tells_step_loss_time_and_phases():
    """
    A plain line holds the step of the slowest rank, the loss, the step time and where
    each rank is.
    """
    line = progress_line(picture())

    for part in ("step 11 of 400", "loss 2.50", "20 ms", "rank 0 backward", "rank 1 backward"):
        assert part in line


def test_in_the_first_step_there_is_no_pace_yet():
    """
    Before any step has ended the line leaves its time out.
    """
    first = RankNow(rank=0, step=0, phase=Phase.FORWARD, loss=None, step_time_s=None)
    shown = Picture(elapsed_s=1.0, num_steps=400, num_ranks=1, ranks=(first,), losses=[])

    assert progress_line(shown) == "step 0 of 400, no loss yet; rank 0 forward"


def test_before_all_ranks_are_up_it_is_said_what_is_waited_for():
    """
    While ranks are missing the line says how many are up.
    """
    assert "1 of 2 ranks" in progress_line(picture(ranks=(rank(0),)))


def test_plain_output_is_one_line_a_second_and_one_an_event():
    """
    However often progress is told, a log gets one line of it a second, and what stays the
    same much less often; events come at once.
    """
    output = io.StringIO()
    view = PlainView(Console(file=output, width=100))
    for tenths in range(30):
        moving = (rank(0, step=tenths), rank(1, step=tenths))
        view.show_progress(picture(elapsed_s=tenths / 10, ranks=moving))
    for tenths in range(30, 100):
        view.show_progress(picture(elapsed_s=tenths / 10, ranks=moving))
    view.show_event(BREACH, 2.9)

    lines = output.getvalue().splitlines()

    assert len(lines) == 5
    assert "breach" in lines[4]
    assert "Rank 1 [stuck] sits." in lines[4]


def test_live_output_shows_every_rank():
    """
    On a terminal each rank has a line with its phase, and events stay above.
    """
    output = io.StringIO()
    console = Console(file=output, width=100, force_terminal=True)
    view = LiveView(console)
    view.show_event(BREACH, 2.9)
    view.show_progress(picture())
    view.close()

    assert "Rank 1 [stuck] sits." in output.getvalue()
    assert output.getvalue().count("backward") >= 2


def test_json_output_is_the_ledger_and_nothing_else(capsys):
    """
    With JSON every line printed is a ledger line that reads back.
    """
    view = JsonView()
    view.show_progress(picture())
    view.show_event(BREACH, 2.9)
    view.close()

    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == json.loads(BREACH.to_json())


def test_an_event_names_its_rule():
    """
    The line of an event holds kind, rule and message, as they are.
    """
    assert event_line(BREACH, 1.0).plain == "   1.0 s  breach       hang: Rank 1 [stuck] sits."


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([], ""),
        ([1.0, 1.0], "▁▁"),
        ([0.0, 7.0], "▁█"),
        ([0.0, float("nan"), float("inf"), 7.0], "▁  █"),
        ([float("nan")], " "),
    ],
)
def test_a_sparkline_draws_what_is_finite(values, drawn):
    """
    The lowest value is the lowest block, the highest the highest; what is not finite
    leaves a gap.
    """
    assert sparkline(values, 10) == drawn


def test_a_sparkline_keeps_its_width():
    """
    However many values there are, no more characters are used than asked for.
    """
    assert len(sparkline([float(value) for value in range(1001)], 56)) <= 56
