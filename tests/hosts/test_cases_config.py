"""PC-28: the callback from LightningCLI's command line and files."""

from pathlib import Path
from typing import Any

import pytest
import toys
import yaml

from sla_lightning import SLACallback
from slav1.contract import Contract

from ._runs import run_folders

cli = pytest.importorskip("jsonargparse") and pytest.importorskip("lightning.pytorch.cli")

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
    ),
]

QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "max_steps": 3,
}


class WithData(toys.Toy):
    """Brings its own data, as the command line needs it."""

    def __init__(self) -> None:
        super().__init__(step_s=0.0)

    def train_dataloader(self) -> Any:
        return toys.batches(4)


class Forced(cli.LightningCLI):
    """A program that always has the callback."""

    def add_arguments_to_parser(self, parser: Any) -> None:
        parser.add_lightning_class_args(SLACallback, "sla")


def fit(folder: Path, *words: str, kind: Any = cli.LightningCLI, config: Any = None) -> None:
    """Runs ``fit`` of a command line program with a file and further words."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config or {}))
    kind(
        WithData,
        args=["fit", "--config", str(path), *words],
        save_config_callback=None,
        trainer_defaults=QUIET,
        seed_everything_default=False,
    )


def in_force(run_dir: Path) -> Contract:
    """The contract that the only run was under."""
    (folder,) = run_folders(run_dir)
    return Contract.load(folder / "contract.yaml")


def by_class_path(**init_args: Any) -> dict[str, Any]:
    """A file that names the callback."""
    callback: dict[str, Any] = {"class_path": "sla_lightning.SLACallback"}
    if init_args:
        callback["init_args"] = init_args
    return {"trainer": {"callbacks": [callback]}}


def test_by_class_path_without_arguments(tmp_path: Path, monkeypatch: Any) -> None:
    """
    A file that only names the class gives the default contract and folder.
    """
    monkeypatch.chdir(tmp_path)

    fit(tmp_path, config=by_class_path())

    assert in_force(tmp_path / "sla_runs") == Contract.level("L1")


@pytest.mark.parametrize("is_file", [False, True], ids=["level", "file"])
def test_by_class_path_with_arguments(tmp_path: Path, *, is_file: bool) -> None:
    """
    A file can give the contract as a level and as the path of a contract file.
    """
    wanted = Contract.level("L2").override(hang={"limit_s": 77.0} if is_file else {})
    path = tmp_path / "contract.yaml"
    path.write_text(wanted.to_yaml())
    contract = str(path) if is_file else "L2"

    fit(tmp_path, config=by_class_path(contract=contract, run_dir=str(tmp_path / "runs")))

    assert in_force(tmp_path / "runs") == wanted


def test_appended_on_the_command_line(tmp_path: Path) -> None:
    """
    The callback can be added by words alone.
    """
    fit(
        tmp_path,
        "--trainer.callbacks+=sla_lightning.SLACallback",
        "--trainer.callbacks.contract=L3",
        f"--trainer.callbacks.run_dir={tmp_path / 'runs'}",
    )

    assert in_force(tmp_path / "runs") == Contract.level("L3")


def test_forced_by_the_program(tmp_path: Path) -> None:
    """
    A program can always add it and leave its settings to the command line.
    """
    words = ("--sla.contract=L2", f"--sla.run_dir={tmp_path / 'runs'}")

    fit(tmp_path, *words, kind=Forced)

    assert in_force(tmp_path / "runs") == Contract.level("L2")


def test_a_printed_configuration_runs_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    What ``--print_config`` prints runs again and puts the same contract in force.
    """
    config = by_class_path(contract="L3", run_dir=str(tmp_path / "runs"))
    with pytest.raises(SystemExit):
        fit(tmp_path, "--print_config", config=config)
    printed = yaml.safe_load(capsys.readouterr().out)

    fit(tmp_path, config=printed)

    assert in_force(tmp_path / "runs") == Contract.level("L3")


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"contracts": "L1"}, "contracts"), ({"run_dir": [1]}, "run_dir"), ({"contract": 5}, "5")],
    ids=["key", "run_dir", "contract"],
)
def test_what_is_wrong_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: Any, named: str
) -> None:
    """
    A wrong key or type is an error that names it, before anything starts.
    """
    with pytest.raises(SystemExit):
        fit(tmp_path, config=by_class_path(**settings))

    assert named in capsys.readouterr().err


def test_a_level_that_is_none_is_refused_before_a_run(tmp_path: Path) -> None:
    """
    Text that is neither a level nor a file is refused with what is allowed.
    """
    with pytest.raises(ValueError, match=r"L1, L2, L3.*'L9'"):
        fit(tmp_path, config=by_class_path(contract="L9", run_dir=str(tmp_path / "runs")))

    assert not (tmp_path / "runs").exists()


def test_the_strategy_as_text_and_as_class(tmp_path: Path) -> None:
    """
    The callback runs with a strategy given either way.
    """
    by_class = {"class_path": "lightning.pytorch.strategies.SingleDeviceStrategy"}
    by_class |= {"init_args": {"device": "cpu"}}
    for name, strategy in (("text", "auto"), ("class", by_class)):
        config = by_class_path(run_dir=str(tmp_path / name))
        config["trainer"]["strategy"] = strategy
        fit(tmp_path, config=config)

    assert in_force(tmp_path / "text") == in_force(tmp_path / "class")
