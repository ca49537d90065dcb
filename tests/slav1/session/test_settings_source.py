"""Where settings come from: argument, environment, default."""

from pathlib import Path

import pytest

from slav1.contract import Contract
from slav1.session.rendezvous import Alone, StoreRendezvous
from slav1.session.settings_source import Document, resolve


def test_argument_wins_over_the_environment():
    """
    What code says is taken, whatever environment and file say; no file is read for it, and
    there is nothing to tell.
    """
    environment = {"SLA_CONTRACT": "L3", "SLA_RUN_DIR": "/elsewhere"}

    found = resolve("L2", "mine", environment, lambda: pytest.fail("a file was read"))

    assert (found.contract.level_name, found.run_dir) == ("L2", Path("mine"))
    assert found.origin == ""


def test_environment_wins_over_a_file_and_is_named():
    """
    What the code leaves open comes from the environment before any file, and this is told.
    """
    environment = {"SLA_CONTRACT": "L3", "SLA_RUN_DIR": "/elsewhere"}
    found = resolve(None, None, environment, lambda: pytest.fail("a file was read"))
    without = resolve(None, "mine", {"SLA_CONTRACT": "L3"})

    assert (found.contract.level_name, found.run_dir) == ("L3", Path("/elsewhere"))
    assert found.origin == (
        "The contract comes from SLA_CONTRACT: L3. "
        "The run directory comes from SLA_RUN_DIR: /elsewhere."
    )
    assert without.origin == "The contract comes from SLA_CONTRACT: L3."


def test_a_file_fills_what_is_open_and_is_named():
    """
    A file of the host's gives contract and run directory as far as nobody else does.
    """
    document = Document("its.yaml", Contract.level("L2"), "there")

    both = resolve(None, None, {}, lambda: document)
    one = resolve("L3", None, {}, lambda: document)

    assert (both.contract.level_name, both.run_dir) == ("L2", Path("there"))
    assert both.origin == (
        "The contract comes from its.yaml; its level is L2. "
        "The run directory comes from its.yaml: there."
    )
    assert (one.contract.level_name, one.run_dir) == ("L3", Path("there"))


def test_defaults_are_the_mildest_level_and_a_folder_here():
    """
    Without a word from anybody it is level L1 and the folder sla_runs, and this is told.
    """
    found = resolve(None, None, {})

    assert (found.contract.level_name, found.run_dir) == ("L1", Path("sla_runs"))
    assert found.origin == "Nothing names a contract, so it is that of level L1."


def test_contract_may_be_a_file_or_itself(tmp_path):
    """
    A contract is taken as it is, or read from the file that is named.
    """
    contract = Contract.level("L2")
    path = tmp_path / "contract.yaml"
    path.write_text(contract.to_yaml())

    assert resolve(contract, None, {}).contract is contract
    assert resolve(path, None, {}).contract.level_name == "L2"
    assert resolve(str(path), None, {}).contract.level_name == "L2"


def test_neither_level_nor_file_is_a_clear_error():
    """
    A name that is no level and no file is refused with what is allowed.
    """
    with pytest.raises(ValueError, match=r"L1, L2, L3.*'L4'"):
        resolve("L4", None, {})
    with pytest.raises(ValueError, match=r"L1, L2, L3.*got an empty text\.$"):
        resolve("", None, {})


class Store:
    """As much of a process group's store as is used."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.kept[key] = value.encode()

    def wait(self, keys: list[str], timeout: object) -> None:
        if keys[0] not in self.kept:
            raise RuntimeError(f"wait timeout after {timeout}")

    def get(self, key: str) -> bytes:
        return self.kept[key]


def test_each_meeting_has_its_own_ticket():
    """
    A second run in the same job finds its own ticket, not the first one's.
    """
    store = Store()
    StoreRendezvous(store).publish(b"first")
    StoreRendezvous(store).publish(b"second")

    assert sorted(store.kept.values()) == [b"first", b"second"]


def test_ticket_that_does_not_come_names_rank_0():
    """
    A rank that waits in vain says for whom, for how long, and where to look.
    """
    with pytest.raises(TimeoutError, match=r"Rank 0 has not handed out .* within 2 s.*output"):
        StoreRendezvous(Store()).fetch(2.0)
    with pytest.raises(TimeoutError):
        Alone().fetch(1.0)


def test_a_contract_of_another_kind_is_refused():
    """
    What is neither a contract nor the name of one is refused, with what came and what may.
    """
    with pytest.raises(TypeError, match=r"must be a level \(L1.*got \{'level': 'L1'\}, a dict"):
        resolve({"level": "L1"}, None, {})
