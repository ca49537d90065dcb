"""Who is named when a job stands still, and as what."""

import pytest

from slav1.coordinator.attribution import Cause, attribute
from slav1.coordinator.messages import Position
from slav1.phase import Phase

from ._positions import (
    COMPILER,
    EPOCH_END,
    GRADIENT_SYNC,
    LAST_BARRIER,
    LOADER,
    LONELY_HOOK,
    SAVE,
    SLEEP,
    STEP_BROADCAST,
    STORAGE,
    TORCH_SAVE,
    position,
    waiting,
)

HUNG = position(1, Phase.FORWARD, SLEEP)


def named(*positions: Position, **known: object) -> tuple[Cause, int | None]:
    """Cause and rank of a judgement."""
    found = attribute(positions, **known)
    return found.cause, found.rank


@pytest.mark.parametrize(
    ("culprit", "cause"),
    [
        (HUNG, Cause.STUCK),
        (position(1, Phase.FORWARD, SLEEP, process_state="R"), Cause.STUCK),
        (position(1, Phase.FORWARD), Cause.STUCK),
        (position(1, Phase.BACKWARD, SLEEP), Cause.STUCK),
        (position(1, Phase.BACKWARD, GRADIENT_SYNC, process_state="R"), Cause.STUCK),
        (position(1, Phase.DATA, LOADER), Cause.DATA),
        (position(1, Phase.CHECKPOINT, STORAGE), Cause.STORING),
        (position(1, Phase.BETWEEN, TORCH_SAVE, process_state="D"), Cause.STORING),
        (position(1, Phase.FORWARD, SLEEP, process_state="D"), Cause.BLOCKED_IN_KERNEL),
        (position(1, Phase.FORWARD, COMPILER, process_state="R"), Cause.COMPILING),
        (position(1, Phase.FORWARD, process_state="T"), Cause.STOPPED),
        (position(1, Phase.FORWARD, is_alive=False, process_state="X"), Cause.LOST),
        (position(1, Phase.DONE, exit_reason="ValueError: no"), Cause.LEFT),
    ],
    ids=lambda value: value.value if isinstance(value, Cause) else "",
)
@pytest.mark.parametrize("num_waiting", [1, 3])
def test_names_the_one_that_does_something_else(
    culprit: Position, cause: Cause, num_waiting: int
) -> None:
    """
    While the others wait for gradients, the one that does not is at fault, whatever it does.
    """
    victims = [waiting(rank) for rank in (0, 2, 3)[:num_waiting]]

    assert named(*victims, culprit) == (cause, 1)


@pytest.mark.parametrize(("state", "word"), [("R", "busy"), ("S", "sits")])
def test_the_sentence_tells_computing_from_waiting(state: str, word: str) -> None:
    """
    A rank that keeps a processor busy is told from one that sleeps, with its place.
    """
    culprit = position(1, Phase.FORWARD, SLEEP, process_state=state)

    sentence = attribute([waiting(0), culprit]).sentence

    assert f"Rank 1 {'is busy' if word == 'busy' else word} in a call" in sentence
    assert "step 20, phase forward, for 2.0 s at /home/me/train.py:12" in sentence


def test_the_rank_that_waits_in_nccl_or_gloo_may_be_running() -> None:
    """
    A rank inside of a collective waits, also when the kernel shows it running.
    """
    victim = position(0, Phase.BETWEEN, STEP_BROADCAST, step=21, process_state="R")

    assert named(victim, HUNG) == (Cause.STUCK, 1)


def test_a_rank_that_reads_a_collective_from_its_device_waits() -> None:
    """
    Where collectives are queued on a device, the host waits in the line that reads them.
    """
    victim = position(0, Phase.BETWEEN, STEP_BROADCAST[2:], step=21, process_state="R")

    assert named(victim, HUNG) == (Cause.STUCK, 1)


def test_a_lost_process_comes_before_all_else() -> None:
    """
    Of a dead, a stopped, a failed and a hanging rank the dead one is named.
    """
    dead = position(3, Phase.FORWARD, is_alive=False, process_state="X")
    failed = position(2, Phase.DONE, exit_reason="RuntimeError: peer gone")
    stopped = position(0, Phase.FORWARD, process_state="T")

    assert named(stopped, HUNG, failed, dead) == (Cause.LOST, 3)
    assert named(stopped, HUNG, failed) == (Cause.LEFT, 2)
    assert named(stopped, HUNG) == (Cause.STOPPED, 0)


def test_of_several_that_failed_the_first_is_named() -> None:
    """
    Ranks that failed because a peer had failed are not taken for the cause.
    """
    first = position(2, Phase.DONE, exit_reason="ValueError: no", since_progress_s=9.0)
    second = position(0, Phase.DONE, exit_reason="RuntimeError: peer", since_progress_s=8.0)

    assert named(second, waiting(1), first) == (Cause.LEFT, 2)


@pytest.mark.parametrize("reason", [None, "finished", "exit"])
def test_a_rank_that_finished_in_order_is_no_failure(reason: str | None) -> None:
    """
    A goodbye in good order is never taken for a rank that left the others.
    """
    done = position(0, Phase.DONE, exit_reason=reason)

    assert named(done, HUNG) == (Cause.STUCK, 1)


def test_of_two_that_do_something_else_the_overdue_one_is_named() -> None:
    """
    A rank that may still take its time, as in a save, does not hide one that hangs.
    """
    saving = position(0, Phase.CHECKPOINT, STORAGE, step=20)
    hung = position(1, Phase.FORWARD, SLEEP, step=21)

    assert named(saving, hung, waiting(2), overdue={1, 2}) == (Cause.STUCK, 1)
    assert named(saving, hung, overdue={1}) == (Cause.STUCK, 1)
    assert named(saving, hung, waiting(2), overdue={2}) == (Cause.STORING, 0)


def test_a_compiling_rank_does_not_hide_a_hanging_one() -> None:
    """
    Of two overdue ranks the one that compiles is the less suspect.
    """
    compiling = position(0, Phase.FORWARD, COMPILER)

    assert named(compiling, HUNG, overdue={0, 1}) == (Cause.STUCK, 1)
    assert named(compiling, waiting(1), overdue={0, 1}) == (Cause.COMPILING, 0)
    assert named(compiling, position(1, Phase.FORWARD, COMPILER), overdue={0, 1}) == (
        Cause.COMPILING,
        0,
    )


def test_without_stacks_the_one_behind_is_named() -> None:
    """
    Where nobody shows that it waits, the rank that got least far is at fault.
    """
    ahead = position(0, Phase.BACKWARD)

    assert named(ahead, position(1, Phase.FORWARD)) == (Cause.BEHIND, 1)
    assert named(ahead, position(1, Phase.DATA)) == (Cause.DATA, 1)
    assert named(position(0, Phase.BETWEEN, step=21), position(1, Phase.OPTIMIZER)) == (
        Cause.BEHIND,
        1,
    )
    assert named(ahead, position(1, Phase.BACKWARD)) == (Cause.UNKNOWN, None)
    assert named(position(0, Phase.DATA), position(1, Phase.DATA)) == (Cause.DATA, None)


def test_one_process_alone_has_nobody_to_wait_for() -> None:
    """
    The only rank of a job is named when it stands still.
    """
    assert named(position(0, Phase.FORWARD, SLEEP)) == (Cause.STUCK, 0)


@pytest.mark.parametrize("num_others", [1, 3])
def test_a_skipped_collective_is_blamed_on_the_one_ahead(num_others: int) -> None:
    """
    A rank that got past a gradient sync that the others wait in has left it out.
    """
    ahead = position(1, Phase.BETWEEN, STEP_BROADCAST, step=21)
    others = [waiting(rank) for rank in (0, 2, 3)[:num_others]]

    found = attribute([ahead, *others])

    assert (found.cause, found.rank, found.peer) == (Cause.SKIPPED, 1, 0)
    assert found.is_deadlock
    assert "rank 0 in the gradient sync of step 20" in found.sentence
    assert "it waits in broadcast of step 21" in found.sentence


@pytest.mark.parametrize("num_others", [1, 3])
def test_a_collective_in_a_hook_of_one_rank_is_named_with_its_line(num_others: int) -> None:
    """
    Ranks that wait at the same place in different operations are told apart by their
    stacks, and the user's own line is shown.
    """
    lonely = position(0, Phase.BETWEEN, LONELY_HOOK, step=21)
    others = [
        position(rank, Phase.BETWEEN, STEP_BROADCAST, step=21) for rank in (1, 2, 3)[:num_others]
    ]

    found = attribute([*others, lonely])

    assert (found.cause, found.rank) == (Cause.DIFFERENT_OPERATIONS, 0)
    assert found.is_deadlock
    assert "different operations" in found.sentence
    assert "/home/me/hooks.py:7 on_train_batch_end" in found.sentence
    assert "_broadcast_sigterm_tensor" in found.sentence
    assert "train.py:90" not in found.sentence


def test_packages_are_not_the_users_code_wherever_they_are_installed() -> None:
    """
    A host that lies in a folder of its own, beside the user's programs, is still the host.
    """
    moved = [
        tuple(frame.replace("/env/lib/python3.11/site-packages", "/opt/train") for frame in stack)
        for stack in (LONELY_HOOK, STEP_BROADCAST)
    ]

    assert named(
        position(0, Phase.BETWEEN, moved[0], step=21),
        position(1, Phase.BETWEEN, moved[1], step=21),
    ) == (Cause.DIFFERENT_OPERATIONS, 0)


def test_one_that_left_out_a_collective_of_the_user_is_named_too() -> None:
    """
    Of four ranks the only one that is not in the user's collective is at fault.
    """
    inside = [position(rank, Phase.BETWEEN, LONELY_HOOK, step=21) for rank in (0, 1, 3)]

    assert named(*inside, position(2, Phase.BETWEEN, STEP_BROADCAST, step=21)) == (
        Cause.DIFFERENT_OPERATIONS,
        2,
    )


@pytest.mark.parametrize("num_others", [1, 3])
def test_a_collective_that_others_took_for_theirs_is_blamed_on_its_rank(num_others: int) -> None:
    """
    When an extra collective was answered by another of the framework, the rank left
    behind by one made it, and not those that went on.
    """
    behind = position(0, Phase.BETWEEN, STEP_BROADCAST, step=21)
    others = [waiting(rank, step=21) for rank in (1, 2, 3)[:num_others]]

    assert named(behind, *others) == (Cause.DIFFERENT_OPERATIONS, 0)


@pytest.mark.parametrize(
    "away",
    [
        position(0, Phase.TEARDOWN, LAST_BARRIER, step=5, num_batches=5),
        position(0, Phase.DONE, step=5, num_batches=5, exit_reason="finished"),
        position(0, Phase.EVALUATION, LAST_BARRIER, step=5, num_batches=5),
        position(0, Phase.BETWEEN, EPOCH_END, step=5, num_batches=5),
        position(0, Phase.CHECKPOINT, EPOCH_END, step=5, num_batches=5),
    ],
    ids=["teardown", "done", "evaluation", "epoch end", "save at epoch end"],
)
@pytest.mark.parametrize("other_phase", [Phase.BACKWARD, Phase.BETWEEN])
def test_uneven_batches_are_not_blamed_on_the_rank_that_has_more(
    away: Position, other_phase: Phase
) -> None:
    """
    The rank that has left the epoch is named, with the number of batches it had; the one
    that waits for it is not called slow.
    """
    stack = GRADIENT_SYNC if other_phase is Phase.BACKWARD else STEP_BROADCAST
    other = position(1, other_phase, stack, step=5, num_batches=6)

    found = attribute([other, away])

    assert (found.cause, found.rank, found.peer) == (Cause.UNEVEN_BATCHES, 0, 1)
    assert "after 5 batches" in found.sentence
    assert "different numbers of batches" in found.sentence
    assert found.is_deadlock


def test_loaders_of_the_same_length_rule_out_uneven_batches() -> None:
    """
    Where the lengths are known to be equal, a rank that left took another branch.
    """
    away = position(0, Phase.TEARDOWN, LAST_BARRIER)

    assert named(away, waiting(1), has_uneven_batches=False) == (Cause.DIFFERENT_OPERATIONS, 0)
    assert named(away, waiting(1), has_uneven_batches=True) == (Cause.UNEVEN_BATCHES, 0)
    assert named(away, waiting(1), has_uneven_batches=None) == (Cause.UNEVEN_BATCHES, 0)


def test_a_save_that_not_all_ranks_enter_says_who_is_missing() -> None:
    """
    A rank in a checkpoint's barrier while others train took another branch, and the
    sentence lists who came and who did not.
    """
    found = attribute(
        [position(0, Phase.CHECKPOINT, SAVE, step=21), waiting(1, step=21), waiting(2, step=21)]
    )

    assert (found.cause, found.rank) == (Cause.DIFFERENT_OPERATIONS, 0)
    assert "entered by ranks [0], missing [1, 2]" in found.sentence
    assert "took different branches" in found.sentence
    assert "hooks.py:9" in found.sentence


def test_a_rank_still_in_setup_has_not_left_the_steps() -> None:
    """
    A rank that waits in set-up is behind, not ahead; nobody speaks of batches.
    """
    found = attribute(
        [position(0, Phase.SETUP, LAST_BARRIER, step=0), waiting(1, step=0, num_batches=1)]
    )

    assert (found.cause, found.rank) == (Cause.DIFFERENT_OPERATIONS, 0)


def test_all_in_the_same_place_names_nobody() -> None:
    """
    Ranks that all wait for the same thing point at the network, and time can't help.
    """
    found = attribute([waiting(0), waiting(1)])

    assert (found.cause, found.rank) == (Cause.ALL_WAIT, None)
    assert found.is_deadlock
    assert "network" in found.sentence


def test_three_different_operations_name_nobody_without_evidence() -> None:
    """
    Where each rank waits for something else in the framework's code, no rank is picked.
    """
    eval_site = (LAST_BARRIER[0], f"{LAST_BARRIER[2]}2", *LAST_BARRIER[3:])
    found = attribute(
        [
            position(0, Phase.BETWEEN, STEP_BROADCAST, step=21),
            position(1, Phase.BETWEEN, LAST_BARRIER, step=21),
            position(2, Phase.BETWEEN, eval_site, step=21),
        ]
    )

    assert (found.cause, found.rank) == (Cause.DIFFERENT_OPERATIONS, None)


@pytest.mark.parametrize("late_phase", [Phase.FORWARD, Phase.EVALUATION, Phase.CHECKPOINT])
def test_the_peers_of_a_late_horovod_rank_are_not_the_slow_ones(late_phase: Phase) -> None:
    """
    Ranks inside of an allreduce of another library wait; the one that has not entered it
    is named with its phase.
    """
    inside = ("/env/lib/python3.11/site-packages/horovod/torch/mpi_ops.py:100 synchronize",)
    late = position(0, late_phase, SLEEP)

    found = attribute([late, position(1, Phase.OPTIMIZER, inside)])

    assert found.rank == 0
    assert f"phase {late_phase.name.lower()}" in found.sentence


def test_nobody_left_is_no_crash() -> None:
    """
    A look at a job that has just ended finds nothing to blame.
    """
    done = [position(rank, Phase.DONE, exit_reason="finished") for rank in (0, 1)]

    assert named(*done) == (Cause.UNKNOWN, None)
