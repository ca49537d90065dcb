"""What the agreement sends and says in each situation; orders of events are tried in
``test_agreement_interleavings.py``."""

from dataclasses import replace

import pytest

from slav1.coordinator.agreement import (
    Agreement,
    Effects,
    Hold,
    Outcome,
    Release,
    Result,
    Schedule,
)
from slav1.decision import Action, Decision

NODES = {"a": (0, 1), "b": (2, 3)}


def propose(agreement: Agreement, action: Action = Action.STOP) -> Effects:
    return agreement.propose(action, rule="loss_variance", rank=2, reason="The loss exploded.")


def proposed(action: Action, number: int) -> Decision:
    return Decision(
        number=number, action=action, rule="loss_variance", rank=2, reason="The loss exploded."
    )


def acknowledge(agreement: Agreement, number: int = 1) -> Effects:
    assert agreement.on_acknowledge("a", number, 7) == ()
    return agreement.on_acknowledge("b", number, 9)


def outcomes(effects: Effects) -> list[tuple[int, Result]]:
    return [(e.decision.number, e.result) for e in effects if isinstance(e, Outcome)]


@pytest.fixture
def agreement() -> Agreement:
    return Agreement(NODES, acknowledge_limit_s=2.0, carry_out_limit_s=30.0)


def test_a_proposal_holds_every_node(agreement: Agreement) -> None:
    """
    A proposal makes the ranks of every node wait for decision 1.
    """
    assert propose(agreement) == (Hold(node="a", number=1), Hold(node="b", number=1))


def test_largest_acknowledged_step_is_scheduled(agreement: Agreement) -> None:
    """
    Once every node has answered, all are told the largest step that was acknowledged.
    """
    propose(agreement)

    decision = replace(proposed(Action.STOP, 1), step=9)
    assert acknowledge(agreement) == (
        Schedule(node="a", decision=decision),
        Schedule(node="b", decision=decision),
    )
    assert agreement.current == decision


def test_ends_when_all_ranks_acted(agreement: Agreement) -> None:
    """
    A decision is over, and its ranks released, when the last rank confirms.
    """
    propose(agreement)
    acknowledge(agreement)

    assert [agreement.on_carried_out(rank, 1) for rank in (3, 0, 2)] == [(), (), ()]
    outcome, *releases = agreement.on_carried_out(1, 1)

    assert isinstance(outcome, Outcome)
    assert outcome.result is Result.CARRIED_OUT
    assert outcome.carried_out == (0, 1, 2, 3)
    assert outcome.missing == ()
    assert releases == [Release(node="a", number=1), Release(node="b", number=1)]
    assert agreement.current is None


def test_answers_about_other_decisions_change_nothing(agreement: Agreement) -> None:
    """
    An acknowledgement or confirmation of a decision that is over is passed over.
    """
    propose(agreement)

    assert agreement.on_acknowledge("a", 0, 100) == ()
    assert agreement.on_acknowledge("b", 0, 100) == ()
    acknowledge(agreement)
    assert agreement.on_acknowledge("a", 1, 100) == ()
    assert agreement.on_carried_out(0, 0) == ()
    assert agreement.current is not None
    assert agreement.current.step == 9


def test_higher_action_replaces_one_that_is_not_scheduled(agreement: Agreement) -> None:
    """
    A higher action takes the place of a lower one that no rank can have acted on.
    """
    propose(agreement, Action.SNAPSHOT)

    effects = propose(agreement, Action.STOP)

    assert outcomes(effects) == [(1, Result.COVERED)]
    assert effects[1:] == (
        Release(node="a", number=1),
        Release(node="b", number=1),
        Hold(node="a", number=2),
        Hold(node="b", number=2),
    )
    assert agreement.current == proposed(Action.STOP, 2)


def test_higher_action_waits_for_one_that_is_scheduled(agreement: Agreement) -> None:
    """
    A scheduled decision is carried out first; the higher one starts right after it.
    """
    propose(agreement, Action.SNAPSHOT)
    acknowledge(agreement)

    assert propose(agreement, Action.STOP) == ()
    for rank in (0, 1, 2):
        agreement.on_carried_out(rank, 1)
    effects = agreement.on_carried_out(3, 1)

    assert outcomes(effects) == [(1, Result.CARRIED_OUT)]
    assert effects[-2:] == (Hold(node="a", number=2), Hold(node="b", number=2))


def test_highest_of_several_waits(agreement: Agreement) -> None:
    """
    Of several actions behind a scheduled one only the highest is kept.
    """
    propose(agreement, Action.SNAPSHOT)
    acknowledge(agreement)
    propose(agreement, Action.ROLLBACK)

    assert outcomes(propose(agreement, Action.STOP)) == [(2, Result.COVERED)]
    assert outcomes(propose(agreement, Action.SKIP_BATCHES)) == [(4, Result.COVERED)]


@pytest.mark.parametrize("action", [Action.ROLLBACK, Action.SNAPSHOT])
def test_same_or_milder_action_is_covered(agreement: Agreement, action: Action) -> None:
    """
    What the decision under way does anyway is not decided again.
    """
    propose(agreement, Action.ROLLBACK)

    assert outcomes(propose(agreement, action)) == [(2, Result.COVERED)]
    assert agreement.current == proposed(Action.ROLLBACK, 1)


def test_lost_rank_withdraws_what_is_not_scheduled(agreement: Agreement) -> None:
    """
    When a rank is lost before the schedule, nobody acts and nobody waits.
    """
    propose(agreement)
    agreement.on_acknowledge("a", 1, 7)

    effects = agreement.on_rank_lost(3)

    assert outcomes(effects) == [(1, Result.WITHDRAWN)]
    assert effects[1:] == (Release(node="a", number=1), Release(node="b", number=1))
    assert agreement.on_acknowledge("b", 1, 9) == ()


def test_lost_rank_leaves_a_schedule_standing(agreement: Agreement) -> None:
    """
    When a rank is lost after the schedule, the others still act, since one may have.
    """
    propose(agreement)
    acknowledge(agreement)

    assert agreement.on_rank_lost(3) == ()
    agreement.on_carried_out(0, 1)
    agreement.on_carried_out(1, 1)
    effects = agreement.on_carried_out(2, 1)

    assert outcomes(effects) == [(1, Result.CARRIED_OUT)]


def test_lost_node_is_not_told_anything(agreement: Agreement) -> None:
    """
    A lost monitor withdraws the decision like a lost rank, and gets no message.
    """
    propose(agreement)

    effects = agreement.on_node_lost("b")

    assert outcomes(effects) == [(1, Result.WITHDRAWN)]
    assert effects[1:] == (Release(node="a", number=1),)


def test_nothing_is_decided_after_a_loss(agreement: Agreement) -> None:
    """
    With a rank lost no step is left that all could act at: proposals are withdrawn at
    once, and nobody is made to wait.
    """
    agreement.on_rank_lost(3)

    effects = propose(agreement)

    assert outcomes(effects) == [(1, Result.WITHDRAWN)]
    assert len(effects) == 1
    assert agreement.current is None


def test_end_of_training_before_the_schedule_is_moot(agreement: Agreement) -> None:
    """
    A rank that ended its last step without waiting shows that no step is left to act at.
    """
    propose(agreement)

    effects = agreement.on_rank_done(0)

    assert outcomes(effects) == [(1, Result.MOOT)]
    assert effects[1:] == (Release(node="a", number=1), Release(node="b", number=1))
    assert outcomes(propose(agreement)) == [(2, Result.MOOT)]


def test_end_of_training_before_the_scheduled_step_is_moot(agreement: Agreement) -> None:
    """
    A schedule for a step that nobody runs ends with the last rank, carried out by none.
    """
    propose(agreement)
    acknowledge(agreement)

    assert [agreement.on_rank_done(rank) for rank in (0, 1, 2)] == [(), (), ()]
    assert outcomes(agreement.on_rank_done(3)) == [(1, Result.MOOT)]


def test_silent_node_withdraws_a_decision(agreement: Agreement) -> None:
    """
    Ranks do not stand still longer than the limit for a node that does not answer, and
    the outcome names it.
    """
    propose(agreement)
    agreement.on_acknowledge("a", 1, 7)

    assert agreement.on_tick(100.0) == ()
    assert agreement.on_tick(102.0) == ()
    effects = agreement.on_tick(102.1)

    assert outcomes(effects) == [(1, Result.WITHDRAWN)]
    assert isinstance(effects[0], Outcome)
    assert effects[0].reason == "No answer within 2 s from: b."


def test_overdue_decision_is_reported_once_and_stands(agreement: Agreement) -> None:
    """
    A scheduled decision is never withdrawn: when it is not carried out in time the
    missing ranks are named, once.
    """
    propose(agreement)
    agreement.on_tick(0.0)
    acknowledge(agreement)
    agreement.on_carried_out(1, 1)

    assert agreement.on_tick(50.0) == ()
    (outcome,) = agreement.on_tick(80.1)
    assert agreement.on_tick(200.0) == ()

    assert isinstance(outcome, Outcome)
    assert outcome.result is Result.OVERDUE
    assert outcome.missing == (0, 2, 3)
    assert outcome.reason == "Not carried out within 30 s by ranks 0, 2, 3."
    assert agreement.current == outcome.decision


def test_next_decision_has_its_own_time(agreement: Agreement) -> None:
    """
    The limit of one decision does not run on into the next one.
    """
    propose(agreement)
    agreement.on_tick(0.0)
    agreement.on_tick(3.0)
    propose(agreement)

    assert agreement.on_tick(4.0) == ()
    assert agreement.on_tick(6.0) == ()
    assert outcomes(agreement.on_tick(6.1)) == [(2, Result.WITHDRAWN)]
