"""What was measured: one rank's step, all ranks' step, one rank's clocks, a save, an audit."""

from dataclasses import dataclass
from typing import NamedTuple

from slav1.phase import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One rank's measurements of one optimizer step, as plain Python numbers.

    Tensors stop at the adapter. By the time a ``Sample`` exists its values are
    on the host, so a detector never waits for a device. A value that was not
    measured is None, never 0.
    """

    rank: int
    """Global rank that measured."""

    step: int
    """Optimizer step, counted from 0 over the whole run, resumes included."""

    time_s: float
    """When the step ended, on the node's monotonic clock, in seconds."""

    loss: float | None = None
    """Loss of the step on this rank; may be NaN or infinite."""

    grad_norm: float | None = None
    """L2 norm of the gradient before the update; may be NaN or infinite."""

    step_time_s: float | None = None
    """Wall time from the end of the step before to the end of this one, in seconds."""

    data_s: float | None = None
    """Waiting for batches, in seconds; summed over the micro-batches of the step."""

    forward_s: float | None = None
    """Forward passes, in seconds; summed over the micro-batches of the step."""

    backward_s: float | None = None
    """This rank's own backward work, in seconds, waiting for peers left out."""

    sync_s: float | None = None
    """Gradient sync that the backward waited for, in seconds."""

    optimizer_s: float | None = None
    """The optimizer's update, in seconds."""

    allocated_mib: float | None = None
    """Device memory that tensors hold after the update, in MiB."""

    reserved_mib: float | None = None
    """Device memory that torch's allocator holds after the update, in MiB."""

    zero_share: float | None = None
    """Share of the gradient's elements that are exactly 0, from 0 to 1."""

    batch: int | None = None
    """Batch number since the start of training, from 0."""

    non_finite: tuple[str, ...] = ()
    """What held NaN or infinity when the rank looked, in the order it is computed:
    any of ``input, parameters, loss, gradient``. Looked at only when the loss is
    not finite."""

    is_warmup: bool = False
    """Whether this is one of the first steps of a process: compiling, caching."""

    is_update_left_out: bool = False
    """Whether the weights kept their values because the gradient was not finite."""

    is_scaled: bool = False
    """Whether a gradient scaler is at work, which by itself leaves each update out whose
    gradient is not finite."""

    def times_s(self) -> dict[str, float]:
        """Those of its times that are known, by the names that people are shown; in seconds."""
        times_s = {
            "step_time_s": self.step_time_s,
            "data_time_s": self.data_s,
            "self_time_s": self.self_time_s,
            "sync_time_s": self.sync_s,
        }
        return {name: seconds for name, seconds in times_s.items() if seconds is not None}

    @property
    def self_time_s(self) -> float | None:
        """Time this rank worked on its own in the step, in seconds; None if unknown."""
        parts = (self.data_s, self.forward_s, self.backward_s, self.optimizer_s)
        known = [part for part in parts if part is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The same optimizer step seen by all ranks."""

    step: int
    """Optimizer step that all samples belong to."""

    samples: tuple[Sample, ...]
    """One sample a rank, ordered by rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """The clocks of one rank at one moment, as its node's monitor reads them."""

    rank: int
    """Global rank."""

    time_s: float
    """When the monitor looked, on the node's monotonic clock, in seconds."""

    is_alive: bool
    """Whether the process exists and has not become a zombie."""

    process_state: str
    """The kernel's letter: R running, S sleeping, D uninterruptible, T stopped,
    Z zombie, X gone, ? unknown."""

    step: int
    """Step the rank is in."""

    phase: Phase
    """Phase the rank is in."""

    since_progress_s: float
    """Seconds since the rank last entered a phase; time in which it waited for a
    processor on an overloaded machine is left out where the kernel tells it."""

    num_steps: int
    """Steps this process has finished."""

    exit_reason: str | None = None
    """Why a rank that is gone left, in its own words; None if it did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """One try of all ranks to save a checkpoint, or what was found out about one later."""

    step: int | None
    """Last optimizer step contained; None if that can't be told any more."""

    time_s: float
    """When it ended, on the coordinator's monotonic clock, in seconds."""

    succeeded: bool
    """Whether it became a checkpoint."""

    is_corrupt: bool = False
    """Whether what was written read back differently."""

    reason: str = ""
    """Why it failed, in words; empty if it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one rank's processes hold at one moment between evaluations and saves, as its
    node's monitor reads it. What could not be read is None, never 0.

    Device memory is in each :class:`Sample`, measured after the update.
    """

    rank: int
    """Global rank."""

    step: int
    """Step the rank is in."""

    time_s: float
    """When it was read, on the node's monotonic clock, in seconds."""

    host_mib: float | None = None
    """Host memory of the process and all its children, shared pages once, in MiB."""

    num_fds: int | None = None
    """Open file descriptors of the process."""

    num_threads: int | None = None
    """Threads of the process."""

    ceiling_mib: float | None = None
    """Host memory that the rank's container may hold, or else the machine has, in MiB."""

    free_mib: float | None = None
    """How much of that nobody holds, in MiB."""

    fd_limit: int | None = None
    """File descriptors that the process may open."""

    device_mib: float | None = None
    """Memory of the rank's device, in MiB."""

    num_saves: int = 0
    """Checkpoints that this process has saved."""

    num_evaluations: int = 0
    """Evaluations that it has ended."""

    num_epochs: int = 0
    """Epochs that it has ended."""


class Stream(NamedTuple):
    """The random numbers that one worker of a loader began with."""

    generator: str
    """Name of the generator."""

    digest: str
    """Equal for two that draw the same numbers."""

    rank: int
    """Global rank; the lowest one of those that draw the same by design."""

    loader: int
    """Number of the loader."""

    worker: int
    """Number of the worker."""

    epoch: int
    """Pass over the data, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """One look at the ranks' seeds, generators, settings and first weights."""

    step: int | None
    """Optimizer step that comes next; None if nobody knows."""

    time_s: float
    """When it was, on the coordinator's monotonic clock, in seconds."""

    moment: str
    """``start``, ``repair``, ``resume``, ``rollback``; or, of one rank, ``workers`` for those of
    its loaders, ``probe`` for a step that it made twice."""

    wrong: tuple[str, ...] = ()
    """What the ranks found wrong when they compared, in sentences."""

    at_fault: tuple[int, ...] = ()
    """Ranks that the first of these is about; none if it is about all."""

    streams: tuple[Stream, ...] = ()
    """What workers began with."""

    is_owed: bool = False
    """Whether the contract has set the seeds, so that streams must differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """A micro-batch that one rank has run twice, compared with its first run."""

    rank: int
    """Global rank."""

    step: int
    """Optimizer step that it belongs to; its update has not been made when it is compared."""

    micro_batch: int
    """Which one of the step."""

    num_compared: int
    """Outputs and gradients that were compared."""

    num_differing: int
    """Those that were not the same."""

    differing: tuple[str, ...] = ()
    """Those, or the first of many."""

    wrong: str = ""
    """Which run was wrong by a third one: ``first``, ``second`` or ``unclear``; empty if
    nothing differs."""

    is_exact: bool = True
    """Whether bits were compared; otherwise norms, with a tolerance."""

    num_equal: int = 0
    """Micro-batches that were the same before, in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A tensor of which ranks that should hold the same hold different bits."""

    parameter: str
    """Name of the parameter that it is or belongs to."""

    kind: str
    """``parameter``, or what the optimizer calls it, such as ``exp_avg``."""

    slot: int
    """Share of the tensors that it is looked at with."""

    camps: tuple[tuple[int, ...], ...]
    """Ranks that hold the same, together; the largest camp first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """Copies of tensors that should be equal on several ranks, compared after one step."""

    step: int
    """Optimizer step after whose update they were looked at."""

    part: str
    """Names these tensors on these ranks."""

    slots: tuple[int, ...]
    """Shares of the tensors that were looked at; in a few steps all come by."""

    ranks: tuple[int, ...]
    """Global ranks whose copies were there to be compared."""

    num_tensors: int
    """Tensors that were compared."""

    num_differing: int
    """Tensors that were not equal."""

    differing: tuple[Difference, ...]
    """Those, or the first of very many."""

    is_first: bool
    """Whether some of these shares are looked at for the first time since this start."""

    is_certain: bool
    """Whether no way is known by which they could come to differ in health."""

    is_trained: bool = True
    """Whether an optimizer updates them with a gradient that all ranks share."""
