"""Seeds and random numbers: chosen, handed out, compared across ranks, and told when they repeat.

Imports torch, so nothing that the monitor imports may import this package.
"""

from slav1.seeds.audit import Judged, Moment, Promise, judge
from slav1.seeds.choice import Choice, choose, is_set, make_seed, offset_of
from slav1.seeds.determinism import lacking, settings_here
from slav1.seeds.equivalence import Equivalence, check_resume, compare_traces
from slav1.seeds.first_weights import copy_first_weights, place_of, set_first
from slav1.seeds.generators import digests, put_back, script_seed, seed_all, take
from slav1.seeds.probe import Probed, probe_step
from slav1.seeds.samplers import repeats_its_order, sampler_seeds
from slav1.seeds.seeds import Seeds
from slav1.seeds.workers import WorkerStart, begin_pass, release_workers, watch_workers

__all__ = [
    "Choice",
    "Equivalence",
    "Judged",
    "Moment",
    "Probed",
    "Promise",
    "Seeds",
    "WorkerStart",
    "begin_pass",
    "check_resume",
    "choose",
    "compare_traces",
    "copy_first_weights",
    "digests",
    "is_set",
    "judge",
    "lacking",
    "make_seed",
    "offset_of",
    "place_of",
    "probe_step",
    "put_back",
    "release_workers",
    "repeats_its_order",
    "sampler_seeds",
    "script_seed",
    "seed_all",
    "set_first",
    "settings_here",
    "take",
    "watch_workers",
]
