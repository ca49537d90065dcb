"""From the host to the recorder: phases, losses and step boundaries of one loop."""

from contextlib import AbstractContextManager
from typing import Any

from torch.optim import Optimizer

from sla_accelerate._batches.position import Positions
from sla_accelerate._compat import length_of
from sla_accelerate._figures import LoopFigures
from sla_accelerate._gradients import LoopGradients
from sla_accelerate._inject import FaultPoints
from sla_accelerate._loop_phases import LoopPhases
from sla_accelerate._pace import Pace
from sla_accelerate._prepared import Prepared
from sla_accelerate._seeds import LoopSeeds
from sla_accelerate._step_in_hand import StepInHand
from sla_accelerate.actions import OnStop, Orders, TrainingStoppedError
from slav1.phase import Phase
from slav1.replicas import ReplicaWatch, StepReplay
from slav1.session import Session
from slav1.testing import Faults
from slav1.torch_signals import Readings

_DATA, _FORWARD, _BACKWARD = int(Phase.DATA), int(Phase.FORWARD), int(Phase.BACKWARD)
_OPTIMIZER, _BETWEEN, _EVALUATION = int(Phase.OPTIMIZER), int(Phase.BETWEEN), int(Phase.EVALUATION)


class LoopWatch:
    """Tells the recorder what a hand-written loop does, step by step."""

    def __init__(
        self, session: Session, *, on_stop: OnStop, faults: Faults | None, keeps_batch: bool
    ) -> None:
        """Starts before the first step, in the phase of the set-up.

        Args:
            session: This rank's session.
            on_stop: What a stop does.
            faults: What is planned to go wrong on this rank; None for nothing.
            keeps_batch: Whether the batch in hand may be kept until its step ends, to
                be looked at if the loss is not finite.
        """
        self.session = session
        self.recorder = session.recorder
        self.prepared = Prepared(
            own_work_ends=session.recorder.own_work_ends,
            before_step=self.before_optimizer_step,
            after_step=self.after_optimizer_step,
        )
        self.replicas = ReplicaWatch(session, self.prepared.copies)
        self.replicas.begin(-1)
        self.phases = LoopPhases(
            session.recorder,
            is_model_training=self.prepared.is_training,
            leaves_steps=self._drop_replay,
        )
        """Where in its steps the loop is."""
        self.replay: StepReplay | None = None
        """Runs some micro-batches twice; None if none is."""
        self.step = -1
        """Step that ended last, counted from 0 over the whole run."""
        self.is_over = False
        """Whether nothing is recorded any more."""
        self.num_steps = 0
        """Steps this process has made."""
        self.figures: LoopFigures | None = None
        """Sums up what the user's trackers are given; None if they are given nothing."""
        self.positions: Positions | None = None
        """Where the loaders are; None if nobody needs to know."""
        self.seeds: LoopSeeds | None = None
        """What is done about random numbers; None if nobody looks at them."""
        self.orders = Orders(on_stop)
        """What the contract has told this training to do."""
        self.updates_are_told = False
        """Whether steps were told of by the loop because no optimizer is known."""
        self.are_batches_uneven = False
        """Whether ranks may have different numbers of batches on purpose."""
        self.faults = faults
        """What is planned to go wrong on this rank."""
        self._faults = None if faults is None else FaultPoints(faults, self.prepared)
        self.gradients = LoopGradients(session)
        """Looks at gradients before each update."""
        self._in_hand = StepInHand(
            session.recorder, self.gradients, self.prepared, keeps_batch=keeps_batch
        )
        self._pace = Pace()
        self.is_training_fetch = False
        """Whether the batch that was asked for last is one to train with."""
        self._num_told = 0
        self._is_synced = False

    def starts_within(self, num_batches: int) -> None:
        """The loop has got this many batches before anybody could tell that it trains."""
        for _ in range(num_batches):
            self._in_hand.count_batch()

    def is_driven(self) -> None:
        """A host's own loop trains: it divides the loss of each micro-batch before its backward,
        tells of evaluations, and a model's mode says nothing."""
        self._in_hand.losses_are_shares, self.phases.is_mode_telling = True, False

    def begin_pass(self, loader: Any, epoch: int) -> None:
        """A pass begins; nothing is drawn yet. Takes the loader underneath."""
        if self.seeds is None:
            return
        if self.is_training_fetch:
            self.seeds.begin_pass(loader, epoch)
        else:
            self.seeds.bind(loader)

    def tell_workers(self) -> None:
        """Tells what random numbers the loaders' workers have begun with."""
        if self.seeds is not None:
            self.seeds.tell_workers(self.step + 1)

    def begin_fetch(self, loader: Any) -> bool:
        """A batch is asked for; returns whether there is one."""
        self._in_hand.forget_batch()
        phases = self.phases
        self.is_training_fetch = phases.pinned is None and phases.is_training()
        if not self.is_training_fetch:
            phases.step_aside(_EVALUATION)
            return True
        self.prepared.forget_updates()
        if self.orders.due is not None:
            self.orders.roll_back(self)
        phases.go_on(_DATA)
        if phases.rest == _FORWARD:
            phases.rest = _BETWEEN
            if not self.are_batches_uneven:
                self.session.compare(num_batches=length_of(loader))
            if self.seeds is not None:
                self.seeds.start(self.step + 1)
        return self._faults is None or self._faults.at_data(self.step + 1)

    def end_fetch(self, batch: Any) -> Any:
        """The batch is there; returns what the loop shall get."""
        if not self.is_training_fetch:
            self.phases.step_aside(_EVALUATION)
            return batch
        self._in_hand.count_batch()
        self.recorder.enter(_FORWARD)
        if self.replay is not None:
            self.replay.expect(self.step + 1)
        if self._faults is not None:
            batch = self._faults.at_forward(self.step + 1, batch)
        self._in_hand.keep_batch(batch)
        return batch

    def end_epoch(self) -> None:
        """There is no further batch."""
        self._in_hand.forget_batch()
        self.recorder.count_epoch()
        self.tell_workers()
        self.phases.step_aside(_EVALUATION)

    def begin_backward(self, loss: Any) -> Any:
        """The loss is there; returns the one to differentiate."""
        phases = self.phases
        if phases.pinned is not None:
            self.recorder.enter(phases.pinned)
            return loss
        if phases.is_aside and not self.prepared.is_training():
            # This loop trains in evaluation mode, so the mode says nothing here.
            phases.is_mode_telling = False
        # What was clipped before this is not the gradient that is updated with.
        self.gradients.forget_norm()
        if self._faults is not None:
            loss = self._faults.loss(self.step + 1, loss)
        self._in_hand.take_in(loss)
        self._is_synced = self.prepared.syncs_gradients()
        if phases.is_aside:
            phases.go_on(_BACKWARD)
        if self._is_synced:
            self.recorder.enter_synced_backward()
        else:
            self.recorder.enter(_BACKWARD)
        if self.replay is not None:
            self.replay.begin_backward()
        if self._faults is not None:
            self._faults.at_backward(self.step + 1)
        if self.replicas.waiting:
            self.replicas.begin_backward()
        return loss

    def end_backward(self, *, has_gradients: bool) -> None:
        """The backward is over; with ``has_gradients`` an update comes next."""
        self.replicas.end_backward()
        if self.phases.pinned is not None:
            return
        after = _OPTIMIZER if has_gradients else self.phases.rest
        if self._is_synced:
            self.recorder.leave_synced_backward(after)
            if self.num_steps >= 1:
                self.prepared.settle()
        else:
            self.recorder.enter(after)
        if self.replay is not None:
            self.replay = self.replay.end_backward(self.step + 1)
        if self._faults is not None:
            self._faults.after_backward(self.step + 1, has_gradients=has_gradients)

    def before_optimizer_step(self, optimizer: Optimizer) -> None:
        """An optimizer is about to make a real step."""
        if self.phases.pinned is not None:
            return
        if self._faults is not None:
            self._faults.at_optimizer(self.step + 1)
        self.gradients.before_update(
            optimizer,
            is_synced=self._is_synced,
            is_only_one=self.prepared.num_optimizers == 1,
        )

    def note_norm(self, parameters: list[Any], norm: Any, *, is_alike: bool) -> None:
        """The loop has had a norm computed, for clipping; taken if it is that of all."""
        if len(parameters) >= self.prepared.num_trainable:
            self.gradients.note_norm(norm, is_alike=is_alike)

    def after_optimizer_step(self, optimizer: Optimizer) -> None:
        """An optimizer has made a real step."""
        self.gradients.watch.put_rates_back()
        if self.phases.pinned is not None:
            return
        num_optimizers = self.prepared.num_optimizers
        if not self._pace.ends_step(id(optimizer), num_optimizers=num_optimizers):
            # Another optimizer's forward and backward follow in the same step.
            self.recorder.enter(_FORWARD)
            return
        self.recorder.enter(self.phases.rest)
        self._end_step()

    def end_engine_step(self, made: Readings) -> None:
        """An engine that steps by itself has made a step."""
        if self.phases.pinned is None:
            self.gradients.watch.hear_of(made)
            self.recorder.enter(self.phases.rest)
            self._end_step()

    def end_own_step(self, loss: Any) -> None:
        """The loop says that a step is over; one that was seen to end does not end again."""
        was_seen = self.num_steps != self._num_told
        self._num_told = self.num_steps
        if was_seen or self.phases.pinned is not None:
            return
        if self.phases.is_aside:
            self.phases.go_on(_FORWARD)
        if not self._in_hand.has_loss:
            if self._faults is not None:
                loss = self._faults.loss(self.step + 1, loss)
            self._in_hand.take_in(loss)
        self.updates_are_told |= self.prepared.num_optimizers == 0
        self.recorder.enter(self.phases.rest)
        self._num_told += 1
        self._end_step()

    def aside(self, phase: Phase) -> AbstractContextManager[None]:
        """Something that is no part of a step; may be nested."""
        return self.phases.aside(phase)

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is known that speaks against the state in memory."""
        return self.orders.due is None and not self.session.command.is_deciding

    def resume(self, step: int, detectors: Any) -> None:
        """The state is that of the end of ``step`` of an earlier start.

        Args:
            step: Last step contained; not looked at if this process has made any yet.
            detectors: Their memories; None on all ranks but one, or if there are none.
        """
        if detectors is not None:
            self.session.restore(detectors)
        if self.num_steps == 0:
            self.step = max(self.step, step)
            self.recorder.starts_at(self.step + 1)
        self.replicas.begin(self.step)

    def drain(self) -> None:
        """Waits for what is still on its way from a device."""
        self._in_hand.drain()

    def go_back(self, step: int, detectors: Any) -> None:
        """The state is that of the end of ``step`` again; arguments as for :meth:`resume`."""
        self.drain()
        self.step = step
        self.replicas.begin(step)
        self._in_hand.forget()
        self.orders.is_back(self, step, detectors)

    def forget_objects(self) -> None:
        """The user frees all models and optimizers; others may follow."""
        self.gradients.watch.close()
        self.gradients.forget_engine()
        self.prepared.remove()
        self.replicas.begin(self.step)
        self._drop_replay()
        self._pace = Pace()
        self._in_hand.forget_batch()

    @property
    def stopped_at(self) -> int | None:
        """Step at whose end the contract stopped this training; None if it did not."""
        return self.orders.stopped_at

    def stop_error(self) -> TrainingStoppedError:
        """What a loop that was stopped gets."""
        return self.orders.stop_error(self)

    def leave(self, reason: str) -> None:
        """Ends the watch; ``finished`` if all is in good order."""
        if self.is_over:
            return
        self.orders.give_up(self)
        self.orders.finish()
        self.tell_workers()
        if self.seeds is not None:
            self.seeds.close()
        if reason == "finished":
            self.drain()
            self.recorder.enter(int(Phase.TEARDOWN))
        self.is_over = True
        self.phases.close()
        self.forget_objects()
        self.session.leave(reason)

    def _end_step(self) -> None:
        self.step += 1
        num_before = self.num_steps
        self.num_steps += 1
        if self.positions is not None:
            self.positions.note_step(self.step)
        self._in_hand.end(self.step, num_before=num_before)
        if self.step >= self.replicas.due_step:
            self.replicas.look(self.step)
        if self.replay is not None:
            self.replay.expect(self.step + 1)
        if self._faults is not None:
            self._faults.at_step_end(self.step)
        if self.step == 0 and self.session.attempt:
            self.orders.tell_that_all_is_done_again(self.session)
        action = self.session.at_boundary(self.step)
        if action is not None:
            # Other tensors may take the place of those that are looked at.
            self.replicas.forget()
            self.orders.carry_out(self, action)

    def _drop_replay(self) -> None:
        if self.replay is not None:
            self.replay.drop()
