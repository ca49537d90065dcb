"""What a contract refuses, and that its one line says key, value and what is allowed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slav1.contract import Contract, ContractError, Mode
from slav1.contract.catalogue import variants
from slav1.contract.typed import build, plain
from slav1.contract.yaml_file import read_yaml, write_yaml
from slav1.phase import Phase

# (what stands in the file, path of the key, further parts of the message)
REFUSED = [
    ("", "", ["empty", "level: L1"]),
    ("# only a comment", "", ["empty"]),
    ("- level: L1", "", ["the list", "a mapping"]),
    ("L1", "", ["'L1'", "a mapping"]),
    ("rules: {}", "level", ["missing", "L1, L2, L3"]),
    ("level: L4", "level", ["'L4'", "L1, L2, L3"]),
    ("level: l2", "level", ["'l2'", "Did you mean L2?"]),
    ("level: 1", "level", ["is 1", "L1, L2, L3"]),
    ("level: [L1]", "level", ["the list", "L1, L2, L3"]),
    ("level: L1\nlevel: L2", "", ["line 2", "level", "second time", "line 1"]),
    ("{level: L1, level: L2}", "", ["level", "second time"]),
    ("level: L1\nrules: {hang: {limit_s: 1, limit_s: 2}}", "", ["limit_s", "second time"]),
    ("level: L1\nrules:\n\thang: {}", "", ["line 3", "spaces"]),
    ("level: [L1", "", ["line 1", "not YAML"]),
    ("level: L1\n---\nlevel: L2", "", ["another document"]),
    ("level: !!python/object/apply:os.getcwd []", "", ["not YAML that a contract may use"]),
    ("level: !!int L1", "", ["tag"]),
    ("level: &a [*a]", "", ["recursive"]),
    ("level: " + "[" * 3000, "", ["nested too deeply"]),
    ("level: L1\n1: x", "", ["1", "a name"]),
    ("level: L1\n[1]: x", "", ["not YAML"]),
    ("level: L1\nrules:", "rules", ["empty", "a mapping"]),
    ("level: L1\nrule: {}", "rule", ["Allowed here", "Did you mean rules?"]),
    ("level: L1\nhang: {limit_s: 3}", "hang", ["under rules"]),
    ("level: L1\nmode: enforced", "mode", ["'enforced'", "observe, enforce, off", "mean enforce?"]),
    ("level: L1\nmode: on", "mode", ["'on'", "observe, enforce, off"]),
    ("level: L1\nmode: true", "mode", ["true", "observe, enforce, off"]),
    ("level: L1\nmode:", "mode", ["empty", "observe, enforce, off"]),
    ("level: L1\nrules: {hagn: {}}", "rules.hagn", ["Did you mean hang?", "straggler"]),
    ("level: L1\nrules: {hang: off}", "rules.hang", ["'off'", "a mapping"]),
    ("level: L1\nrules: {hang: {1: 2}}", "rules.hang", ["key 1", "a name"]),
    (
        f"level: L1\nrules: {{hang: {{limit_s: 1{'0' * 400}}}}}",
        "rules.hang.limit_s",
        ["a finite number"],
    ),
    (
        "level: L1\nrules: {sync_latency: {limit_m: 800}}",
        "rules.sync_latency.limit_m",
        ["800", "Allowed here", "consecutive", "Did you mean limit_ms?"],
    ),
    (
        "level: L1\nrules: {sync_latency: {limit_ms: '800'}}",
        "rules.sync_latency.limit_ms",
        ["the text '800'", "a number"],
    ),
    (
        "level: L1\nrules: {sync_latency: {limit_ms: true}}",
        "rules.sync_latency.limit_ms",
        ["true", "a number"],
    ),
    (
        "level: L1\nrules: {sync_latency: {limit_ms: }}",
        "rules.sync_latency.limit_ms",
        ["empty", "a number"],
    ),
    (
        "level: L1\nrules: {sync_latency: {limit_ms: .inf}}",
        "rules.sync_latency.limit_ms",
        ["inf", "finite", "off"],
    ),
    (
        "level: L1\nrules: {sync_latency: {consecutive: 2.5}}",
        "rules.sync_latency.consecutive",
        ["2.5", "a whole number"],
    ),
    (
        "level: L1\nrules: {sync_latency: {consecutive: false}}",
        "rules.sync_latency.consecutive",
        ["false", "a whole number"],
    ),
    (
        "level: L1\nrules: {loss_variance: {rule: clever}}",
        "rules.loss_variance.rule",
        ["'clever'", "literal, sequential"],
    ),
    (
        "level: L1\nrules: {loss_variance: {rule: [literal]}}",
        "rules.loss_variance.rule",
        ["literal, sequential"],
    ),
    (
        "level: L1\nrules: {loss_variance: {window: 64}}",
        "rules.loss_variance.window",
        ["64", "setting of rule: literal", "rule: sequential is used"],
    ),
    (
        "level: L1\nrules: {loss_variance: {action: halt}}",
        "rules.loss_variance.action",
        ["'halt'", "log", "stop", "restart"],
    ),
    (
        "level: L1\nrules: {loss_variance: {action: 7}}",
        "rules.loss_variance.action",
        ["is 7", "stop"],
    ),
    ("level: L1\nmonitor: thread", "monitor", ["'thread'", "a mapping"]),
    ("level: L1\nmonitor: {kind: proces}", "monitor.kind", ["Did you mean process?"]),
    ("level: L1\nmonitor: {port: 70000}", "monitor.port", ["70000", "0 to 65535"]),
    ("level: L1\nmonitor: {port: -1}", "monitor.port", ["-1", "0 to 65535"]),
    ("level: L1\nmonitor: {tick_s: 0}", "monitor.tick_s", ["0", "above 0"]),
    ("level: L1\nmonitor: {grace_s: -1}", "monitor.grace_s", ["-1", "0 to 600"]),
    ("level: L1\nmonitor: {ring_slots: 1}", "monitor.ring_slots", ["16 to"]),
    ("level: L1\nmonitor: {stacks: 1}", "monitor.stacks", ["true or false"]),
    ("level: L1\nseeds: {mode: on}", "seeds.mode", ["'on'", "check, set, off"]),
    ("level: L1\nseeds: {seed: 3}", "seeds.seed", ["mode: set", "check"]),
    ("level: L1\nseeds: {mode: set, seed: -1}", "seeds.seed", ["-1", "0 to 4294967295"]),
    ("level: L1\nseeds: {groups: [[0, 1], [1]]}", "seeds.groups", ["at most once", "[1]"]),
    ("level: L1\nseeds: {groups: [[]]}", "seeds.groups", ["no empty group"]),
    ("level: L1\ngradients: {clip: on}", "gradients.clip", ["'on'", "off, adaptive"]),
    ("level: L1\ngradients: {norm_every: -1}", "gradients.norm_every", ["-1", "0 to 10000"]),
    ("level: L1\ngradients: {decay: 0.05}", "gradients.decay", ["0.1 and 0.05"]),
    ("level: L1\ncheckpoint: {keep: 0}", "checkpoint.keep", ["0", "at least 1"]),
    (
        "level: L1\ncheckpoint: {verify: some}",
        "checkpoint.verify",
        ["none, bytes, medium, content"],
    ),
    ("level: L1\ncheckpoint: {digest: md5}", "checkpoint.digest", ["'md5'", "xxh3, sha256"]),
    ("level: L1\ncheckpoint: {quorum: half}", "checkpoint.quorum", ["majority, all"]),
    (
        "level: L1\ncheckpoint: {max_failed_saves: 0}",
        "checkpoint.max_failed_saves",
        ["0", "1 to 1000"],
    ),
    ("level: L1\ncheckpoint: {max_attempts: 0}", "checkpoint.max_attempts", ["0", "1 to 1000"]),
    (
        "level: L1\ncheckpoint: {max_rollbacks: -1}",
        "checkpoint.max_rollbacks",
        ["-1", "0 to 1000"],
    ),
    (
        "level: L1\ncheckpoint: {rollback_window_steps: 0}",
        "checkpoint.rollback_window_steps",
        ["0", "1 to"],
    ),
    ("level: L1\ncheckpoint: {background: 1}", "checkpoint.background", ["true or false"]),
    ("level: L1\ncheckpoint: {every_steps: 0}", "checkpoint.every_steps", ["0", "at least 1"]),
    (
        "level: L1\ncheckpoint: {every_steps: often}",
        "checkpoint.every_steps",
        ["'often'", "a whole number"],
    ),
    ("level: L1\ncheckpoint: {limit_s: 0}", "checkpoint.limit_s", ["0", "above 0"]),
    ("level: L1\ncheckpoint: {limit_s: .inf}", "checkpoint.limit_s", ["finite"]),
    (
        "level: L1\ncheckpoint: {max_atempts: 3}",
        "checkpoint.max_atempts",
        ["3", "Did you mean max_attempts?"],
    ),
    ("level: L1\npolicy: ''", "policy", ["Rego"]),
    ("level: L1\npolicy: 3", "policy", ["3", "path of a Rego file", "address"]),
    ("level: L1\npolicy: {a: b}", "policy.a", ["Allowed here", "deadline_ms"]),
    ("level: L1\npolicy: {}", "policy", ["file or url"]),
    ("level: L1\npolicy: {file: a, url: http://b}", "policy.file", ["only one"]),
    ("level: L1\npolicy: {file: [a]}", "policy.file", ["the list", "text"]),
    ("level: L1\npolicy: {url: ftp://b}", "policy.url", ["http://"]),
    ("level: L1\npolicy: http://me:secret@b", "policy.url", ["SLA_POLICY_TOKEN"]),
    ("level: L1\npolicy: ftp://b/a", "policy.url", ["http://"]),
    ("level: L1\npolicy: 'http://[::1'", "policy.url", ["address", "IPv6"]),
    ("level: L1\npolicy: http://b:99999", "policy.url", ["0 to 65535"]),
    ("level: L1\npolicy: {file: a, query: allow}", "policy.query", ["data.slav1"]),
    ("level: L1\npolicy: {file: a, deadline_ms: 9}", "policy.deadline_ms", ["10 to 2000"]),
    ("level: L1\npolicy: {file: a, grant: log}", "policy.grant", ["above log"]),
    ("level: L1\npolicy: {file: a, rules: [hagn]}", "policy.rules[0]", ["Did you mean hang?"]),
    ("level: L1\npolicy: {file: a, metadata: {level: x}}", "policy.metadata", ["itself"]),
]


def write(folder: Path, text: str) -> Path:
    path = folder / "contract.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "key", "parts"), REFUSED, ids=[text[-50:] for text, *_ in REFUSED]
)
def test_what_is_wrong_is_said_in_one_line(text, key, parts, tmp_path):
    """
    A wrong contract is refused with the file, the key's path, the value and what is
    allowed, in one line.
    """
    path = write(tmp_path, text)

    with pytest.raises(ContractError) as refused:
        Contract.load(path)

    message = str(refused.value)
    assert "\n" not in message
    assert (refused.value.key, refused.value.file) == (key, str(path))
    for part in (str(path), key, *parts):
        assert part in message


@pytest.mark.parametrize(
    ("rule", "form"), [(rule, form) for rule, forms in variants().items() for form in forms]
)
def test_impossible_settings_of_every_rule_are_refused_by_path(rule, form):
    """
    A negative value is refused for every setting of every detector, by its path.
    """
    for name, value in plain(variants()[rule][form]()).items():
        clause = {"rule": form, name: -1 if isinstance(value, bool) else type(value)(-1)}
        with pytest.raises(ContractError) as refused:
            Contract.from_dict({"level": "L1", "rules": {rule: clause}})
        assert refused.value.key == f"rules.{rule}.{name}"
        assert "-1" in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "level: L1",
        "level: L1\nmode: off",
        "level: L1\nmode: 'off'",
        "level: L1\nrules: {}",
        "level: L1\nrules: {hang: {}}",
        "level: L1\nrules: {hang: {limit_s: 12}}",
        "level: L1\nrules: {straggler: {mode: off, arl0: 1e5}}",
        "level: L1\nmonitor: {kind: off}",
        "level: L1\npolicy: ~",
        "\ufefflevel: L1  # with a byte order mark",
    ],
)
def test_what_is_right_is_not_refused(text, tmp_path):
    """
    Whole numbers for numbers, a bare off, empty mappings and a byte order mark are right.
    """
    assert Contract.load(write(tmp_path, text)).level_name == "L1"


def test_files_that_cant_be_read_are_named(tmp_path):
    """
    A missing file, a folder and a binary file are refused by name, with the reason.
    """
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    places = {tmp_path: "Is a directory", tmp_path / "no.yaml": "No such file", binary: "UTF-8"}

    for path, reason in places.items():
        with pytest.raises(ContractError, match=reason) as refused:
            Contract.load(path)
        assert str(path) in str(refused.value)


def test_a_value_of_any_size_is_shown_short(tmp_path):
    """
    A value that unfolds to millions of parts costs neither time nor a long message.
    """
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]" for i in range(1, 10)]

    with pytest.raises(ContractError) as refused:
        Contract.load(write(tmp_path, "\n".join([*lines, "level: *a9"])))

    assert len(str(refused.value)) < 500


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_yaml_values_come_back(value):
    """
    Plain values of any kind come back from their YAML text as they were.
    """
    assert repr(read_yaml(write_yaml({"value": value}))) == repr({"value": value})


@given(
    st.dictionaries(
        st.sampled_from(["level", "mode", "rules", "monitor", "policy", "x"]),
        st.recursive(
            st.none()
            | st.booleans()
            | st.floats()
            | st.sampled_from(["L1", "hang", "off", "stop", "kind"]),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(
                    st.sampled_from(["hang", "limit_s", "mode", "action", "rule", "port", "kind"]),
                    inner,
                    max_size=3,
                )
            ),
            max_leaves=8,
        ),
    )
)
def test_plain_values_make_a_contract_or_a_contract_error(raw):
    """
    Whatever plain values come, the answer is a contract or a ContractError.
    """
    try:
        contract = Contract.from_dict(raw)
    except ContractError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
    else:
        assert Contract.from_dict(contract.to_dict()) == contract


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    limit_s: float = 1.0

    def __post_init__(self):
        if self.limit_s <= 0:
            raise ValueError(f"limit_s must be above 0, got {self.limit_s}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every kind of field that a detector may have."""

    limits: dict[Phase, float]
    inner: Inner = Inner(limit_s=2.0)
    sizes: tuple[int, ...] = (1, 2)
    maybe: float | None = None
    word: Literal["a", "b"] = "a"
    mode: Mode = Mode.OFF

    def __post_init__(self):
        if min(self.sizes) < 1:
            raise ValueError(f"Each of sizes must be at least 1, got {self.sizes}.")


RAW = {"limits": {"forward": 2, "data": 3.5}, "sizes": [4, 5], "maybe": None, "inner": {}}


def test_every_kind_of_setting_is_understood():
    """
    Mappings by phase, tuples, optional values, words and nested settings come and go.
    """
    settings = build(Settings, RAW, "rules.mine")

    assert settings.limits == {Phase.FORWARD: 2.0, Phase.DATA: 3.5}
    assert (settings.sizes, settings.maybe, settings.inner) == ((4, 5), None, Inner())
    assert build(Settings, plain(settings), "rules.mine") == settings


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"limits": {"sideways": 1}}, "rules.mine.limits.sideways is the text 'sideways'"),
        ({"limits": {"data": "x"}}, "rules.mine.limits.data is the text 'x'"),
        ({"sizes": [1, 2.5]}, r"rules.mine.sizes\[1\] is 2.5"),
        ({"sizes": 3}, "rules.mine.sizes is 3; it must be a list"),
        ({"sizes": [0]}, "rules.mine.sizes: Each of sizes must be at least 1"),
        ({"inner": {"limit_s": 0}}, "rules.mine.inner.limit_s: limit_s must be above 0"),
        ({"maybe": "x"}, "rules.mine.maybe is the text 'x'; it must be a number"),
        ({"word": "c"}, "rules.mine.word is the text 'c'; it must be one of a, b"),
    ],
)
def test_every_kind_of_setting_is_refused_by_path(change, text):
    """
    A wrong part of a setting is named by its full path.
    """
    with pytest.raises(ContractError, match=text):
        build(Settings, {**RAW, **change}, "rules.mine")


def test_a_key_of_two_lines_makes_a_message_of_one(tmp_path):
    """
    A key that holds a line break does not break the message.
    """
    with pytest.raises(ContractError, match="not a key of a contract") as refused:
        Contract.load(write(tmp_path, 'level: L1\n"ab\\ncd": 1'))

    assert "\n" not in str(refused.value)
