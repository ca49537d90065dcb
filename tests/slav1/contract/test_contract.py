"""The contract: levels, defaults, changes, and the exact way to plain values and back."""

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from slav1.contract import CheckpointSettings, Contract, ContractError, Mode
from slav1.contract.catalogue import LATER_RULES, variants
from slav1.contract.typed import build, plain
from slav1.contract.yaml_file import read_yaml
from slav1.decision import Action

LEVELS = ("L1", "L2", "L3")
FACTS = {"hang", "liveness", "non_finite", "replica_divergence"}
STATISTICAL = {"loss_variance", "sync_latency", "straggler"}
EVERY_FORM = [(rule, form) for rule, forms in variants().items() for form in forms]


def example() -> Contract:
    return Contract.level("L2").override(
        mode="observe",
        loss_variance={"rule": "literal", "mode": "enforce", "window": 64},
        monitor={"kind": "thread", "tick_s": 0.1},
        checkpoint={"keep": 2, "verify": "content"},
        policy="rules/policy.rego",
    )


@pytest.mark.parametrize("level", LEVELS)
def test_facts_are_enforced_and_statistics_observed(level):
    """
    By default a lost rank, a hang and a non-finite step are acted on; what is a
    matter of statistics is only written down.
    """
    rules = Contract.level(level).rules

    assert {name for name in FACTS if rules[name].mode is Mode.ENFORCE} == FACTS
    assert {name for name in STATISTICAL if rules[name].mode is Mode.OBSERVE} == STATISTICAL
    assert rules["sync_outlier"].mode is Mode.OFF


def test_only_the_grave_rules_ask_for_more_than_a_line():
    """
    Hang, liveness and a drift of memory ask for a stop; non-finite values, updates that were
    not made alike, copies that differ and loss variance for a rollback; a stall for a restart;
    all others log.
    """
    rules = Contract.level("L1").rules.values()

    stopping = {rule.name for rule in rules if rule.action is Action.STOP}
    going_back = {rule.name for rule in rules if rule.action is Action.ROLLBACK}
    starting_again = {rule.name for rule in rules if rule.action is Action.RESTART}
    logging = {rule.name for rule in rules if rule.action is Action.LOG}

    assert stopping == {"hang", "liveness", "memory_drift"}
    assert going_back == {"non_finite", "loss_variance", "replica_divergence", "update_skew"}
    assert starting_again == {"stall"}
    assert logging == {"seed_contract", "straggler", "sync_latency", "sync_outlier"}


def test_levels_leave_time_to_recover():
    """
    Each level's hang limit and grace time together take at most two thirds of the
    time it promises to recover in, and the levels promise what the contract says.
    """
    promised = []
    for level in LEVELS:
        contract = Contract.level(level)
        found_s = contract.rules["hang"].detector.limit_s + contract.monitor.grace_s
        promised.append((contract.rules["hang"].detector.limit_s, contract.recovery_within_s))
        assert found_s <= contract.recovery_within_s * 2 / 3

    assert promised == [(10, 30), (30, 90), (60, 180)]


def test_the_better_form_of_a_rule_is_the_default():
    """
    A rule is literal only when asked to be, or when it has no other form.
    """
    for name, rule in Contract.level("L1").rules.items():
        is_literal = rule.detector.VARIANT == "literal"
        assert is_literal == (set(variants()[name]) == {"literal"})


@pytest.mark.parametrize(("rule", "form"), EVERY_FORM)
def test_every_form_of_every_rule_goes_to_json_and_back(rule, form):
    """
    Every detector's settings survive JSON and YAML exactly.
    """
    contract = Contract.level("L3").override(**{rule: {"rule": form, "mode": "observe"}})

    through_json = Contract.from_dict(json.loads(json.dumps(contract.to_dict(), allow_nan=False)))

    assert form == contract.rules[rule].detector.VARIANT
    assert through_json == contract


@pytest.mark.parametrize(("rule", "form"), EVERY_FORM)
def test_every_setting_of_every_form_can_be_set(rule, form):
    """
    Each field of each detector is a key of its rule, and the value given arrives.
    """
    detector = variants()[rule][form]
    written = plain(detector())

    for name, value in written.items():
        changed = value * 0.99 if isinstance(value, float) else value
        contract = Contract.from_dict(
            {"level": "L1", "rules": {rule: {"rule": form, name: changed}}}
        )
        assert plain(getattr(contract.rules[rule].detector, name)) == changed
    assert build(detector, written, rule) == detector()


@pytest.mark.parametrize("level", LEVELS)
def test_a_contract_goes_to_yaml_and_back(level, tmp_path):
    """
    What a contract writes as YAML is loaded as an equal contract.
    """
    for contract in (Contract.level(level), example()):
        path = tmp_path / "contract.yaml"
        path.write_text(contract.to_yaml())
        assert Contract.load(path) == contract


@pytest.mark.parametrize("policy", ["off", "8e2", "1:30", "yes", "~", "null", "a: b", "#x", "010"])
def test_text_that_looks_like_something_else_stays_text(policy, tmp_path):
    """
    Text that YAML readers like to take for a number or a truth value comes back as text.
    """
    path = tmp_path / "contract.yaml"
    path.write_text(Contract.level("L1").override(policy=policy).to_yaml())

    assert Path(Contract.load(path).policy.file).name == policy


def test_the_published_example_is_read(tmp_path):
    """
    The example of the interface page loads, and every key of it arrives.
    """
    path = tmp_path / "contract.yaml"
    path.write_text(
        "level: L3\n"
        "mode: enforce                # default for all rules\n"
        "rules:\n"
        "  sync_latency: {limit_ms: 800, consecutive: 3, rule: learned, action: restart}\n"
        "  loss_variance: {window: 128, limit_sigmas: 15, rule: literal, mode: observe}\n"
        "checkpoint: {keep: 3, verify: medium, quorum: majority}\n"
        "policy: policy.rego          # optional\n"
    )

    contract = Contract.load(path)

    sync, loss = contract.rules["sync_latency"], contract.rules["loss_variance"]
    assert (contract.level_name, contract.policy.file) == ("L3", str(tmp_path / "policy.rego"))
    assert (sync.mode, sync.action, sync.detector.VARIANT) == (
        Mode.ENFORCE,
        Action.RESTART,
        "learned",
    )
    assert (loss.mode, loss.detector.window, loss.detector.limit_sigmas) == (Mode.OBSERVE, 128, 15)
    assert contract.rules["straggler"].mode is Mode.ENFORCE
    assert contract.checkpoint == CheckpointSettings(keep=3, verify="medium", quorum="majority")


def test_every_seed_setting_survives_the_file():
    """
    Each setting of the clause ``seeds`` can be set, and means the same after the file.
    """
    changed = {
        "mode": "set",
        "seed": 7,
        "groups": [[0, 1], [2, 3]],
        "deterministic": True,
        "probe": True,
    }

    contract = Contract.level("L2").override(seeds=changed)

    assert Contract.from_dict(read_yaml(contract.to_yaml())) == contract
    assert plain(contract.seeds) == changed
    assert Contract.level("L2").seeds.mode == "check"


def test_every_gradient_setting_survives_the_file():
    """
    Each setting of the clause ``gradients`` can be set, and means the same after the file.
    """
    changed = {
        "norm": False,
        "norm_every": 3,
        "zero_share_every": 0,
        "clip": "adaptive",
        "clip_sigmas": 4.0,
        "clip_memory": 0.9,
        "decay": 0.7,
        "min_decay": 0.2,
        "decay_steps": 50,
    }

    again = Contract.from_dict(
        read_yaml(Contract.level("L1").override(gradients=changed).to_yaml())
    )

    assert plain(again.gradients) == changed
    usual = plain(Contract.level("L1").gradients)
    assert set(usual) == set(changed)
    assert not [name for name, value in changed.items() if usual[name] == value]


def test_every_checkpoint_setting_survives_the_file():
    """
    Each setting of the clause ``checkpoint`` can be set, and means the same after the
    contract went through its file.
    """
    changed = {
        "keep": 5,
        "verify": "content",
        "quorum": "all",
        "digest": "sha256",
        "max_failed_saves": 1,
        "max_attempts": 4,
        "max_rollbacks": 0,
        "rollback_window_steps": 50,
        "background": True,
        "every_steps": 100,
        "max_snapshots": 7,
        "limit_s": 60.5,
    }
    contract = Contract.level("L1").override(checkpoint=changed)

    again = Contract.from_dict(read_yaml(contract.to_yaml()))

    assert plain(again.checkpoint) == changed
    usual = plain(Contract.level("L1").checkpoint)
    assert set(usual) == set(changed)
    assert not [name for name, value in changed.items() if usual[name] == value]
    assert again.override(checkpoint={"every_steps": None}).checkpoint.every_steps is None


def test_a_mode_for_all_does_not_wake_a_rule_that_is_off():
    """
    A mode for all rules reaches all but those that are off by default; naming such a
    rule is enough to bring it on.
    """
    every = Contract.from_dict({"level": "L1", "mode": "enforce"})
    named = Contract.from_dict({"level": "L1", "mode": "enforce", "rules": {"sync_outlier": {}}})

    assert every.rules["sync_outlier"].mode is Mode.OFF
    assert {r.mode for r in every.rules.values() if r.name != "sync_outlier"} == {Mode.ENFORCE}
    assert named.rules["sync_outlier"].mode is Mode.ENFORCE


@pytest.mark.parametrize("written", ["off", False, Mode.OFF])
def test_off_is_understood_however_it_arrives(written):
    """
    Off is off as a word, as the false that some YAML readers make of it, and as Mode.
    """
    contract = Contract.level("L1").override(straggler={"mode": written})

    assert contract.rules["straggler"].mode is Mode.OFF


def test_an_override_changes_only_what_it_names():
    """
    Changing one setting leaves every other clause, and the original, as they were.
    """
    before = Contract.level("L1")

    after = before.override(loss_variance={"mode": "enforce"})

    assert before == Contract.level("L1")
    assert after.rules["loss_variance"].mode is Mode.ENFORCE
    assert after.rules["loss_variance"].detector == before.rules["loss_variance"].detector
    assert {n: r for n, r in after.rules.items() if n != "loss_variance"} == {
        n: r for n, r in before.rules.items() if n != "loss_variance"
    }


def test_overrides_add_up():
    """
    A second override keeps what the first one changed.
    """
    contract = (
        Contract.level("L1")
        .override(hang={"limit_s": 5.0})
        .override(hang={"action": "log"}, monitor={"tick_s": 0.2})
        .override(monitor={"port": 5555})
    )

    assert contract.rules["hang"].detector.limit_s == 5
    assert contract.rules["hang"].action is Action.LOG
    assert (contract.monitor.tick_s, contract.monitor.port) == (0.2, 5555)


def test_another_form_of_a_rule_starts_from_its_own_settings():
    """
    Changing the form keeps mode and action, and no setting of the form before.
    """
    contract = Contract.level("L1").override(loss_variance={"mode": "enforce"})

    changed = contract.override(loss_variance={"rule": "literal"}).rules["loss_variance"]

    assert (changed.mode, changed.action) == (Mode.ENFORCE, Action.ROLLBACK)
    assert changed.detector == variants()["loss_variance"]["literal"]()


def test_an_override_of_the_mode_spares_what_is_off_and_what_has_its_own():
    """
    A mode for all leaves rules that are off alone, and rules named in the same call
    keep the mode given to them.
    """
    contract = Contract.level("L1").override(mode="observe", hang={"mode": "enforce"})

    modes = {name: rule.mode for name, rule in contract.rules.items()}

    assert modes.pop("sync_outlier") is Mode.OFF
    assert modes.pop("hang") is Mode.ENFORCE
    assert set(modes.values()) == {Mode.OBSERVE}


@pytest.mark.parametrize("name", ["level", "rules", "level_name", "hagn", "recovery_within_s"])
def test_an_override_of_something_else_is_refused(name):
    """
    Only rules and the other clauses can be overridden, and the error names the key.
    """
    with pytest.raises(ContractError, match=name):
        Contract.level("L1").override(**{name: {}})


def test_a_contract_is_found_by_level_file_or_itself(tmp_path):
    """
    What a user may pass as a contract: a level, a file, a contract; nothing else.
    """
    path = tmp_path / "mine.yaml"
    path.write_text("level: L3\n")

    assert Contract.of("L1") == Contract.level("L1")
    assert Contract.of(path) == Contract.of(str(path)) == Contract.level("L3")
    assert Contract.of(example()) == example()
    for wrong in ("L4", "missing.yaml", 5, None, ["L1"]):
        with pytest.raises(ContractError, match=r"a level .L1, L2, L3. or a YAML file"):
            Contract.of(wrong)


@pytest.mark.parametrize("rule", sorted(LATER_RULES))
def test_rules_of_later_versions_are_refused_as_such(rule):
    """
    A rule of the contract that has no detector yet is refused, naming those that have.
    """
    with pytest.raises(ContractError) as refused:
        Contract.level("L1").override(**{rule: {"mode": "observe"}})

    assert "not in this version yet" in str(refused.value)
    assert all(name in str(refused.value) for name in variants())
    assert rule not in variants()


def test_a_contract_travels_between_processes():
    """
    A contract and its error can be copied and pickled, as spawned ranks need it.
    """
    error = ContractError("level is wrong", key="level", value="L9", file="x.yaml")

    assert pickle.loads(pickle.dumps(example())) == copy.deepcopy(example()) == example()
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.key, copied.value, copied.file) == (
        "level is wrong",
        "level",
        "L9",
        "x.yaml",
    )


def test_a_contract_reads_no_torch():
    """
    The monitor can have a contract without having torch or numpy in memory.
    """
    code = "import sys, slav1.contract; print({'torch', 'numpy', 'pydantic'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.strip() == "set()"
