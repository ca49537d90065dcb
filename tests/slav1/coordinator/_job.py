"""A training job as processes of the explorer: real reader, hold and agreement."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slav1.coordinator.agreement import (
    Agreement,
    Effect,
    Effects,
    Hold,
    Outcome,
    Release,
    Result,
    Schedule,
)
from slav1.decision import Action, Decision
from slav1.monitor.hold import acknowledged_step, has_carried_out, hold, publish, release
from slav1.recorder.command import CommandReader

from ._explorer import Port, State, World

COORDINATOR = "coordinator"


class ReadsBeforeItWrites(CommandReader):
    """Wrong: looks for the hold before it says which step it enters."""

    def at_boundary(self, step: int) -> Action | None:
        is_held = self._words[16]
        self._words[5] = step + 1
        return self._decide(step) if is_held else None


class PublishesTheStepJustEnded(CommandReader):
    """Wrong: says which step it leaves, not which one it enters."""

    def at_boundary(self, step: int) -> Action | None:
        self._words[5] = step
        return self._decide(step) if self._words[16] else None


@dataclass(frozen=True, slots=True)
class PortWords:
    """The words of one rank, as one process sees them."""

    port: Port
    rank: int

    def __getitem__(self, index: int) -> int:
        return self.port.load((self.rank, int(index)))

    def __setitem__(self, index: int, value: int) -> None:
        self.port.store((self.rank, int(index)), value)


@dataclass(frozen=True, slots=True)
class PortFlags(PortWords):
    """The same, for words that are only ever looked at to see whether they went up."""

    def __getitem__(self, index: int) -> int:
        return self.port.load_flag((self.rank, int(index)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is explored."""

    nodes: dict[str, tuple[int, ...]]
    steps: Sequence[int]
    """Number of each step that ends at a boundary, the same on all ranks."""
    proposals: tuple[Action, ...] = (Action.STOP,)
    """One after the other by the coordinator, if ``is_proposed_any_time`` is not set."""
    is_proposed_any_time: bool = False
    """Whether the proposals come from outside, each at any moment."""
    has_time_limit: bool = False
    """Whether the limit of the decision that is current may pass at any moment."""
    is_coupled: bool = True
    """Whether no rank can end a step before all have entered it."""
    mortals: tuple[str, ...] = ()
    reader: type[CommandReader] = CommandReader
    pauses: bool = True
    """Whether monitors pause between the hold and reading the steps."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(rank for ranks in self.nodes.values() for rank in ranks))

    def world(self) -> World:
        processes: dict[str, Callable[[Port, Any], None]] = {
            f"rank{rank}": lambda port, kept, rank=rank: _train(self, port, rank, kept)
            for rank in self.ranks
        }
        marked_by = {}
        for node, ranks in self.nodes.items():
            marked_by[self.monitor_of(ranks[0])] = tuple(f"rank{rank}" for rank in ranks)
            if len(self.nodes) > 1:
                processes[node] = lambda port, kept, node=node: _monitor(self, port, node, kept)
        processes[COORDINATOR] = lambda port, kept: _coordinate(self, port, kept)
        if self.is_proposed_any_time:
            processes["proposer"] = lambda port, _: _propose(self, port)
        if self.has_time_limit:
            processes["clock"] = lambda port, _: _tick(port)
        return World(processes, mortals=self.mortals, marked_by=marked_by)

    def monitor_of(self, rank: int) -> str:
        if len(self.nodes) == 1:
            return COORDINATOR
        return next(node for node, ranks in self.nodes.items() if rank in ranks)


def _train(job: Job, port: Port, rank: int, kept: Any) -> None:
    reader = job.reader(
        PortWords(port, rank),
        is_monitor_alive=lambda: not port.load(("dead", job.monitor_of(rank))),
        sleep=lambda _: port.sleep(("dead", job.monitor_of(rank))),
    )
    index, memory = kept or (0, ())
    vars(reader).update(memory)
    if index == len(job.steps):
        _say_goodbye(port, rank)
        return
    step = job.steps[index]
    if job.is_coupled:
        port.announce(("entered", rank), step + 1)
        port.await_all(tuple(("entered", other) for other in job.ranks), step + 1)
    action = reader.at_boundary(step)
    port.note("passed", rank, step)
    if action is not None:
        port.note("acted", reader.number, rank, step)
        reader.confirm()
    memory = tuple((name, value) for name, value in vars(reader).items() if _is_plain(value))
    port.forget((len(job.steps) if action is Action.STOP else index + 1, memory))


def _say_goodbye(port: Port, rank: int) -> None:
    port.store(("done", rank), 1)
    port.note("finished", rank)


def _is_plain(value: Any) -> bool:
    return isinstance(value, int)


class _NodeEnd:
    """What a monitor does to its ranks, and sees of them."""

    def __init__(self, job: Job, port: Port, ranks: tuple[int, ...]) -> None:
        self.port = port
        self.pauses = job.pauses
        self.mortal_ranks = [rank for rank in ranks if f"rank{rank}" in job.mortals]
        self.words = {rank: PortWords(port, rank) for rank in ranks}
        self.flags = {rank: PortFlags(port, rank) for rank in ranks}
        self.told: tuple[tuple[Any, ...], ...] = ()
        self.scheduled = 0

    def hold(self, number: int) -> int:
        hold(self.words.values(), number, self.port.settle if self.pauses else lambda _: None)
        return acknowledged_step(self.words.values())

    def publish(self, decision: Decision) -> None:
        assert decision.step is not None
        self.scheduled = decision.number
        publish(self.words.values(), decision.number, decision.step, decision.action)

    def release(self, number: int) -> None:
        release(self.words.values(), number)

    def look(self) -> list[tuple[Any, ...]]:
        """What has happened to the ranks since the last look."""
        news: list[tuple[Any, ...]] = []
        for rank, flags in self.flags.items():
            # Read before the word it confirms with: told in the order it happened.
            is_done = self.port.load_flag(("done", rank))
            if self.scheduled and has_carried_out(flags, self.scheduled):
                news.append(("carried out", rank, self.scheduled))
            if is_done:
                news.append(("done", rank))
            if rank in self.mortal_ranks and self.port.load_flag(("dead", f"rank{rank}")):
                news.append(("lost", rank))
        news = [item for item in news if item not in self.told]
        self.told = tuple(sorted((*self.told, *news)))
        return news


def _coordinate(job: Job, port: Port, kept: Any) -> None:
    coordinator = _Coordinator(job, port)
    if kept is not None:
        coordinator.remember(kept)
    coordinator.go_on()
    port.forget(coordinator.memory())


class _Coordinator:
    """The agreement and what surrounds it; on a single node, the monitor as well."""

    def __init__(self, job: Job, port: Port) -> None:
        self.job = job
        self.port = port
        self.agreement = Agreement(job.nodes, acknowledge_limit_s=1.0, carry_out_limit_s=1.0)
        self.node_end = _NodeEnd(job, port, job.ranks) if len(job.nodes) == 1 else None
        self.gone: tuple[str, ...] = ()
        self.num_proposed = 0

    def memory(self) -> bytes:
        """What it must not forget."""
        node_end = self.node_end
        node_memory = (node_end.told, node_end.scheduled) if node_end else None
        return pickle.dumps((vars(self.agreement), node_memory, self.gone, self.num_proposed))

    def remember(self, memory: bytes) -> None:
        agreement, node_memory, self.gone, self.num_proposed = pickle.loads(memory)
        vars(self.agreement).update(agreement)
        if self.node_end:
            self.node_end.told, self.node_end.scheduled = node_memory

    def go_on(self) -> None:
        proposals = () if self.job.is_proposed_any_time else self.job.proposals
        if self.agreement.current is None and self.num_proposed < len(proposals):
            self.num_proposed += 1
            self.take(("propose", proposals[self.num_proposed - 1]))
            return
        news = self.node_end.look() if self.node_end else self.nodes_lost()
        for item in news:
            self.take(item)
        if not news:
            message = self.port.receive()
            if message is not None:
                self.take(message)

    def nodes_lost(self) -> list[tuple[Any, ...]]:
        mortal = [node for node in self.job.nodes if node in self.job.mortals]
        dead = [node for node in mortal if self.port.load_flag(("dead", node))]
        news = [("node lost", node) for node in dead if node not in self.gone]
        self.gone = tuple(dead)
        return news

    def take(self, news: tuple[Any, ...]) -> None:
        for effect in self.effects_of(*news):
            self.perform(effect)

    def effects_of(self, kind: str, *facts: Any) -> Effects:
        agreement = self.agreement
        if kind == "propose":
            return agreement.propose(facts[0], rule="test", rank=None, reason="test")
        return {
            "acknowledge": agreement.on_acknowledge,
            "carried out": agreement.on_carried_out,
            "done": agreement.on_rank_done,
            "lost": agreement.on_rank_lost,
            "node lost": agreement.on_node_lost,
            "tick": agreement.on_tick,
        }[kind](*facts)

    def perform(self, effect: Effect) -> None:
        if isinstance(effect, Outcome):
            decision, ranks = effect.decision, effect.carried_out
            self.port.note("outcome", decision.number, effect.result, decision.step, ranks)
        elif self.node_end is None:
            self.port.send(effect.node, effect)
        elif isinstance(effect, Hold):
            step = self.node_end.hold(effect.number)
            self.take(("acknowledge", effect.node, effect.number, step))
        elif isinstance(effect, Schedule):
            self.node_end.publish(effect.decision)
        else:
            self.node_end.release(effect.number)


def _monitor(job: Job, port: Port, node: str, kept: Any) -> None:
    node_end = _NodeEnd(job, port, job.nodes[node])
    node_end.told, node_end.scheduled = kept or ((), 0)
    for item in node_end.look():
        port.send(COORDINATOR, item)
    message = port.receive()
    if isinstance(message, Hold):
        step = node_end.hold(message.number)
        port.send(COORDINATOR, ("acknowledge", node, message.number, step))
    elif isinstance(message, Schedule):
        node_end.publish(message.decision)
    elif isinstance(message, Release):
        node_end.release(message.number)
    port.forget((node_end.told, node_end.scheduled))


def _propose(job: Job, port: Port) -> None:
    for action in job.proposals:
        port.send(COORDINATOR, ("propose", action))


def _tick(port: Port) -> None:
    port.send(COORDINATOR, ("tick", 0.0))
    port.send(COORDINATOR, ("tick", 9.0))


def disagreement(job: Job, world: World, state: State, is_last: bool) -> str | None:
    """What is wrong in a state; None if nothing is.

    In every state: no two ranks acted on one decision at different steps, and none
    acted once the decision was withdrawn. In the last state of a run: no rank waits at
    a boundary; of each decision, all ranks that ended its step acted or none did.
    """
    acted: dict[int, dict[int, int]] = {}
    for note in state.notes:
        if note[0] == "acted":
            acted.setdefault(note[1], {})[note[2]] = note[3]
    for number, step_of in acted.items():
        if len(set(step_of.values())) > 1:
            return f"decision {number} was carried out at different steps: {step_of}"
        results = {n[2] for n in state.notes if n[0] == "outcome" and n[1] == number}
        if results & {Result.WITHDRAWN, Result.COVERED, Result.MOOT}:
            return f"decision {number} was carried out, and is {results}"
    return _wrong_at_the_end(job, world, state, acted) if is_last else None


def _wrong_at_the_end(
    job: Job, world: World, state: State, acted: dict[int, dict[int, int]]
) -> str | None:
    alive = [rank for rank in job.ranks if state.places[world.names.index(f"rank{rank}")] >= 0]
    for rank in alive:
        access = world.next_access(state, world.names.index(f"rank{rank}"))
        # Waiting for a lost rank's part of a collective is not ours to end.
        is_excused = bool(job.mortals) and access is not None and access[0] == "await_all"
        if access is not None and not is_excused:
            return f"rank {rank} is stuck in {access}"
    for number, step_of in acted.items():
        step = next(iter(step_of.values()))
        missing = [
            rank for rank in alive if rank not in step_of and ("passed", rank, step) in state.notes
        ]
        # A monitor that ends while it publishes has told some of its ranks: see
        # docs/assumptions.md. Those that it did not tell go on.
        if missing and not set(job.mortals) & {COORDINATOR, *job.nodes}:
            return f"decision {number}: ranks {missing} ended step {step} and did not act"
    return _wrong_outcome(state, acted)


def _wrong_outcome(state: State, acted: dict[int, dict[int, int]]) -> str | None:
    outcomes = {n[1:] for n in state.notes if n[0] == "outcome" and n[2] is not Result.OVERDUE}
    if len({outcome[0] for outcome in outcomes}) != len(outcomes):
        return f"a decision has two outcomes: {outcomes}"
    for number, result, step, ranks in outcomes:
        late = [n for n in state.notes if n[0] == "passed" and step is not None and n[2] >= step]
        if result is Result.MOOT and late:
            return f"decision {number} for step {step} is moot, but these ended it: {late}"
        if (result is Result.CARRIED_OUT) != (number in acted):
            return f"decision {number} is {result}, carried out by {acted.get(number)}"
        if not set(ranks) <= set(acted.get(number, ())):
            return f"decision {number} names {ranks}, carried out by {acted.get(number)}"
    return None
