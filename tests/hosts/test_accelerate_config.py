"""The contract in the file that Accelerate is configured by."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.config.update import update_config
from accelerate.commands.env import env_command

from sla_accelerate._config import file as _config_file
from sla_accelerate._config.file import find_document, read_document
from sla_accelerate._config.launcher import config_file_among, options_of_launcher
from sla_accelerate._config.text import with_settings
from sla_accelerate.cli import run
from slav1.contract import ContractError
from slav1.ledger import read_ledger

SCRIPT = Path(__file__).parent / "_scripts" / "accelerate_settings.py"
SLA_ACCELERATE = [sys.executable, "-c", "from sla_accelerate.cli import main; main()"]

HOST_ALONE = """\
# Of our cluster
compute_environment: LOCAL_MACHINE  # here
distributed_type: 'NO'
num_processes: 1
use_cpu: true

# none yet
mixed_precision: 'no'
fsdp_config:
    # kept
    fsdp_version: 2
# the end
"""


def file_with(folder: Path, block: str, name: str = "x.yaml") -> Path:
    """Accelerate's file with these lines as the block."""
    lines = "".join(f"    {line}\n" for line in block.splitlines())
    path = folder / name
    path.write_text(f"{HOST_ALONE}mpirun_config:\n  sla:\n{lines}")
    return path


@pytest.fixture
def command(capsys):
    """Runs ``sla-accelerate`` in this process: exit status, output, errors."""

    def start(*words: object) -> tuple[int, str, str]:
        status = run([str(word) for word in words])
        return (status, *capsys.readouterr())

    return start


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ("level: L9", "mpirun_config.sla.level is the text 'L9'; it must be one of"),
        ("level: L1\nrules: {hang: {limit_s: -1}}", "mpirun_config.sla.rules.hang.limit_s: "),
        ("level: L1\nrules: {hang: {limit: 1}}", "mpirun_config.sla.rules.hang.limit (set to 1)"),
        ("level: L1\nrun_dri: x", "Did you mean run_dir?"),
        ("level: L1\nhang: {}", "The rule hang stands under rules."),
        ("run_dir: 3", "mpirun_config.sla.run_dir is 3; it must be the path of a folder."),
        ("- level", "mpirun_config.sla: the contract is the list ['level']; it must be a mapping"),
        ("", "mpirun_config.sla: the contract is empty; it must be a mapping"),
        ("level: L1\nlevel: L2", "the key level stands here a second time, first in line 15."),
        ("\tlevel: L1", "line 15, column 1: this is not YAML"),
        ("level: L1\nfsdp_config: {sla: {}}", "mpirun_config.sla.fsdp_config (set to"),
    ],
)
def test_a_wrong_block_is_refused_with_its_place(tmp_path, block, text):
    """
    What the block can't say is refused with the file and the path of the key, or the line.
    """
    path = file_with(tmp_path, block)
    if block.startswith("\t"):
        path.write_text(path.read_text().replace("    \t", "\t"))

    with pytest.raises(ContractError) as caught:
        read_document(path)

    assert str(caught.value).startswith(f"{path}: ")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_block_has_one_home(tmp_path):
    """
    The block is read in every section that launchers make nothing of, and refused in two at
    once, or where it would change what Accelerate does.
    """
    path = tmp_path / "x.yaml"
    for section in ("mpirun_config", "fsdp_config", "megatron_lm_config", "fp8_config"):
        path.write_text(f"{section}: {{sla: {{level: L2, rules: null}}}}\n")
        assert read_document(path).contract.level_name == "L2"
    for text, said in (
        ("mpirun_config: {sla: {}}\nfsdp_config: {sla: {}}", "fsdp_config.sla .line 2.; keep one"),
        ("mpirun_config:\n  sla: {}\n  sla: {}", ".sla .line 2. and in mpirun_config.sla .line 3."),
        ("sla: {}\nmpirun_config: {sla: {}}", "in sla .line 1. and in mpirun_config.sla .line 2."),
        ("parallelism_config: {sla: {}}", "it must stand in mpirun_config.sla."),
        ("sla: {}", "it must stand in mpirun_config.sla."),
    ):
        path.write_text(text)
        with pytest.raises(ContractError, match=said):
            read_document(path)
    for innocent in ("", "use_cpu: true", "- slag\n- 1", "a: 1\na: 2", "\tno: yaml"):
        path.write_text(innocent)
        assert read_document(path) is None


def test_files_that_are_none_are_refused(tmp_path):
    """
    A missing file, a folder and a file that is no text are refused, each in one line.
    """
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe sla")

    for path in (tmp_path / "none.yaml", tmp_path, binary):
        with pytest.raises(ContractError, match=r"can't be read there|no text in UTF-8"):
            read_document(path)


def test_the_first_source_that_is_named_decides(tmp_path, monkeypatch):
    """
    SLA_CONFIG_FILE comes before the launcher's file, and this before Accelerate's default
    file; a launcher's file without a block leaves it at that, SLA_CONFIG_FILE must have one.
    """
    env, launched, usual, bare = (
        file_with(tmp_path, f"level: {level}\nrun_dir: r", f"{name}.yaml")
        for name, level in (("env", "L3"), ("launched", "L2"), ("usual", "L1"), ("bare", "L1"))
    )
    bare.write_text(HOST_ALONE)
    monkeypatch.setattr(_config_file, "default_config_file", str(usual))

    def place(environment: dict[str, str], launcher: Path | None) -> str:
        found = find_document(environment, lambda: None if launcher is None else str(launcher))
        return "" if found is None else f"{found.place}, {found.contract.level_name}"

    named = {"SLA_CONFIG_FILE": str(env)}
    assert place(named, launched) == (f"{env} (mpirun_config.sla, named by SLA_CONFIG_FILE), L3")
    assert place({}, launched) == (
        f"{launched} (mpirun_config.sla, named by the launcher's --config_file), L2"
    )
    assert place({}, None) == f"{usual} (mpirun_config.sla, Accelerate's default file), L1"
    assert place({}, bare) == ""
    with pytest.raises(ContractError, match=r"SLA_CONFIG_FILE names this file, and it has no"):
        place({"SLA_CONFIG_FILE": str(bare)}, None)
    usual.unlink()
    assert place({}, None) == ""


@pytest.mark.parametrize(
    ("launcher", "worker", "expected"),
    [
        ("py bin/accelerate launch --config_file a.yaml t.py --x", "py -u t.py --x", "a.yaml"),
        ("py bin/accelerate launch --config-file=a.yaml -m mod", "py -u -m mod", "a.yaml"),
        ("py bin/accelerate-launch --config_file a.yaml t.py", "py t.py", "a.yaml"),
        ("py -m accelerate.commands.launch --config_file=a.yaml t.py", "py t.py", "a.yaml"),
        ("py bin/sla-accelerate launch --config_file a.yaml t.py", "py t.py", "a.yaml"),
        ("py bin/accelerate launch t.py --config_file its", "py t.py --config_file its", None),
        ("py bin/accelerate test --config_file a.yaml", "py t.py", None),
        ("py bin/torchrun t.py --config_file b", "py t.py --config_file b", None),
        ("bash accelerate.sh launch", "py t.py", None),
    ],
)  # fmt: skip
def test_the_launcher_is_known_by_its_words(launcher, worker, expected):
    """
    What accelerate launch was told for itself is told from what the script was told, and
    other launchers from it.
    """
    options = options_of_launcher(launcher.split(), worker.split())

    assert config_file_among(options) == expected


@pytest.mark.parametrize(
    "begins",
    [
        "",
        "mpirun_config:\n    mpirun_ccl: '1'  # set\n",
        "mpirun_config: {}\n",
        "mpirun_config:\n",
        "mpirun_config:\n  sla:\n    rules: {hang: {limit_s: 9}}\n    level: L1  # low\n",
    ],
)
def test_a_file_only_gains_the_block(begins):
    """
    Keys, their order, comments and line ends of a file stay, wherever the block is put in.
    """
    text = begins + HOST_ALONE
    for before in (text, text.rstrip("\n"), text.replace("\n", "\r\n")):
        after, is_anew = with_settings(before, {("mpirun_config", "sla", "level"): "L2"})

        assert not is_anew
        lines = after.splitlines(keepends=True)
        gone = [line for line in before.splitlines(keepends=True) if line not in lines]
        assert [line.strip() for line in gone] in (
            [],
            ["mpirun_config: {}"],
            ["level: L1  # low"],
            ["# the end"],
        )
        assert [key for key in yaml.safe_load(after) if key != "mpirun_config"] == list(
            yaml.safe_load(HOST_ALONE)
        )
        block = yaml.safe_load(after)["mpirun_config"]["sla"]
        assert block["level"] == "L2" and ("rules" in block) == ("rules" in begins)


@pytest.mark.smoke
def test_accelerate_reads_and_keeps_what_we_write(tmp_path, command, capsys):
    """
    The file of `sla-accelerate config --default` passes Accelerate's own reader, and keeps
    the contract through its `config update` and `env`.
    """
    path = tmp_path / "new" / "x.yaml"

    status, out, _ = command(
        "config", "--default", "--level", "L3", "--mode", "observe", "--file", path
    )
    assert (status, str(path) in out) == (0, True)
    assert load_config_from_file(str(path)).mpirun_config == {
        "sla": {"level": "L3", "mode": "observe"}
    }
    written = read_document(path).contract

    # Its update turns empty mappings to null, and `off` to false.
    text = path.read_text() + "    rules: {hang: {}, straggler: {mode: off}}\n    seeds: {}\n"
    path.write_text(text)
    update_config(Namespace(config_file=str(path)))
    assert "hang: null" in path.read_text()
    updated = read_document(path).contract
    assert updated == written.override(straggler={"mode": "off"})
    env_command(Namespace(config_file=str(path)))
    assert "'level': 'L3'" in capsys.readouterr().out
    assert command("check", path)[0] == 0


def test_config_changes_what_it_is_told(tmp_path, command):
    """
    On a file with a contract only what is said changes; a file that can't take one, and what
    is no level, are refused in one line, and the file stays.
    """
    path = file_with(tmp_path, "level: L1\nrun_dir: mine  # ours")
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    path.chmod(0o640)
    before = path.read_text()

    assert command("config", "--default", "--file", path)[0] == 0
    assert path.read_text() == before
    assert command("config", "--default", "--level", "L2", "--config_file", link)[0] == 0
    assert path.read_text() == before.replace("level: L1", "level: L2")
    assert link.is_symlink() and path.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in tmp_path.iterdir() if "sla" in each.name] == []

    elsewhere = tmp_path / "elsewhere.yaml"
    elsewhere.write_text("distributed_type: 'NO'\nfsdp_config: {sla: {level: L1}}\n")
    strange = tmp_path / "strange.yaml"
    strange.write_text("distributed_type: 'NO'\nwrong: 1\n")
    for words in (
        ["config", "--level", "L4"],
        ["config", "--default", "--file", tmp_path],
        ["config", "--default", "--file", elsewhere],
        ["config", "--default", "--file", strange],
        ["config", "--default", "--file", file_with(tmp_path, "level: L1\nrules: 3", "bad.yaml")],
        ["check"],
        ["check", tmp_path / "none.yaml"],
        ["frob"],
    ):
        status, out, errors = command(*words)
        assert (status, out) == (2, "")
        assert errors.startswith("sla-accelerate: ") and errors.count("\n") == 1
    assert "sla" not in strange.read_text()


def test_check_tells_whether_a_contract_can_be_kept(tmp_path, command):
    """
    `check` prints the contract in full, and refuses one that can't be kept, or none, with the
    key.
    """
    status, out, _ = command("check", file_with(tmp_path, "level: L3"))
    assert status == 0 and out.startswith("level: L3\n") and "# Recovery within 180 s." in out

    status, out, errors = command("check", file_with(tmp_path, "level: L0"), "--json")
    assert status == 3 and "mpirun_config.sla.level" in errors
    assert json.loads(out)["key"] == "mpirun_config.sla.level"

    bare = tmp_path / "bare.yaml"
    bare.write_text(HOST_ALONE)
    status, _, errors = command("check", bare)
    assert status == 3 and "holds no contract" in errors

    bare.write_text("")
    for words, expected in ((["check"], 3), (["config", "--default", "--file"], 2)):
        status, _, errors = command(*words, bare)
        assert (status, "must hold a mapping of settings" in errors) == (expected, True)


@pytest.mark.ranks
@pytest.mark.slow
def test_ranks_with_different_files_do_not_begin(ranks, tmp_path):
    """
    Ranks whose files differ, or one of whose files is wrong, all end at once with the same
    words, and nothing is written; with the same file the ledger says which it was.
    """
    one = file_with(tmp_path, "level: L3\nrules: {hang: {limit_s: 70}}", "one.yaml")
    other = file_with(tmp_path, "level: L3", "other.yaml")
    wrong = file_with(tmp_path, "level: L9", "wrong.yaml")
    cpu = {"ACCELERATE_USE_CPU": "true"}

    for files, text in (
        ((one, other), "Rank 1: rules.hang.limit_s is 60.0, and on rank 0 it is 70.0."),
        ((wrong, other), f"Rank 0: {wrong}: mpirun_config.sla.level is the text 'L9'"),
    ):
        ended = ranks("accelerate_settings.py", *files, env=cpu)
        assert ended.exit_codes == {0: 1, 1: 1}
        assert all(text in ended.err[rank] for rank in (0, 1)), ended.err
        assert not ranks.run_dir.exists()

    ended = ranks("accelerate_settings.py", one, one, env=cpu)
    assert ended.succeeded(), ended
    (ledger,) = ranks.run_dir.glob("*/ledger.jsonl")
    start = next(entry for entry in read_ledger(ledger) if entry.kind == "start")
    assert f"The contract comes from {one} (mpirun_config.sla" in start.message
    assert "The run directory comes from SLA_RUN_DIR" in start.message


@pytest.mark.ranks
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.smoke
def test_workers_find_the_launchers_file(tmp_path):
    """
    Plain accelerate launch, with several processes of its own and by way of mpirun, and
    `sla-accelerate launch` bring the contract of their file to the workers.
    """
    path = file_with(tmp_path, "level: L3\nrun_dir: runs")
    hosts = tmp_path / "hosts"
    hosts.touch()
    by_mpi = tmp_path / "mpi.yaml"
    by_mpi.write_text(path.read_text().replace("  sla:", f"  mpirun_hostfile: {hosts}\n  sla:"))
    mpirun = tmp_path / "mpirun"
    ours = f'[ "$1" = {sys.executable} ]'
    mpirun.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exit\nuntil {ours}; do shift; done\nexec "$@"\n'
    )
    mpirun.chmod(0o755)
    module = [sys.executable, "-m", "accelerate.commands.launch"]
    two = ["--multi_gpu", "--num_processes", "2", "--main_process_port", "0"]

    for start, source in (
        ([*module, "--config_file=x.yaml", *two], "the launcher's --config_file"),
        ([*module, "--config_file", str(by_mpi)], "the launcher's --config_file"),
        ([*SLA_ACCELERATE, "launch", "--config_file", "x.yaml"], "SLA_CONFIG_FILE"),
    ):
        environment = os.environ | {"ACCELERATE_USE_CPU": "true"}
        environment["PATH"] = f"{tmp_path}{os.pathsep}{environment['PATH']}"
        done = subprocess.run(
            [*start, str(SCRIPT)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        ranks = 2 if two[0] in start else 1
        assert done.stdout.count("in force: rank ") == ranks
        newest = max((tmp_path / "runs").glob("*/ledger.jsonl"), key=os.path.getmtime)
        started = next(entry for entry in read_ledger(newest) if entry.kind == "start")
        assert f"named by {source}); its level is L3" in started.message


@pytest.mark.slow
@pytest.mark.thorough
def test_questions_are_accelerates_and_ours(tmp_path):
    """
    The questionnaire is Accelerate's with ours behind it, a wrong answer is asked for again,
    and Ctrl-C, in ours as in theirs, leaves all as it was.
    """
    path = tmp_path / "x.yaml"

    status, _ = answered(path, {"Which type": b"\x03"})
    assert status == 130 and not path.exists()

    status, text = answered(path, {"must be one of": b"L2\r", "Level of": b"L7\r"})
    assert status == 0, text
    assert load_config_from_file(str(path)).mpirun_config == {"sla": {"level": "L2"}}
    before = path.read_text()

    status, text = answered(path, {"Level of": b"L3\r", "What rules do": b"\x03"})
    assert status == 130 and "In which compute environment" not in text
    assert path.read_text() == before
    assert [each.name for each in tmp_path.iterdir()] == ["x.yaml"]


def answered(path: Path, answers: dict[str, bytes]) -> tuple[int, str]:
    """Runs the questionnaire on a terminal; what no answer is there for is left as offered."""
    pid, terminal = pty.fork()
    if pid == 0:
        # A shell may have started the tests in the background, with the signal ignored.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execv(sys.executable, [*SLA_ACCELERATE, "config", "--file", str(path)])
    output, asked, deadline_s = b"", b"", time.monotonic() + 120
    while time.monotonic() < deadline_s:
        # A question is one when nothing follows it.
        if not select.select([terminal], [], [], 1.0)[0]:
            if asked:
                given: Any = (answer for text, answer in answers.items() if text.encode() in asked)
                os.write(terminal, next(given, b"\r"))
                asked = b""
            continue
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        output, asked = output + data, asked + data
    else:
        os.kill(pid, 9)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    return status, output.decode(errors="replace")
