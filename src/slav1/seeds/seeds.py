"""The seed contract of one rank: what a host calls at setup, at the start, and later."""

import json
import logging
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from slav1.checkpoint import Peers, PeersMissingError
from slav1.checkpoint.fingerprints import fingerprint_tensors, root_of
from slav1.contract import SeedSettings
from slav1.seeds.audit import Judged, Moment, Promise, judge
from slav1.seeds.choice import Choice, choose, is_set, offset_of
from slav1.seeds.determinism import lacking, probe_sentence, settings_here
from slav1.seeds.first_weights import copy_first_weights, place_of, set_first
from slav1.seeds.generators import digests, script_seed, seed_all, take
from slav1.seeds.samplers import repeats_its_order
from slav1.seeds.worker_watch import WorkerWatch

RULE = "seed_contract"
"""Name of the rule."""

FILE = "seed.json"
"""File in the run folder that keeps the seed for later starts."""

LIMIT_S = 120.0
"""How long ranks wait for each other to compare what they have, in seconds."""

_log = logging.getLogger("slav1.seeds")


class Seeds:
    """What the clause ``seeds`` of a contract means for one rank. Used by one thread.

    In order: :meth:`begin` before weights are made, if the host can; :meth:`spread` when they
    are, and before data is drawn; :meth:`compare` then, and after each resume and rollback.
    With mode ``check`` the first two change nothing.
    """

    def __init__(
        self,
        settings: SeedSettings,
        peers: Peers,
        run_folder: Path,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Changes nothing yet.

        Args:
            settings: The clause.
            peers: The ranks of the run.
            run_folder: Folder of the run.
            environment: Environment variables.

        Raises:
            ValueError: If a group names a rank that there is not.
        """
        self._settings = settings
        self._peers = peers
        self._run_folder = run_folder
        self._environment = environment
        beyond = [r for group in settings.groups for r in group if r >= peers.world_size]
        if beyond:
            raise ValueError(
                f"seeds.groups names rank {beyond[0]}, but the run has {peers.world_size} ranks."
            )
        self.groups: tuple[tuple[int, ...], ...] = settings.groups
        """Ranks that draw the same numbers; a host that knows them may say so."""
        self.is_set = is_set(settings, environment)
        """Whether seeds are set, and not only looked at."""
        self.choice: Choice | None = None
        """The global seed; None before :meth:`begin`, and where none is set."""
        self._workers = WorkerWatch()
        self._is_repetition_told = False

    @property
    def is_off(self) -> bool:
        """Whether the contract leaves seeds alone."""
        return self._settings.mode == "off"

    @property
    def offset(self) -> int:
        """What this rank adds to the global seed."""
        return offset_of(self._peers.rank, self.groups)

    def begin(self, *, script: int | None = None, has_weights: bool = False) -> None:
        """Collective if seeds are set. Gives all ranks the seed that weights are made from.

        A seed that the script has set itself stays as it is, numbers drawn since included.

        Args:
            script: Seed that the script has set; None to look at torch's.
            has_weights: Whether weights were made already.

        Raises:
            PeersMissingError: If a rank does not come.
        """
        if not self.is_set:
            return
        script = script_seed() if script is None else script
        self.choice, place = self._agree(script)
        is_alone = self._peers.world_size == 1
        is_changed = set_first(self.choice, script=script, is_alone=is_alone, place=place)
        if is_changed and has_weights:
            self.tell_weights_were_made()

    def tell_weights_were_made(self) -> None:
        """Says, on rank 0, that the seed came too late for the first weights."""
        if self._peers.rank == 0 and self.choice is not None:
            self._peers.record(
                "notice",
                "The first weights were made before the contract could set the seed "
                f"{self.choice.seed}: they are the script's. Seed in the script, or make them "
                "in configure_model (Lightning) or after the accelerator (Accelerate).",
                rule=RULE,
            )

    def adopt(self, choice: Choice) -> None:
        """Takes over a seed that all ranks have set by other means."""
        self.choice = choice

    def spread(self) -> None:
        """Gives this rank random numbers of its own for data, augmentation and dropout.

        A rank with offset 0, so a single process too, goes on with those it has.
        """
        if self.choice is not None and self.offset:
            seed_all(self.choice.seed + self.offset)

    def compare(
        self,
        moment: Moment,
        *,
        step: int,
        weights: Mapping[str, Tensor],
        samplers: Iterable[int] = (),
        state: Mapping[str, Any] | None = None,
        limit_s: float = LIMIT_S,
    ) -> Judged | None:
        """Collective. Compares all ranks and writes down what came of it.

        Where the contract sets seeds, first weights that differ are made rank 0's on all ranks,
        and looked at again.

        Args:
            moment: When it is.
            step: The step that comes next.
            weights: What must be equal on all ranks, by name; nothing of sharded models.
            samplers: Seeds of the samplers that share the data out.
            state: Generators that the rank goes on with, as ``take`` returns them; None for
                those it has.
            limit_s: How long to wait for the others, in seconds.

        Returns:
            What was found; None if the contract leaves seeds alone, or a rank did not come.
        """
        if self.is_off:
            return None
        names = self._fingerprints(weights, step)
        mine = {**self._look(state), "samplers": list(samplers), "weights": root_of(names)}
        try:
            looks = self._peers.gather("seeds", mine, limit_s=limit_s)
            is_apart = len({look["weights"] for look in looks}) > 1
            if is_apart:
                tensors = self._peers.gather("seeds apart", names, limit_s=limit_s)
                looks = [{**look, "tensors": t} for look, t in zip(looks, tensors, strict=True)]
        except PeersMissingError as error:
            self._tell(f"Seeds were not compared at the {moment}: {error}", step=step)
            return None
        judged = judge(looks, self._promise, moment)
        self._write(judged, moment, step, len(looks))
        # All ranks know that they differ, so all of them come to this.
        if is_apart and moment == "start" and self.choice is not None and dist.is_initialized():
            copy_first_weights(weights)
            self._tell("Rank 0's first weights were copied to all ranks.", step=step)
            # A state that can't be made equal is compared only once more.
            self.compare("repair", step=step, weights=weights, samplers=mine["samplers"])
        return judged

    def watch(self, loaders: Iterable[Any], epoch: int) -> None:
        """Before the data of a pass is iterated: looks after its worker processes."""
        if self.is_off:
            self.bind(loaders)
            return
        is_left = self.choice is None or self._peers.world_size == 1
        seed = None if self.choice is None or is_left else self.choice.seed + self.offset
        self._workers.watch(loaders, epoch, seed=seed)

    def bind(self, loaders: Iterable[Any]) -> None:
        """Before other data is iterated: lets its worker processes end with this one."""
        self._workers.bind(loaders)

    def check_samplers(self, loaders: Iterable[Any], *, epoch: int, step: int) -> None:
        """Looks whether samplers were told of the epoch that begins; to be called after the host
        has told them. Says so once if not.

        Args:
            loaders: The loaders to train with.
            epoch: The epoch, from 0.
            step: The step that comes next.
        """
        if self.is_off or self._is_repetition_told or not repeats_its_order(loaders, epoch):
            return
        self._is_repetition_told = True
        self._tell(
            f"A distributed sampler was not told of epoch {epoch}: it brings the items in an order "
            "that has been already. Call its set_epoch() at the start of each epoch.",
            step=step,
        )

    def tell_workers(self, step: int) -> None:
        """Says what workers have said since the last time; waits for nobody."""
        told = self._workers.news()
        if not told:
            return
        self._peers.record(
            "notice",
            f"{len(told)} worker processes of rank {self._peers.rank} began with these random "
            "numbers.",
            step=step,
            rule=RULE,
            audit="workers",
            is_quiet=True,
            is_set=self.choice is not None and self._peers.world_size > 1,
            owner=self.offset,
            workers=told,
        )

    @property
    def probes(self) -> bool:
        """Whether the first step owes the same bits when it is made again."""
        return self._settings.probe

    def tell_probe(
        self,
        step: int,
        *,
        first: str,
        num_differing: int,
        num_compared: int,
        operators: Iterable[str] = (),
        problem: str = "",
    ) -> None:
        """Says what came of making the forward and backward of a step again, twice.

        Args:
            step: The step.
            first: What differed first; empty if nothing did.
            num_differing: Tensors that differed.
            num_compared: Tensors that were compared.
            operators: Operators of torch that have no deterministic form as they are set.
            problem: Why nothing was made again; empty if it was.
        """
        rank, is_cuda = self._peers.rank, self._is_cuda
        ways = lacking(
            settings_here(self._environment), is_cuda=is_cuda, world_size=self._peers.world_size
        )
        message = probe_sentence(
            rank=rank,
            first=first,
            num_differing=num_differing,
            num_compared=num_compared,
            operators=operators,
            ways=ways,
            problem=problem,
        )
        self._peers.record(
            "notice",
            message,
            step=step,
            rule=RULE,
            audit="probe",
            is_quiet=bool(first) or rank != 0,
            wrong=[message] if first else [],
            at_fault=[rank] if first else [],
            num_compared=num_compared,
            num_differing=num_differing,
            operators=list(operators),
        )

    def close(self) -> None:
        """Gives the loaders back what was theirs."""
        self._workers.close()

    @property
    def _promise(self) -> Promise:
        return Promise(
            is_set=self.choice is not None,
            groups=self.groups,
            deterministic=self._settings.deterministic,
        )

    def _look(self, state: Mapping[str, Any] | None) -> dict[str, Any]:
        """What this rank has of seeds, generators and settings."""
        return {
            "script_seed": script_seed(),
            "generators": digests(take() if state is None else state),
            "settings": settings_here(self._environment),
            "is_cuda": self._is_cuda,
        }

    @property
    def _is_cuda(self) -> bool:
        return torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]

    def _fingerprints(self, weights: Mapping[str, Tensor], step: int) -> dict[str, str]:
        try:
            return fingerprint_tensors(weights)
        except Exception as error:  # noqa: BLE001 - whatever a tensor of another kind raises
            self._tell(f"First weights can't be compared: {type(error).__name__}: {error}", step)
            return {}

    def _agree(self, script: int | None) -> tuple[Choice, list[int]]:
        mine: list[Any] = [0, "", []]
        if self._peers.rank == 0:
            chosen = choose(
                self._settings,
                self._environment,
                script=script,
                earlier=_read(self._run_folder),
                job=str(self._run_folder),
                time_ns=time.time_ns(),
            )
            mine = [*chosen, place_of(chosen)]
        seed, source, place = self._peers.gather("global seed", mine, limit_s=LIMIT_S)[0]
        choice = Choice(int(seed), source)
        if self._peers.rank == 0:
            _log.info("The global seed is %d, from: %s.", choice.seed, choice.source)
            self._keep(choice.seed)
        return choice, place

    def _keep(self, seed: int) -> None:
        """Keeps the seed for later starts of the run."""
        try:
            (self._run_folder / FILE).write_text(json.dumps({"seed": seed}))
        except OSError as error:
            # A disk that is full costs a later start its seed, and not this one its run.
            self._peers.record(
                "notice",
                f"The seed {seed} could not be kept for later starts of this run: {error}.",
                rule=RULE,
            )

    def _write(self, judged: Judged, moment: Moment, step: int, num_ranks: int) -> None:
        is_worth_a_line = bool(judged.wrong) or self.choice is not None or num_ranks > 1
        if self._peers.rank != 0 or not is_worth_a_line:
            return
        chosen = {} if self.choice is None else self.choice._asdict()
        given = f"Global seed {chosen['seed']} (from: {chosen['source']}). " if chosen else ""
        said = " ".join([*judged.wrong, *judged.noted]) or "Nothing to remark."
        self._peers.record(
            "notice",
            f"{given}Seeds of {num_ranks} rank(s) looked at, {moment}: {said}",
            step=step,
            rule=RULE,
            audit=moment,
            is_quiet=not (judged.wrong or judged.noted),
            wrong=list(judged.wrong),
            noted=list(judged.noted),
            at_fault=list(judged.at_fault),
            **chosen,
            **judged.facts,
        )

    def _tell(self, message: str, step: int) -> None:
        if self._peers.rank == 0:
            self._peers.record("notice", message, step=step, rule=RULE)


def _read(run_folder: Path) -> int | None:
    try:
        return int(json.loads((run_folder / FILE).read_text())["seed"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
