"""Runs real code of several processes in every order of their memory accesses.

A process is a plain function that touches the outside only through a ``Port``. What
it does depends only on what its accesses returned. So it is not suspended but run
again, with the answers so far, up to the next access. That makes a state a plain
value, and the search an exhaustive one over states instead of over schedules.

Memory is that of x86 (TSO): every process has a first-in first-out store buffer; its
stores become visible to others whenever the explorer likes, to itself at once.

What another process cannot tell apart from the same thing done later happens at once
(``_is_private``); everything else is tried in every order.
"""

import random
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Key = Hashable
Access = tuple[Any, ...]


class _NextAccess(BaseException):
    def __init__(self, access: Access) -> None:
        self.access = access


class _Forget(BaseException):
    def __init__(self, memory: Hashable) -> None:
        self.memory = memory


class State(NamedTuple):
    """Everything that the rest of a run depends on."""

    places: tuple[int, ...]
    """How far each process is: number of the node of its tree of answers."""
    memory: tuple[int, ...]
    buffers: tuple[tuple[tuple[int, int, int], ...], ...]
    """A process's stores that others do not see yet: place, value, who waits for it."""
    mail: tuple[tuple[tuple[str, str], tuple[Any, ...]], ...]
    notes: frozenset[Any]
    num_deaths: int


class Port:
    """All that a process sees of the world."""

    def __init__(self, answers: list[Any]) -> None:
        self._answers = iter(answers)

    def _access(self, *access: Any) -> Any:
        for answer in self._answers:
            return answer
        raise _NextAccess(access)

    def load(self, key: Key) -> int:
        return self._access("load", key)

    def store(self, key: Key, value: int) -> None:
        self._access("store", key, int(value))

    def announce(self, key: Key, value: int) -> None:
        """Tells those that await it; says nothing about stores."""
        self._access("announce", key, value)

    def await_all(self, keys: tuple[Key, ...], value: int) -> None:
        """Until all of some announced values, which only grow, have come so far."""
        self._access("await_all", keys, value)

    def load_flag(self, key: Key) -> int:
        """Reads a word that goes up once; looking at it late is as good as acting late."""
        return self._access("load_flag", key)

    def note(self, *note: Any) -> None:
        self._access("note", note)

    def send(self, to: str, message: Any) -> None:
        self._access("send", to, message)

    def sleep(self, unless: Key) -> None:
        """Until something that was read since the last sleep has changed, or ``unless``
        is not 0."""
        self._access("select", False, unless)

    def receive(self) -> Any:
        """The next message of any sender; None if what was last read has changed."""
        return self._access("select", True, None)

    def settle(self, _seconds: float) -> None:
        """A pause of twice the time that a store needs to become visible."""
        for _ in range(2):
            self._access("mark")
            self._access("await_marked")

    def forget(self, memory: Hashable) -> None:
        """Goes on as the same code started with ``memory``: equal memories, equal states."""
        raise _Forget(memory)


@dataclass(slots=True)
class _Node:
    memory: Hashable
    answers: list[Any]
    access: Access | None
    loads: dict[Key, int]
    children: dict[Any, int] = field(default_factory=dict)


class World:
    """Some processes, and which of them may die.

    Args:
        processes: Code of each process, by name; called with its port and what it
            wanted to keep when it forgot the rest, at first None.
        mortals: Processes that may be killed at any moment; at most one is.
        marked_by: Processes whose stores become visible in the pause of a process,
            besides its own; by the name of the one that pauses.
    """

    NUM_PLACES = 48

    def __init__(
        self,
        processes: dict[str, Callable[[Port, Any], None]],
        *,
        mortals: tuple[str, ...] = (),
        marked_by: dict[str, tuple[str, ...]],
    ) -> None:
        self.names = list(processes)
        self._scripts = list(processes.values())
        self._mortals = mortals
        self._marked_by = marked_by
        self._unmarked = set(processes) - {name for names in marked_by.values() for name in names}
        self._places_of: dict[Key, int] = {}
        self._trees: list[list[_Node]] = [[] for _ in self.names]
        self._roots: list[dict[Hashable, int]] = [{} for _ in self.names]

    def place(self, key: Key) -> int:
        place = self._places_of.setdefault(key, len(self._places_of))
        assert place < self.NUM_PLACES
        return place

    def start(self) -> State:
        """Before anything has happened but what nobody can tell from later."""
        state = State(
            places=tuple(self._root(process, None) for process in range(len(self.names))),
            memory=(0,) * self.NUM_PLACES,
            buffers=((),) * len(self.names),
            mail=(),
            notes=frozenset(),
            num_deaths=0,
        )
        return self._do_private(state)

    def next_access(self, state: State, process: int) -> Access | None:
        """What a process does next; None if it has ended or was killed."""
        place = state.places[process]
        return None if place < 0 else self._trees[process][place].access

    def value(self, state: State, key: Key) -> int:
        """What lies in memory, as everybody sees it."""
        return state.memory[self.place(key)]

    def successors(self, state: State) -> list[tuple[str, State]]:
        """All that can happen next, each with what then happens at once."""
        found: list[tuple[str, State]] = []
        for process, name in enumerate(self.names):
            access = self.next_access(state, process)
            if state.buffers[process]:
                found.append((f"{name} drains", self._drain(state, process)))
            if access is not None:
                found += [(f"{name} {access}", after) for after in self._do(state, process, access)]
            if name in self._mortals and state.num_deaths == 0 and access is not None:
                found.append((f"{name} dies", self._kill(state, process)))
        return [(label, self._do_private(after)) for label, after in found]

    def explore(self) -> Iterator[tuple[State, bool, Callable[[], list[str]]]]:
        """Every state that can be reached: itself, whether it is the last of a run, and a
        function that tells how it was reached."""
        start = self.start()
        came_from: dict[State, tuple[State, str] | None] = {start: None}
        stack = [start]
        while stack:
            state = stack.pop()
            after = self.successors(state)
            for label, successor in after:
                if successor not in came_from:
                    came_from[successor] = (state, label)
                    stack.append(successor)
            yield state, not after, lambda state=state: _trace(came_from, state)

    def walk(self, seed: int) -> Iterator[tuple[State, bool, Callable[[], list[str]]]]:
        """The states of one random run, as :meth:`explore` gives them."""
        draw, state, labels = random.Random(seed), self.start(), []
        # Some processes are slow in one run and fast in the next: uniform draws would
        # let all of them proceed at the same pace in every run.
        pace = {name: draw.choice((0.05, 0.3, 1.0)) for name in self.names}
        while True:
            after = self.successors(state)
            yield state, not after, lambda: labels
            if not after:
                return
            weights = [
                0.002 if label.endswith("dies") else pace[label.split()[0]] for label, _ in after
            ]
            label, state = draw.choices(after, weights)[0]
            labels.append(label)

    def _root(self, process: int, memory: Hashable) -> int:
        roots = self._roots[process]
        if memory not in roots:
            roots[memory] = self._grow(process, memory, [], {})
        return roots[memory]

    def _grow(
        self, process: int, memory: Hashable, answers: list[Any], loads: dict[Key, int]
    ) -> int:
        access = None
        try:
            self._scripts[process](Port(answers), memory)
        except _NextAccess as reached:
            access = reached.access
        except _Forget as end:
            return self._root(process, end.memory)
        self._trees[process].append(_Node(memory, answers, access, loads))
        return len(self._trees[process]) - 1

    def _answer(self, state: State, process: int, answer: Any) -> State:
        node = self._trees[process][state.places[process]]
        if answer not in node.children:
            node.children[answer] = self._grow(
                process, node.memory, [*node.answers, answer], _loads_after(node, answer)
            )
        return state._replace(places=_put(state.places, process, node.children[answer]))

    def _do_private(self, state: State) -> State:
        process = 0
        while process < len(self.names):
            access = self.next_access(state, process)
            if access is not None and self._is_private(state, process, access):
                (state,) = self._do(state, process, access)
                process = 0
            else:
                process += 1
        return state

    def _is_private(self, state: State, process: int, access: Access) -> bool:
        match access[0]:
            case "note" | "announce" | "send" | "load_flag":
                return True
            case "await_all" | "await_marked":
                return bool(self._do(state, process, access))
            case "store":
                # Whether a store comes before or after a mark makes a difference.
                # Whether it comes before or after a death, too.
                name = self.names[process]
                return name in self._unmarked and name not in self._mortals
            case _:
                return False

    def _do(self, state: State, process: int, access: Access) -> list[State]:
        return getattr(self, f"_do_{access[0]}")(state, process, *access[1:])

    def _do_load(self, state: State, process: int, key: Key) -> list[State]:
        place = self.place(key)
        own = [value for at, value, _ in state.buffers[process] if at == place]
        return [self._answer(state, process, own[-1] if own else state.memory[place])]

    def _do_load_flag(self, state: State, process: int, key: Key) -> list[State]:
        return [self._answer(state, process, self.value(state, key))]

    def _do_store(self, state: State, process: int, key: Key, value: int) -> list[State]:
        buffer = (*state.buffers[process], (self.place(key), value, 0))
        after = state._replace(buffers=_put(state.buffers, process, buffer))
        return [self._answer(after, process, None)]

    def _do_announce(self, state: State, process: int, key: Key, value: int) -> list[State]:
        after = state._replace(memory=_put(state.memory, self.place(key), value))
        return [self._answer(after, process, None)]

    def _do_note(self, state: State, process: int, note: Any) -> list[State]:
        return [self._answer(state._replace(notes=state.notes | {note}), process, None)]

    def _do_await_all(
        self, state: State, process: int, keys: tuple[Key, ...], value: int
    ) -> list[State]:
        if any(self.value(state, key) < value for key in keys):
            return []
        return [self._answer(state, process, None)]

    def _do_send(self, state: State, process: int, to: str, message: Any) -> list[State]:
        mail, line = dict(state.mail), (self.names[process], to)
        mail[line] = (*mail.get(line, ()), message)
        return [self._answer(state._replace(mail=tuple(sorted(mail.items()))), process, None)]

    def _do_select(self, state: State, process: int, takes_mail: bool, unless: Key) -> list[State]:
        found = []
        for line, messages in state.mail if takes_mail else ():
            if line[1] == self.names[process] and messages:
                rest = {**dict(state.mail), line: messages[1:]}
                mail = tuple(sorted((at, left) for at, left in rest.items() if left))
                found.append(self._answer(state._replace(mail=mail), process, messages[0]))
        loads = self._trees[process][state.places[process]].loads
        is_outdated = any(self.value(state, key) != value for key, value in loads.items())
        if is_outdated or (unless is not None and self.value(state, unless)):
            found.append(self._answer(state, process, None))
        return found

    def _do_mark(self, state: State, process: int) -> list[State]:
        bit = 1 << process
        marked = {self.names[process], *self._marked_by[self.names[process]]}
        buffers = tuple(
            tuple((place, value, waits | bit) for place, value, waits in buffer)
            if name in marked
            else buffer
            for name, buffer in zip(self.names, state.buffers, strict=True)
        )
        return [self._answer(state._replace(buffers=buffers), process, None)]

    def _do_await_marked(self, state: State, process: int) -> list[State]:
        bit = 1 << process
        if any(waits & bit for buffer in state.buffers for _, _, waits in buffer):
            return []
        return [self._answer(state, process, None)]

    def _drain(self, state: State, process: int) -> State:
        (place, value, _), *rest = state.buffers[process]
        return state._replace(
            memory=_put(state.memory, place, value),
            buffers=_put(state.buffers, process, tuple(rest)),
        )

    def _kill(self, state: State, process: int) -> State:
        while state.buffers[process]:
            state = self._drain(state, process)
        return state._replace(
            places=_put(state.places, process, -1),
            memory=_put(state.memory, self.place(("dead", self.names[process])), 1),
            num_deaths=state.num_deaths + 1,
        )


def _loads_after(node: _Node, answer: Any) -> dict[Key, int]:
    """What a process read since it last slept; a message does not end a sleep's memory."""
    assert node.access is not None
    if node.access[0] in ("load", "load_flag"):
        return {**node.loads, node.access[1]: answer}
    if node.access[0] == "select" and answer is None:
        return {}
    return node.loads


def _put(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _trace(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    labels = []
    step = came_from[state]
    while step is not None:
        labels.append(step[1])
        step = came_from[step[0]]
    return labels[::-1]
