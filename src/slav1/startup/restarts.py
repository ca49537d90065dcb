"""What stands in the way when an elastic launcher starts a job again."""

from collections.abc import Mapping

SHARED_STORE_OFF = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Variable that makes torch's agent open a new store for each start."""


def restart_hazard(environment: Mapping[str, str], backend: str) -> str | None:
    """Says why a restart might fail that nothing has asked for yet.

    The agent of ``torchrun`` keeps one key-value store over all restarts. Gloo leaves each
    rank's address there under the same key, so a rank that is started again may read the
    address of one that is dead, and gives up (torch 2.13). NCCL is not affected.

    Args:
        environment: Environment variables of a rank.
        backend: Back end of the default process group, as ``torch.distributed`` names it.

    Returns:
        A sentence with what to do; None if all is well.
    """
    is_allowed = environment.get("TORCHELASTIC_MAX_RESTARTS", "0") not in ("", "0")
    is_shared = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not is_allowed or not is_shared or "gloo" not in backend:
        return None
    return (
        "The launcher may start this job again, and its store keeps the addresses that gloo's "
        "ranks had before: a restarted rank may call a dead one and give up. Start torchrun with "
        f"{SHARED_STORE_OFF}=1 in its environment and --rdzv-backend=c10d (or --standalone); "
        "with --master-addr alone it always shares the store."
    )
