"""What the host does to a job without a word is refused or said before the first step."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from _launch import free_port
from accelerate.utils import DistributedType

from sla_accelerate._traps import check_group, check_sync, find_harmless, is_one_of_several

from ._runs import messages, run_folders, told

SCRIPTS = Path(__file__).parent / "_scripts"


class State:
    """What is asked of an accelerator."""

    def __init__(self, num_processes: int, mode: str) -> None:
        self.num_processes = num_processes
        self.distributed_type = DistributedType[mode]


def test_ranks_that_would_train_apart_are_refused():
    """
    Ranks that know of each other need a mode that syncs; one process needs none.
    """
    with pytest.raises(ValueError, match=r"2 ranks .* mode NO.*ACCELERATE_USE_CPU=true"):
        check_sync(State(2, "NO"))

    check_sync(State(1, "NO"))
    check_sync(State(2, "MULTI_CPU"))


def test_ranks_whose_group_is_gone_are_refused():
    """
    Ranks without a process group, as after an earlier accelerator's end_training, are told what
    ended it; one process needs none.
    """
    with pytest.raises(ValueError, match=r"2 ranks.*Call end_training\(\) once"):
        check_group(State(2, "MULTI_CPU"))

    check_group(State(1, "NO"))


@pytest.mark.parametrize(
    ("variable", "mode", "name"),
    [
        ("ACCELERATE_USE_FSDP", "MULTI_CPU", "FSDP"),
        ("ACCELERATE_USE_DEEPSPEED", "MULTI_CPU", "DeepSpeed"),
        ("ACCELERATE_USE_FSDP", "FSDP", None),
        ("ACCELERATE_USE_DEEPSPEED", "DEEPSPEED", None),
    ],
)
def test_a_plugin_that_is_ignored_is_said(variable, mode, name):
    """
    A plugin that was given and is not in force is named; one that is in force is not.
    """
    said = find_harmless(State(2, mode), {variable: "true"})

    assert len(said) == (name is not None)
    assert name is None or (f"plugin for {name}" in said[0] and mode in said[0])


@pytest.mark.parametrize(
    ("own", "above", "is_found"),
    [
        ({"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "127.0.0.1"}, {}, True),
        ({"ACCELERATE_MIXED_PRECISION": "no"}, {}, False),
        (
            {"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "node7"},
            {"MASTER_ADDR": "node7"},
            False,
        ),
        ({"ACCELERATE_MIXED_PRECISION": "no", "MASTER_ADDR": "x", "PMI_RANK": "0"}, {}, False),
        ({"MASTER_ADDR": "x"}, {}, False),
    ],
    ids=["asked for more", "asked for one", "a cluster's address", "mpirun", "no launcher"],
)
def test_one_process_of_several_is_known(own, above, is_found):
    """
    Only a launcher of Accelerate's that has added an address to meet at, and no rank, is
    taken for one that was to start several.
    """
    assert is_one_of_several({"PATH": "/bin", **own}, {"PATH": "/bin", **above}) is is_found


def launched(launch, *options, env=None):
    """Starts an unchanged script by ``accelerate launch``, on a machine without a GPU."""
    return launch.command(
        *("-m", "accelerate.commands.launch", *options),
        *("--main_process_port", str(free_port()), "-m", "sla_accelerate.run"),
        *(str(SCRIPTS / "unchanged.py"), "plain"),
        env={
            "CUDA_VISIBLE_DEVICES": "",
            "SLA_RUN_DIR": str(launch.folder / "runs"),
            **(env or {}),
        },
    )


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.thorough
def test_one_process_where_two_were_asked_for_is_said(launch):
    """
    ``accelerate launch --cpu --num_processes 2`` starts one process: it trains, since that is
    right, and the ledger and the screen say that it is alone.
    """
    ended = launched(launch, "--cpu", "--num_processes", "2")

    assert ended.succeeded(), ended
    assert told(ended.out[-1], "made")["ranks"] == 1
    assert any("this one alone" in one for one in messages(launch.folder / "runs", "notice"))
    assert "this one alone" in ended.err[-1]


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("how", ["--multi_gpu", "--use_fsdp --fsdp_version 2"])
def test_trainings_that_do_not_know_of_each_other_are_refused(launch, how):
    """
    Two processes that the host would let train side by side, each as rank 0 of 1, both end
    before their first step, with what to do.
    """
    ended = launched(launch, *how.split(), "--num_processes", "2")

    assert ended.exit_codes[-1] != 0
    for rank in (0, 1):
        assert f"[rank{rank}]: ValueError: The launcher started 2 processes" in ended.err[-1]
    assert "ACCELERATE_USE_CPU=true" in ended.err[-1]
    assert not run_folders(launch.folder / "runs")


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.thorough
def test_a_sharding_that_does_not_happen_is_said(launch):
    """
    FSDP on processors becomes DDP: it trains, since that is right, and the ledger says so.
    """
    how = ("--use_fsdp", "--fsdp_version", "2", "--num_processes", "2")
    ended = launched(launch, *how, env={"ACCELERATE_USE_CPU": "true"})

    assert ended.succeeded(), ended
    assert told(ended.out[-1], "made")["ranks"] == 2
    (said,) = [m for m in messages(launch.folder / "runs", "notice") if "plugin for FSDP" in m]
    assert "each rank holds the whole model" in said


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("no sync", "2 ranks know of each other"),
        pytest.param(
            "two rank 0s",
            "InitProcessGroupKwargs(backend='gloo')",
            marks=[
                pytest.mark.thorough,
                pytest.mark.skipif(not find_spec("deepspeed"), reason="needs deepspeed"),
            ],
        ),
    ],
)
def test_plugins_that_leave_ranks_without_a_sync_are_refused(ranks, kind, said):
    """
    FSDP with gloo, which leaves two ranks unsynced, and DeepSpeed without a backend, which
    makes both of them rank 0, end both ranks before their first step.
    """
    env = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    ended = ranks("trapped.py", kind, env=env)

    assert all(ended.exit_codes.values()), ended
    assert all("prepared" not in out for out in ended.out.values())
    assert all(said in err for err in ended.err.values()), ended
    assert not run_folders(ranks.run_dir)
