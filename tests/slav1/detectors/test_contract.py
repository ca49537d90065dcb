"""What must be true of every detector, whatever it watches for."""

import functools
import json
import math
from io import BytesIO
from typing import Any

import pytest
import torch
from _detector_tools import watch, watch_from
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import slav1.detectors
from slav1.breach import Breach, Status
from slav1.detectors import (
    CkptSuccessLiteral,
    CkptSuccessSequential,
    HangLearned,
    HangLiteral,
    LivenessLiteral,
    LivenessSequential,
    LossVarianceLiteral,
    LossVarianceSequential,
    MemoryDriftLiteral,
    MemoryDriftSequential,
    NonFinite,
    ReplicaDivergenceLiteral,
    SeedContract,
    StallLiteral,
    StragglerSequential,
    SyncLatencyLearned,
    SyncLatencyLiteral,
    SyncOutlierLiteral,
    UpdateSkew,
)
from slav1.phase import Phase
from slav1.sample import (
    Audit,
    Difference,
    Pulse,
    Replicas,
    Rerun,
    Round,
    Sample,
    Save,
    Stream,
    Usage,
)
from slav1.state import from_plain, to_plain

# Small windows, so that a short list of events gets past every warm-up.
EVERY_DETECTOR = [
    CkptSuccessLiteral(),
    CkptSuccessSequential(arl0=100, recovery_saves=1),
    HangLearned(warmup_steps=1),
    HangLiteral(warmup_steps=1),
    LivenessLiteral(consecutive=2),
    LivenessSequential(arl0=100),
    LossVarianceLiteral(window=4, limit_sigmas=2),
    LossVarianceSequential(arl0=100, outlier_sigmas=3, jump_sigmas=3, min_rise_ratio=0),
    MemoryDriftLiteral(window=2, num_rounds=2),
    MemoryDriftSequential(block_steps=4, warmup_steps=0, suspect_after_steps=0, min_growth_mib=0),
    NonFinite(recovery_steps=1),
    ReplicaDivergenceLiteral(equal_looks=1),
    SeedContract(),
    StallLiteral(limit_s=1.0),
    StragglerSequential(arl0=100, baseline_rounds=10),
    SyncLatencyLearned(arl0=100, min_slowdown_ratio=1, min_excess_ms=0),
    SyncLatencyLiteral(),
    SyncOutlierLiteral(consecutive=2),
    UpdateSkew(),
]

ODD = [None, 0.0, -1.0, 1e-320, 1e308, -1e308, math.inf, -math.inf, math.nan, True]
numbers = st.sampled_from(ODD) | st.floats(min_value=0.0, max_value=2.0)
steps = st.one_of(st.integers(0, 50), st.integers(0, 10**30))


MEASURED = (
    "loss",
    "grad_norm",
    "step_time_s",
    "data_s",
    "forward_s",
    "backward_s",
    "sync_s",
    "optimizer_s",
    "zero_share",
    "allocated_mib",
    "reserved_mib",
)
HELD = ("host_mib", "num_fds", "num_threads", "ceiling_mib", "free_mib", "fd_limit", "device_mib")
COUNTED = ("num_saves", "num_evaluations", "num_epochs")


def samples(ranks: st.SearchStrategy[int]) -> st.SearchStrategy[Sample]:
    return st.builds(
        Sample,
        rank=ranks,
        step=steps,
        time_s=st.floats(),
        batch=st.sampled_from([None, 0, 10**12]),
        non_finite=st.sampled_from([(), ("input", "loss"), ("gradient",)]),
        is_warmup=st.booleans(),
        is_update_left_out=st.booleans(),
        is_scaled=st.booleans(),
        **dict.fromkeys(MEASURED, numbers),
    )


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    num_ranks = draw(st.sampled_from([0, 1, 2, 3, 3]))
    members = tuple(draw(samples(st.just(rank))) for rank in range(num_ranks))
    return Round(step=draw(steps), samples=members)


EVENTS = {
    Sample: samples(st.integers(0, 3)),
    Round: rounds(),
    Pulse: st.builds(
        Pulse,
        rank=st.integers(0, 3),
        time_s=st.floats() | st.floats(0, 1000),
        is_alive=st.booleans(),
        process_state=st.sampled_from("RSDTZX?"),
        step=steps,
        phase=st.sampled_from(Phase),
        since_progress_s=st.floats() | st.floats(0, 1000),
        num_steps=st.integers(0, 100),
        exit_reason=st.sampled_from([None, "killed"]),
    ),
    Replicas: st.builds(
        Replicas,
        step=steps,
        part=st.sampled_from(["one", "another"]),
        slots=st.sampled_from([(0,), (0, 1)]),
        ranks=st.just((0, 1, 2)),
        num_tensors=st.just(2),
        num_differing=st.just(0),
        differing=st.just(()),
        is_first=st.booleans(),
        is_certain=st.booleans(),
    )
    | st.builds(
        Replicas,
        step=steps,
        part=st.sampled_from(["one", "another"]),
        slots=st.just((0, 1)),
        ranks=st.just((0, 1, 2)),
        num_tensors=st.just(2),
        num_differing=st.just(1),
        differing=st.builds(
            lambda slot, camps: (
                Difference(parameter="weight", kind="parameter", slot=slot, camps=camps),
            ),
            st.integers(0, 1),
            st.sampled_from([((0, 1), (2,)), ((0,), (1,), (2,))]),
        ),
        is_first=st.booleans(),
        is_certain=st.booleans(),
    ),
    Rerun: st.builds(
        Rerun,
        rank=st.integers(0, 3),
        step=steps,
        micro_batch=st.integers(0, 2),
        num_compared=st.just(2),
        num_differing=st.integers(0, 2),
        differing=st.sampled_from([(), ("weight",), ("output of net", "weight")]),
        wrong=st.sampled_from(["", "first", "second", "unclear"]),
        is_exact=st.booleans(),
        num_equal=st.integers(0, 3),
    ),
    Audit: st.builds(
        Audit,
        step=steps | st.none(),
        time_s=st.floats(),
        moment=st.sampled_from(["start", "rollback", "workers", "probe"]),
        wrong=st.sampled_from([(), ("Weights differ.",)]),
        at_fault=st.sampled_from([(), (1,), (0, 2)]),
        streams=st.lists(
            st.builds(
                Stream,
                generator=st.sampled_from(["numpy", "torch"]),
                digest=st.sampled_from("abc"),
                rank=st.integers(0, 3),
                loader=st.just(0),
                worker=st.integers(0, 2),
                epoch=st.integers(0, 2),
            ),
            max_size=4,
        ).map(tuple),
        is_owed=st.booleans(),
    ),
    Save: st.builds(
        Save,
        step=steps | st.none(),
        time_s=st.floats() | st.floats(0, 1000),
        succeeded=st.booleans(),
        is_corrupt=st.booleans(),
        reason=st.sampled_from(["", "The disk is full."]),
    ),
    Usage: st.builds(
        Usage,
        rank=st.integers(0, 3),
        step=steps,
        time_s=st.floats() | st.floats(0, 1000),
        **dict.fromkeys(HELD, numbers),
        **dict.fromkeys(COUNTED, st.integers(0, 3)),
    ),
}


def healthy(kind: type, number: int) -> Any:
    """An ordinary event, so that the odd ones meet a detector that has warmed up."""
    spread = 1.0 + 0.02 * math.sin(12.9898 * number)
    members = tuple(
        Sample(
            rank=rank,
            step=number,
            time_s=0.2 * number,
            loss=2.0 * spread,
            grad_norm=0.2 * spread,
            step_time_s=0.2 * spread,
            data_s=0.01 * spread,
            forward_s=0.05 * spread,
            backward_s=0.1 * spread,
            sync_s=0.01 * spread,
            optimizer_s=0.01 * spread,
            allocated_mib=1000.0 * spread,
            reserved_mib=2000.0 * spread,
            zero_share=0.1 * spread,
            batch=number,
        )
        for rank in range(3)
    )
    stream = Stream("numpy", str(number), 0, 0, 0, number)
    short = {
        Sample: members[0],
        Round: Round(step=number, samples=members),
        Save: Save(step=number, time_s=10.0 * number, succeeded=True),
        Rerun: Rerun(rank=0, step=number, micro_batch=0, num_compared=9, num_differing=0),
        Audit: Audit(step=number, time_s=10.0 * number, moment="workers", streams=(stream,)),
    }
    if kind in short:
        return short[kind]
    if kind is Replicas:
        return Replicas(
            step=number,
            part="one",
            slots=(0, 1),
            ranks=(0, 1, 2),
            num_tensors=2,
            num_differing=0,
            differing=(),
            is_first=number == 0,
            is_certain=True,
        )
    if kind is Usage:
        return Usage(
            rank=0,
            step=number,
            time_s=0.2 * number,
            host_mib=1000.0 * spread,
            num_fds=100,
            num_threads=8,
            ceiling_mib=8000.0,
            free_mib=7000.0,
            num_saves=number // 20,
        )
    return Pulse(
        rank=0,
        time_s=0.1 * number,
        is_alive=True,
        process_state="S",
        step=number,
        phase=Phase.FORWARD,
        since_progress_s=0.01,
        num_steps=number,
    )


@functools.cache
def warmed_up(detector: Any, num_events: int) -> Any:
    events = [healthy(kind, n) for n in range(num_events) for kind in detector.WATCHES]
    return watch_from(detector, detector.start(), events)[0]


def events_for(detector: Any) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.one_of(*(EVENTS[kind] for kind in detector.WATCHES)), max_size=6)


def through_json(detector: Any, state: Any) -> Any:
    return from_plain(detector.start(), json.loads(json.dumps(to_plain(state))))


def through_torch(detector: Any, state: Any) -> Any:
    file = BytesIO()
    torch.save(to_plain(state), file)
    file.seek(0)
    return from_plain(detector.start(), torch.load(file, weights_only=True))


every_detector = pytest.mark.parametrize(
    "detector", EVERY_DETECTOR, ids=lambda detector: type(detector).__name__
)
thorough = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def test_every_public_detector_is_held_to_this_contract():
    """
    A detector that is exported is in the list above.
    """
    assert sorted(type(detector).__name__ for detector in EVERY_DETECTOR) == slav1.detectors.__all__


@every_detector
def test_says_what_it_is_for(detector):
    """
    Rule, variant, kinds of event and number of samples needed are on the class.
    """
    kind = type(detector)

    assert kind.RULE and kind.RULE.islower()
    assert kind.VARIANT in {"literal", "learned", "sequential"}
    assert set(kind.WATCHES) <= {Audit, Sample, Round, Pulse, Replicas, Rerun, Save, Usage}
    assert kind.NUM_SAMPLES_NEEDED >= 1


@every_detector
@given(data=st.data())
@thorough
def test_resume_changes_nothing(detector, data):
    """
    A run that is saved, loaded and continued finds exactly what an unbroken run finds.
    """
    state = warmed_up(detector, data.draw(st.sampled_from([0, 1, 60])))
    state, _ = watch_from(detector, state, data.draw(events_for(detector)))
    after = data.draw(events_for(detector))
    save_and_load = data.draw(st.sampled_from([through_json, through_torch]))

    resumed = watch_from(detector, save_and_load(detector, state), after)
    unbroken = watch_from(detector, state, after)

    assert repr(unbroken) == repr(resumed)  # repr, so that NaN equals NaN


@every_detector
@given(data=st.data())
@thorough
def test_is_pure(detector, data):
    """
    The same events give the same memory and findings, whatever was watched in between,
    and nothing that was handed in changes.
    """
    events = data.draw(events_for(detector))
    before = repr((detector, events))
    state = warmed_up(detector, 60)
    unchanged = repr(state)

    first = watch_from(detector, state, events)
    watch(detector, reversed(events))
    second = watch_from(detector, state, events)

    assert repr(first) == repr(second)
    assert repr((detector, events)) == before
    assert repr(state) == unchanged


@every_detector
@given(data=st.data())
@thorough
def test_takes_anything(detector, data):
    """
    NaN, infinite, huge, negative and missing numbers raise nothing, and what is found is
    whole: the detector's own rule, a message, and facts that JSON can hold.
    """
    state = warmed_up(detector, data.draw(st.sampled_from([0, 60])))

    _, found = watch_from(detector, state, data.draw(events_for(detector)))

    for breach in found:
        assert isinstance(breach, Breach)
        assert breach.rule == detector.RULE
        assert breach.message.endswith(".")
        assert isinstance(breach.status, Status)
        json.dumps(dict(breach.evidence))


@every_detector
@given(data=st.data())
@thorough
def test_odd_events_do_not_poison_it(detector, data):
    """
    No NaN or infinity gets into the memory, so none can silence a detector for good.
    """
    state, _ = watch_from(detector, warmed_up(detector, 60), data.draw(events_for(detector)))

    assert all(math.isfinite(number) for number in numbers_in(to_plain(state)))


@every_detector
def test_memory_does_not_grow(detector):
    """
    After a thousand events the memory is about as large as after two thousand.
    """
    early = len(json.dumps(to_plain(warmed_up(detector, 1_000))))
    late = len(json.dumps(to_plain(warmed_up(detector, 2_000))))

    assert late < 1.2 * early + 200


@every_detector
def test_settings_cannot_change(detector):
    """
    A detector is frozen: no memory can hide in it from the checkpoint.
    """
    with pytest.raises((AttributeError, TypeError)):
        detector.RULE_OF_THUMB = 1
    assert not hasattr(detector, "__dict__")


def numbers_in(plain: Any) -> list[float]:
    if isinstance(plain, dict):
        return [number for part in plain.values() for number in numbers_in(part)]
    if isinstance(plain, list):
        return [number for part in plain for number in numbers_in(part)]
    return [] if isinstance(plain, str) else [plain]
