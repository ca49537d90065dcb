"""The stability contract for distributed training, independent of any framework."""

from slav1.contract import Contract, ContractError
from slav1.startup import enforce_timeout_guard, validate_nccl_health

__all__ = [
    "Contract",
    "ContractError",
    "__version__",
    "enforce_timeout_guard",
    "validate_nccl_health",
]

__version__ = "0.1.0"
