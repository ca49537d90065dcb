"""Runs some forwards and backwards of a host's training twice, unseen by host and script.

Imports torch, so nothing that the monitor imports may import this module.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from torch import nn

from slav1.contract import Contract, Mode
from slav1.phase import Phase
from slav1.replicas._calls import Call, CallRecord, run_again
from slav1.replicas._diagnosis import (
    is_compiled,
    module_at_fault,
    operators_at_fault,
    speaks_to_others,
)
from slav1.replicas._marks import Mark, Tolerance, unequal_bits
from slav1.replicas._replay_words import RULE, ReplayWords, Watched
from slav1.replicas.microbatches import is_chosen

Roots: TypeAlias = Sequence[tuple[str, nn.Module]]
"""Modules by name; parameters are named after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRuns:
    """What repeated runs of the first micro-batch came to."""

    first: str = ""
    """What differed first in two of them; empty if nothing did."""

    num_differing: int = 0
    """Tensors that differed."""

    num_compared: int = 0
    """Tensors that were compared."""

    operators: tuple[str, ...] = ()
    """Operators of torch that are known not to repeat themselves, if anything differed."""

    problem: str = ""
    """Why nothing was run again; empty if it was."""


class StepReplay:
    """Runs some micro-batches of a training again and compares bits.

    What is run again is each call of a module that holds trained parameters, made from
    outside of modules: with the same inputs, generators, buffers and attributes, and backward
    from the same gradients of its outputs. So neither loss function nor host is needed, nothing
    is logged or counted twice, and DDP, which is outside, sends nothing. Compared are outputs,
    gradients of inputs and, before any reduction, gradients of parameters. Code outside of
    modules is not run again; nor is anything where a forward speaks to other ranks.

    The first micro-batch is run twice more, to learn whether bits repeat here; see
    :class:`~slav1.replicas.MicrobatchReplay`, which does this for a loop's whole micro-batch.
    All ranks choose the same micro-batches without asking each other.
    """

    def __init__(
        self,
        session: Watched,
        find: Callable[[], Roots | str],
        *,
        tell_first: Callable[..., None] | None,
    ) -> None:
        """Starts before the first step.

        Args:
            session: This rank's session; the rule of its contract says which share.
            find: Finds the modules that hold all others; or says why nothing can be replayed,
                as the end of a sentence.
            tell_first: Told what the first micro-batch showed, as
                :meth:`slav1.seeds.Seeds.tell_probe` is; None if only a share is replayed.
        """
        self._session = session
        self._words = ReplayWords(session)
        self._find = find
        self._tell_first = tell_first
        self._ratio = ratio_of(session.contract)
        self._tolerance = Tolerance()
        self._is_learning = True
        self._has_tried = False
        self._left_out: frozenset[str] = frozenset()
        self._record: CallRecord | None = None
        self._modules: list[tuple[str, nn.Module]] = []
        self._names: dict[int, str] = {}
        self._place = (-1, 0)
        self._is_on = True

    def expect(self, step: int) -> None:
        """Before a forward, as often as one likes: the next backward belongs to this step."""
        self.drop()
        if step != self._place[0]:
            self._place = step, 0
        if self._is_on and (self._is_learning or is_chosen(*self._place, self._ratio)):
            self._guarded(self._begin)()

    def drop(self) -> None:
        """What was called up to now is not followed by a backward, as in an evaluation."""
        if self._record is not None:
            self._record.remove()
            self._record = None

    def begin_backward(self) -> None:
        """The forward is over."""
        if self._record is not None:
            self._guarded(self._record.begin_backward)(lambda one: self._names.get(id(one)))

    def end_backward(self, next_step: int | None = None) -> "StepReplay | None":
        """The backward is over, and no parameter has been updated: runs it again if it is due.

        Args:
            next_step: What the next backward belongs to unless :meth:`expect` says otherwise,
                for a host that may not; None leaves it to :meth:`expect`.

        Returns:
            Who is to be told of the next one; None if no other is run again.
        """
        record, self._record = self._record, None
        if record is not None:
            record.remove()
            with self._session.recorder.beside(int(Phase.BACKWARD)):
                self._guarded(self._judge)(record)
        self._place = self._place[0], self._place[1] + 1
        if next_step is not None:
            self.expect(next_step)
        return self if self._is_on else None

    def _begin(self) -> None:
        if not self._modules:
            roots = self._find()
            why = roots if isinstance(roots, str) else _why_not(roots)
            if isinstance(roots, str) or why:
                self._give_up(why)
                return
            self._modules = list(_with_parameters(roots))
            self._names = {
                id(parameter): f"{name}.{inner}" if name else inner
                for name, root in roots
                for inner, parameter in root.named_parameters()
            }
        self._record = CallRecord(self._guarded)
        self._record.watch(self._modules)

    def _judge(self, record: CallRecord) -> None:
        calls = [call for call in record.calls if call.gradients]
        if not calls:
            if self._is_learning:
                self._give_up("the first backward came from no call of a module")
            return
        names = {name: p for p in record.parameters() if (name := self._names.get(id(p)))}

        def again() -> dict[str, Mark]:
            return self._compared(run_again(calls, names))

        known = [name for name in record.marks if name in names or _is_of(name, calls)]
        first = self._compared({name: record.marks[name] for name in known})
        if self._is_learning:
            self._learn(calls, first, again)
            return
        differing = self._tolerance.differing(first, second := again())
        wrong = self._tolerance.which_is_wrong(first, second, again()) if differing else ""
        self._words.tell_outcome(
            self._place,
            differing,
            num_compared=len(first),
            wrong=wrong,
            is_exact=self._tolerance.ratio is None,
        )

    def _compared(self, marks: dict[str, Mark]) -> dict[str, Mark]:
        if self._tolerance.ratio is not None:
            # Norms of outputs say nothing about those of gradients.
            return {name: mark for name, mark in marks.items() if not _is_of_call(name)}
        return {name: mark for name, mark in marks.items() if name not in self._left_out}

    def _learn(
        self, calls: list[Call], first: dict[str, Mark], again: Callable[[], dict[str, Mark]]
    ) -> None:
        """Learns from repeated runs of one micro-batch what can be expected of two."""
        if speaks_to_others(calls, again):
            self._give_up("a forward speaks to other ranks, who would have to answer twice")
            return
        second, third = again(), again()
        differing = unequal_bits(second, third)
        apart = () if differing else unequal_bits(first, second)
        if apart and not self._has_tried:
            # What is made when it is first needed is there the next time.
            self._has_tried = True
            return
        self._is_learning = False
        if self._tell_first is not None:
            self._tell_first_runs(calls, [n for n in first if n in differing], len(second), again)
        if not self._ratio:
            self._end()
        elif differing:
            self._words.tell_tolerance(self._place[0], self._tolerance.widen(second, third))
        elif any(name.startswith("output") for name in apart) or len(apart) == len(first):
            self._give_up(
                "a second run gave other results than the first, and a third the same as the "
                "second: something is kept between runs, in a module or outside of it"
            )
        else:
            self._left_out = frozenset(apart)
            modules = list(dict.fromkeys(call.module_name for call in calls))
            self._words.tell_begin(
                self._place[0],
                replay_ratio=self._ratio,
                modules=modules,
                num_compared=len(first) - len(apart),
                left_out=apart,
            )

    def _tell_first_runs(
        self, calls: list[Call], differing: list[str], num: int, again: Callable[[], Any]
    ) -> None:
        tell, self._tell_first = self._tell_first, None
        assert tell is not None, "somebody is told"
        found = FirstRuns(num_compared=num)
        if differing:
            module = module_at_fault(calls)
            first = differing[0] if module is None else f"output of {module}"
            found = FirstRuns(
                first=first,
                num_differing=len(differing),
                num_compared=num,
                operators=operators_at_fault(again),
            )
        tell(self._place[0], **asdict(found))

    def _give_up(self, why: str, *, is_own: bool = False) -> None:
        self._end()
        tell, self._tell_first = self._tell_first, None
        if tell is not None:
            tell(self._place[0], **asdict(FirstRuns(problem=why)))
        if self._ratio:
            self._words.tell_end(self._place[0], why, is_own=is_own)

    def _end(self) -> None:
        self._is_on = False
        self.drop()
        self._modules, self._names = [], {}

    def _guarded(self, do: Callable[..., None]) -> Callable[..., None]:
        def safely(*args: Any, **kwargs: Any) -> None:
            try:
                do(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - a look must not end a training
                self._give_up(
                    f"rank {self._session.rank} can't go on with it: "
                    f"{type(error).__name__}: {str(error)[:300]}",
                    is_own=True,
                )

        return safely


def replay_for(
    session: Watched, find: Callable[[], Roots | str], *, tell_first: Callable[..., None] | None
) -> StepReplay | None:
    """The replay that a contract asks for; None if it asks for none. Arguments as for
    :class:`StepReplay`."""
    if tell_first is None and not ratio_of(session.contract):
        return None
    return StepReplay(session, find, tell_first=tell_first)


def ratio_of(contract: Contract) -> float:
    """Share of the micro-batches that a contract has run twice."""
    rule = contract.rules[RULE]
    return 0.0 if rule.mode is Mode.OFF else float(getattr(rule.detector, "replay_ratio", 0.0))


def _why_not(roots: Roots) -> str:
    """Why these modules can't be run again; empty if they can."""
    for _, root in roots:
        for module in root.modules():
            if hasattr(module, "require_forward_param_sync"):
                return "DDP lies inside of another module, and would send what is run again"
            if getattr(module, "_compiled_call_impl", None) is not None:
                return f"a {type(module).__name__} is compiled in place, so its calls are not seen"
    return ""


def _with_parameters(roots: Roots) -> Iterator[tuple[str, nn.Module]]:
    """Modules that hold something trained, from the outside in, but nothing inside of what is
    compiled."""
    for name, module in roots:
        if not any(parameter.requires_grad for parameter in module.parameters()):
            continue
        yield name, module
        if not is_compiled(module):
            prefix = f"{name}." if name else ""
            children = [(f"{prefix}{inner}", child) for inner, child in module.named_children()]
            yield from _with_parameters(children)


def _is_of_call(name: str) -> bool:
    return name.startswith(("output", "gradient of input"))


def _is_of(name: str, calls: Sequence[Call]) -> bool:
    return _is_of_call(name) and any(name.endswith(f" of {call.name}") for call in calls)
