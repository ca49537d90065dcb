"""Copies that ranks hold, compared on real ranks of both hosts."""

from typing import Any

import pytest

from ._runs import entries, messages, told

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]

RULE = "replica_divergence"


def held(ended: Any, what: str) -> list[Any]:
    """What each rank held in the end."""
    return [told(out, "held")[what] for out in ended.out.values()]


def test_a_flipped_bit_is_found_named_and_undone(ranks: Any) -> None:
    """
    One bit of a parameter that flips on one of three ranks is found at the next look, the
    rank and the parameter are named, all ranks go back to before it without leaving out a
    batch, and hold the same in the end.
    """
    fault = "bitflip:rank=2,step=12,bit=3"
    ended = ranks("replicas.py", "lightning", 30, num_ranks=3, env={"SLA_INJECT": fault})

    assert ended.succeeded(), ended
    assert [told(out, "steps")["num_steps"] for out in ended.out.values()] == [30, 30, 30]
    assert len(set(held(ended, "weights"))) == 1
    breach = entries(ranks.run_dir, "breach", rule=RULE)[0]
    assert (breach.rank, breach.step, breach.action) == (2, 15, "rollback")
    assert breach.evidence["parameter"] == "net.0.weight"
    assert breach.evidence["tensor"] == "parameter"
    assert breach.evidence["first_step"] == 11
    (restored,) = entries(ranks.run_dir, "restored")
    assert restored.step == 7
    goes_on = [text for text in messages(ranks.run_dir, "notice") if "Training goes on" in text]
    assert "without batches" not in goes_on[0]


def test_two_ranks_are_both_suspect(ranks: Any) -> None:
    """
    One bit of the optimizer's state that flips on one of two ranks of a loop is found, both
    ranks are suspect, and after going back they hold the same.
    """
    fault = "bitflip:rank=1,step=12,bit=30,what=optimizer"
    ended = ranks("replicas.py", "accelerate", 30, env={"SLA_INJECT": fault})

    assert ended.succeeded(), ended
    assert len(set(held(ended, "weights"))) == 1
    breach = entries(ranks.run_dir, "breach", rule=RULE)[0]
    assert (breach.rank, breach.step) == (None, 15)
    assert breach.evidence["suspects"] == [0, 1]
    assert "exp_avg" in {one["tensor"] for one in breach.evidence["differing"]}
    assert [line.step for line in entries(ranks.run_dir, "restored")] == [3]
    assert {told(out, "steps")["stopped_at"] for out in ended.out.values()} == {None}


def test_pc15_seeds_and_statistics_of_each_rank_are_fine(ranks: Any) -> None:
    """
    Ranks that draw their first weights from seeds of their own, which DDP replaces, that
    keep running statistics of their own, and of which one begins to keep an average of the
    weights, hold no copies that differ; what they save is saved.
    """
    ended = ranks("replicas.py", "lightning", 25)

    assert ended.succeeded(), ended
    assert len(set(held(ended, "weights"))) == 1
    assert len(set(held(ended, "statistics"))) == 2
    assert entries(ranks.run_dir, "breach", "incident_begin", "decision") == []
    first, average = messages_of_rule(ranks)
    assert "every 5 steps between ranks 0, 1: 6 parameters and 12 tensors" in first
    assert "different bits of average.0.weight" in average
    committed = entries(ranks.run_dir, "checkpoint_committed")
    assert [line.step for line in committed] == [3, 7, 11, 15, 19, 23]


@pytest.mark.parametrize(
    ("host", "prefix"),
    [("lightning", "net."), pytest.param("accelerate", "", marks=pytest.mark.thorough)],
)
def test_a_wrong_number_that_the_mean_hides_is_found_and_undone(
    host: str, prefix: str, ranks: Any
) -> None:
    """
    One number that one of two ranks computes wrong, once, is found by running the micro-batch
    again: rank, step and parameter are named, all ranks go back to before it, and end with the
    weights of a run in which nothing went wrong and nothing was run twice.
    """
    healthy = ranks("replicas.py", host, 16)
    ended = ranks("replicas.py", host, 16, env={"REPLAY": "1", "WRONG": "rank=1,step=9"})

    assert healthy.succeeded() and ended.succeeded(), ended
    assert [told(out, "wrong")["num"] for out in ended.out.values()] == [0, 1]
    breach, *_ = entries(ranks.run_dir, "breach", rule=RULE)
    assert (breach.rank, breach.step, breach.action) == (1, 9, "rollback")
    assert breach.evidence["parameter"].startswith(prefix)
    assert breach.evidence["wrong"] == "first"
    assert breach.evidence["differing"][0] == f"output of {prefix[:-1] or 'Sequential'}"
    assert [line.step for line in entries(ranks.run_dir, "restored")] == [
        7 if host == "lightning" else 3
    ]
    assert held(ended, "weights") == held(healthy, "weights")
    assert held(ended, "statistics") == held(healthy, "statistics")
    assert entries(ranks.run_dir, "breach", rule="seed_contract") == []
    (probe,) = [line for line in messages(ranks.run_dir, "notice") if "first micro-batch" in line][
        :1
    ]
    assert "outputs and gradients had the same bits" in probe


def messages_of_rule(ranks: Any) -> list[str]:
    """Notices of the rule."""
    return [line.message or "" for line in entries(ranks.run_dir, "notice", rule=RULE)]


@pytest.mark.thorough
def test_what_is_sharded_is_left_alone(ranks: Any) -> None:
    """
    Of each way to wrap a model exactly what several ranks hold by design is compared, with
    the optimizer's state for it, between exactly these ranks: everything under DDP but what
    it is told to ignore, nothing of what is sharded over all ranks, and of a hybrid the same
    shard of each copy.
    """
    ended = ranks("copies.py", num_ranks=4)

    assert ended.succeeded(), ended
    adam = ["exp_avg", "exp_avg_sq", "parameter"]
    for rank, out in ended.out.items():

        def holds(name: str, out: str = out) -> tuple[int, list[Any], list[str]]:
            line = told(out, name)
            return line["num_elements"], line["ranks"], line["kinds"]

        everyone, same_shard = [[0, 1, 2, 3]], [[rank % 2, rank % 2 + 2]]
        assert holds("ddp") == holds("fsdp unsharded") == (92, everyone, adam)
        assert holds("ddp but one") == (88, everyone, adam)
        assert holds("plain") == holds("fsdp") == holds("fsdp2") == (0, [], [])
        assert holds("hsdp") == holds("hsdp2") == (46, same_shard, adam)
        assert holds("zero") == (92, everyone, ["parameter"])
        assert told(out, "ddp")["is_certain"]
        assert not told(out, "hook")["is_certain"]
