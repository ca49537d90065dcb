"""The rules: frozen settings and a pure function from what was measured to a breach.

A detector is one file here, one line in ``__all__`` and one line in the contract test.
Its class says by ``RULE``, ``VARIANT`` and ``WATCHES`` what it is for.
"""

from slav1.detectors.ckpt_success import CkptSuccessSequential
from slav1.detectors.ckpt_success_literal import CkptSuccessLiteral
from slav1.detectors.hang import HangLearned
from slav1.detectors.hang_literal import HangLiteral
from slav1.detectors.liveness import LivenessSequential
from slav1.detectors.liveness_literal import LivenessLiteral
from slav1.detectors.loss_variance import LossVarianceSequential
from slav1.detectors.loss_variance_literal import LossVarianceLiteral
from slav1.detectors.memory_drift import MemoryDriftSequential
from slav1.detectors.memory_drift_literal import MemoryDriftLiteral
from slav1.detectors.non_finite import NonFinite
from slav1.detectors.replica_divergence import ReplicaDivergenceLiteral
from slav1.detectors.seed_contract import SeedContract
from slav1.detectors.stall import StallLiteral
from slav1.detectors.straggler import StragglerSequential
from slav1.detectors.sync_latency import SyncLatencyLearned
from slav1.detectors.sync_latency_literal import SyncLatencyLiteral
from slav1.detectors.sync_outlier import SyncOutlierLiteral
from slav1.detectors.update_skew import UpdateSkew

__all__ = [
    "CkptSuccessLiteral",
    "CkptSuccessSequential",
    "HangLearned",
    "HangLiteral",
    "LivenessLiteral",
    "LivenessSequential",
    "LossVarianceLiteral",
    "LossVarianceSequential",
    "MemoryDriftLiteral",
    "MemoryDriftSequential",
    "NonFinite",
    "ReplicaDivergenceLiteral",
    "SeedContract",
    "StallLiteral",
    "StragglerSequential",
    "SyncLatencyLearned",
    "SyncLatencyLiteral",
    "SyncOutlierLiteral",
    "UpdateSkew",
]
