"""The story of a demo run: told from its ledger, and never kinder than it."""

import pytest

from slav1.cli._demo_scenario import scenario
from slav1.cli._demo_story import Ending, tell
from slav1.ledger import Entry

GOOD_END = Ending(exit_status=0, num_left=0, fault_began_ns=1_000_000_000)
BAD_END = Ending(exit_status=-9, num_left=0, fault_began_ns=1_000_000_000)


def line(kind, **fields):
    return Entry(time_ns=1_500_000_000, attempt=0, kind=kind, **fields)


def breach(rule="loss_variance", rank=1, step=252, **fields):
    return line("breach", rule=rule, rank=rank, step=step, message="Too high.", **fields)


def acted(rank, step):
    return line("action", rank=rank, step=254, action="stop", evidence={"at_step": step})


def decided(action):
    return line("decision", rule="loss_variance", rank=1, step=254, action=action, message="Act.")


BACK = decided("rollback")
RESTART = decided("restart")
RECOVERED = line("incident_end", rule="recovery_time", step=255, evidence={"seconds": 1.5})
END = line("end")
ROLLED_BACK = [line("start"), breach(), BACK, acted(0, 254), acted(1, 254), RECOVERED, END]


def story(entries, ending=GOOD_END, fault="spike", num_ranks=2):
    planned = scenario(fault, num_ranks=num_ranks, num_steps=400)
    return tell(planned, entries, ending, num_ranks=num_ranks)


def test_a_run_that_went_back_as_it_should_has_no_problem():
    """
    Right rule, right rank, all ranks back at one step, a step past the fault and status 0:
    as expected, with the time it took to find and to recover.
    """
    told = story(ROLLED_BACK)

    assert told.is_as_expected
    assert told.found.step == 252
    assert told.found_after_s == pytest.approx(0.5)
    assert told.acted_at == {0: 254, 1: 254}
    assert told.recovered_after_s == 1.5


@pytest.mark.parametrize(
    ("entries", "ending", "said"),
    [
        ([line("start"), END], GOOD_END, "Rule loss_variance found nothing"),
        ([breach(rule="straggler"), *ROLLED_BACK[2:]], GOOD_END, "loss_variance found nothing"),
        ([breach(rank=0), *ROLLED_BACK[2:]], GOOD_END, "rank 0 was named"),
        ([breach(rank=None), *ROLLED_BACK[2:]], GOOD_END, "rank None was named"),
        ([breach(step=199), *ROLLED_BACK[2:]], GOOD_END, "rank 1 in step 199, before it"),
        ([breach(), END], GOOD_END, "Nothing was decided"),
        ([breach(), decided("stop"), *ROLLED_BACK[3:]], GOOD_END, "the decision was stop"),
        ([breach(), BACK, acted(0, 254), RECOVERED, END], GOOD_END, "2 ranks were to act"),
        ([*ROLLED_BACK[:4], acted(1, 255), RECOVERED, END], GOOD_END, "not act at the same step"),
        ([*ROLLED_BACK[:5], END], GOOD_END, "no step past the one that was hit"),
        (ROLLED_BACK[:-1], GOOD_END, "does not tell the end"),
        ([], GOOD_END, "left no ledger"),
        (ROLLED_BACK, BAD_END, "status -9; it must be 0"),
        (ROLLED_BACK, Ending(exit_status=0, num_left=2), "2 processes of the job were left"),
        (
            ROLLED_BACK,
            Ending(exit_status=None, num_left=0, given_up="Nothing moved."),
            "Nothing moved",
        ),
    ],
)
def test_whatever_is_not_as_expected_is_said(entries, ending, said):
    """
    Each way to miss what the fault calls for is a problem of its own, in words.
    """
    told = story(entries, ending)

    assert not told.is_as_expected
    assert any(said in problem for problem in told.problems)


def test_an_only_rank_need_not_be_named():
    """
    In a run of one rank a finding that names no rank means that one; in a larger run it
    misses the culprit.
    """
    entries = [breach(rank=None), BACK, acted(0, 254), RECOVERED, END]

    assert story(entries, num_ranks=1).is_as_expected
    assert not story([*entries, acted(1, 254)]).is_as_expected


def test_after_a_nan_all_ranks_go_on_together():
    """
    The update with the NaN is left out, of which all ranks are told at one step: a rollback, or
    a rank that was not told, is a problem.
    """
    found, end = breach(rule="non_finite", step=120), [acted(1, 123), END]
    entries = [found, decided("skip_batches"), acted(0, 123), *end]

    assert story(entries, fault="nan").is_as_expected
    assert not story([found, BACK, acted(0, 123), *end], fault="nan").is_as_expected
    assert not story([found, decided("skip_batches"), *end], fault="nan").is_as_expected


@pytest.mark.parametrize("fault", ["hang", "kill"])
def test_a_lost_rank_must_come_back(fault):
    """
    After a hang or a kill the job must have been started again, get past the step that
    was hit and end well; ranks need not act at one step.
    """
    rule = {"hang": "hang", "kill": "liveness"}[fault]
    entries = [breach(rule=rule, step=80), RESTART, RECOVERED, END]

    assert story(entries, GOOD_END, fault).is_as_expected
    assert not story(entries, BAD_END, fault).is_as_expected
    assert not story([*entries[:2], END], GOOD_END, fault).is_as_expected


def test_a_bad_checkpoint_must_be_rejected_and_followed_by_a_good_one():
    """
    A checkpoint that got damaged on its way to the disk is refused before it counts;
    nothing is decided, and a later one is good.
    """
    rejected = line("checkpoint_rejected", step=100, message="Read back otherwise.")
    committed = line("checkpoint_committed", step=100)

    assert story([committed, rejected, committed, END], fault="corrupt").is_as_expected
    assert not story([committed, rejected, END], fault="corrupt").is_as_expected
    assert not story([committed, END], fault="corrupt").is_as_expected
    assert not story([rejected, BACK, committed, END], fault="corrupt").is_as_expected


def test_a_quiet_run_must_stay_quiet():
    """
    Without a fault a breach of an enforced rule is a problem, and its message is
    repeated; one that is only observed is told, since a busy machine does slow a rank.
    """
    observed = breach(rule="straggler", mode="observe")

    assert story([line("start"), END], fault="none").is_as_expected
    assert story([breach(mode="enforce"), END], fault="none").problems[0].endswith("Too high.")
    assert story([observed, END], fault="none").is_as_expected
    assert story([observed, END], fault="none").others == (observed,)


def test_a_finding_from_before_the_fault_is_not_taken_for_it():
    """
    What the rule found before the fault began does not count; the first finding after
    it does.
    """
    entries = [breach("straggler", rank=0, step=231), breach("straggler", step=270), END]

    assert story(entries, fault="straggler").found.step == 270
    assert not story([entries[0], END], fault="straggler").is_as_expected


def test_a_straggler_must_not_stop_training():
    """
    For a straggler a decision to act is a problem: it is named and training goes on.
    """
    found = breach(rule="straggler", step=280)

    assert story([found, END], fault="straggler").is_as_expected
    assert not story([found, BACK, END], fault="straggler").is_as_expected


def test_the_stack_of_the_culprit_is_part_of_the_story():
    """
    Frames that came with the breach are told, innermost first.
    """
    frames = ["a.py:1 inner", "b.py:2 outer"]
    told = story([breach(rule="hang", step=80, evidence={"stack": frames})], BAD_END, "hang")

    assert told.stack == tuple(frames)
