"""Digests of copies, put together from the ranks that hold them."""

import struct

from slav1.coordinator.messages import RankDigests, RankReplicas
from slav1.coordinator.replicas import MAX_WAITING, ReplicaSets
from slav1.sample import Replicas

NAMES = [("weight", "parameter"), ("bias", "parameter"), ("weight", "exp_avg")]


def declared(num_ranks: int, identity: str = "same") -> ReplicaSets:
    """Sets after all ranks have said what they hold."""
    sets = ReplicaSets()
    for rank in range(num_ranks):
        sets.declare(holds(rank, num_ranks, identity))
    return sets


def holds(
    rank: int, num_ranks: int, identity: str = "same", *, is_trained: bool = True
) -> RankReplicas:
    """What a rank says it holds; the lowest one gives the names."""
    return RankReplicas(
        rank=rank,
        identity=identity,
        ranks=list(range(num_ranks)),
        slots=[0, 0, 1],
        every_steps=50,
        names=NAMES if rank == 0 else [],
        is_trained=is_trained,
    )


def digests(
    rank: int, step: int, *values: int, slots: tuple[int, ...] = (0, 1), identity: str = "same"
) -> RankDigests:
    """What a rank's copies hold after a step."""
    packed = struct.pack(f"<{len(values)}Q", *values)
    return RankDigests(rank=rank, identity=identity, step=step, slots=list(slots), values=packed)


def compared(sets: ReplicaSets, *messages: RankDigests) -> list[Replicas]:
    """Comparisons that these messages complete."""
    return [event for message in messages for event in sets.add(message)]


def test_names_what_differs_and_who_holds_what() -> None:
    """
    Once all ranks have spoken, the tensor that differs is named, with the ranks that hold
    the same of it together.
    """
    sets = declared(3)

    (event,) = compared(
        sets, digests(2, 7, 1, 2, 3), digests(0, 7, 1, 2, 3), digests(1, 7, 1, 9, 3)
    )

    (difference,) = event.differing
    assert (difference.parameter, difference.kind) == ("bias", "parameter")
    assert difference.camps == ((0, 2), (1,))
    assert (event.step, event.ranks, event.num_tensors) == (7, (0, 1, 2), 3)
    assert event.is_first


def test_a_share_of_the_tensors_keeps_their_names() -> None:
    """
    A look at one share compares the tensors of this share only, under their own names; it is
    the first of its kind only once.
    """
    sets = declared(2)
    looks = compared(sets, digests(0, 1, 3, slots=(1,)), digests(1, 1, 4, slots=(1,)))
    looks += compared(sets, digests(0, 2, 5, slots=(1,)), digests(1, 2, 5, slots=(1,)))

    assert [(one.parameter, one.kind, one.slot) for one in looks[0].differing] == [
        ("weight", "exp_avg", 1)
    ]
    assert [(one.num_tensors, one.num_differing, one.is_first) for one in looks] == [
        (1, 1, True),
        (1, 0, False),
    ]


def test_a_rank_that_is_missing_keeps_nobody_waiting() -> None:
    """
    Ranks that are there are compared although one says nothing any more, and what waits for
    it stays little.
    """
    sets = declared(3)
    steps = range(0, 50 * 3 * MAX_WAITING, 50)
    looks = compared(sets, *(digests(rank, step, 1, 2, 3) for step in steps for rank in (0, 2)))

    assert [one.step for one in looks] == list(steps[:-MAX_WAITING])
    assert {one.ranks for one in looks} == {(0, 2)}


def test_what_came_before_a_rollback_is_forgotten() -> None:
    """
    Digests from before a rollback are not compared with those of the same step after it.
    """
    sets = declared(2)
    assert compared(sets, digests(0, 5, 1, 2, 3)) == []
    sets.restart()

    assert compared(sets, digests(1, 5, 1, 2, 4)) == []
    (event,) = compared(sets, digests(0, 5, 1, 2, 4))

    assert event.num_differing == 0


def test_ranks_with_other_tensors_are_told_and_kept_apart() -> None:
    """
    Ranks whose tensors are laid out in another way are told once, and only those that are
    alike are compared.
    """
    sets = declared(2)
    introduction = ReplicaSets().declare(holds(0, 3))
    sets.declare(holds(1, 2, identity="other"))
    looks = [digests(0, 5, 1, 2, 3), digests(1, 5, 1, 2, 3, identity="other")]
    (told,) = [text for one in looks for text in sets.unlike(one)]

    assert "every 50 steps between ranks 0, 1, 2: 2 parameters and 1 tensors" in introduction[0]
    assert "Ranks [0] and [1] should hold copies" in told
    assert [text for one in looks for text in sets.unlike(one)] == []
    assert compared(sets, *looks) == []


def test_ranks_that_change_what_they_hold_one_after_another_are_alike() -> None:
    """
    When all ranks begin to train more layers, the one that says so first is not told apart from
    those that are about to.
    """
    sets, told = declared(2), []
    for step, identity in ((5, "same"), (10, "more")):
        for rank in range(2):
            told += sets.declare(holds(rank, 2, identity))
            told += sets.unlike(digests(rank, step, 1, 2, 3, identity=identity))

    assert told == []


def test_what_is_not_trained_is_compared_beside_the_rest() -> None:
    """
    Tensors that no optimizer updates are a set of their own between the same ranks.
    """
    sets = declared(2)
    for rank in range(2):
        assert sets.declare(holds(rank, 2, "frozen", is_trained=False)) == []
    looks = [digests(rank, 5, 1, 2, 3, identity=i) for i in ("same", "frozen") for rank in (0, 1)]

    assert [one.is_trained for one in compared(sets, *looks)] == [True, False]
    assert [text for one in looks for text in sets.unlike(one)] == []
