"""What rank 0 hands to the other ranks so that they can join its run."""

import base64
from typing import Any

import msgspec


class Ticket(msgspec.Struct, kw_only=True):
    """Everything a rank needs to join; or why it can't."""

    error: str = ""
    """Why the run could not be opened; empty if it was."""

    run_folder: str = ""
    """Folder of the run."""

    attempt: int = 0
    """Counts the starts of this run, from 0."""

    contract: dict[str, Any] = {}
    """Rank 0's contract, as ``Contract.to_dict`` gives it: one for all nodes."""

    token: str = ""
    """Secret that a rank shows to its node's monitor."""

    hosts: list[str] = []
    """Names under which rank 0's host may be reached, best first."""

    port: int = 0
    """TCP port of the coordinator."""

    server_public: str = ""
    """CURVE public key of the coordinator."""

    client_public: str = ""
    """CURVE public key of this job's monitors."""

    client_secret: str = ""
    """CURVE secret key that belongs to it."""

    def to_bytes(self) -> bytes:
        """Writes the ticket as text, which every store takes."""
        return base64.b64encode(msgspec.msgpack.encode(self))

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Ticket":
        """Reads what :meth:`to_bytes` wrote.

        Raises:
            ValueError: If it is no ticket of this version.
        """
        try:
            return msgspec.msgpack.decode(base64.b64decode(raw), type=cls)
        except (ValueError, msgspec.MsgspecError) as error:
            raise ValueError(
                f"Rank 0 handed out something that is no ticket of this version: {error}. All "
                "nodes need the same version of slav1."
            ) from error
