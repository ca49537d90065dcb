"""The contract: levels, clauses, limits and modes. YAML in, checked settings out."""

from slav1.contract.contract import Contract
from slav1.contract.error import ContractError
from slav1.contract.ladder import Rung, ladder
from slav1.contract.policy_clause import PolicySettings
from slav1.contract.rule import Mode, Rule
from slav1.contract.settings import CheckpointSettings, MonitorSettings, SeedSettings

__all__ = [
    "CheckpointSettings",
    "Contract",
    "ContractError",
    "Mode",
    "MonitorSettings",
    "PolicySettings",
    "Rule",
    "Rung",
    "SeedSettings",
    "ladder",
]
