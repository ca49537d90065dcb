"""What is wrong with a contract, in one line."""

import difflib
import reprlib
from collections.abc import Iterable

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxlevel = 2


class ContractError(ValueError):
    """A contract says something that can't be kept, or can't be read.

    Attributes:
        key: Path of the key, for example ``rules.sync_latency.limit_ms``; empty if
            the contract as a whole is meant.
        value: What came.
        file: The file it stands in; None if it came from code.
    """

    def __init__(
        self, text: str, *, key: str = "", value: object = None, file: str | None = None
    ) -> None:
        # One line whatever a key or a file name holds: it goes to terminals and logs.
        super().__init__(" ".join(text.split()))
        self.key = key
        self.value = value
        self.file = file

    def in_file(self, file: str) -> "ContractError":
        """Returns the same error, naming the file."""
        return ContractError(f"{file}: {self}", key=self.key, value=self.value, file=file)

    def below(self, path: str) -> "ContractError":
        """Returns the same error for a contract that is part of a larger document.

        Args:
            path: Path of the contract in it, for example ``mpirun_config.sla``.
        """
        begins = bool(self.key) and str(self).startswith(self.key)
        key = f"{path}.{self.key}" if self.key else path
        text = f"{path}.{self}" if begins else f"{path}: {self}"
        return ContractError(text, key=key, value=self.value, file=self.file)


def wrong_value(key: str, value: object, needed: str) -> ContractError:
    """Builds the error for a value of the wrong type or out of range.

    Args:
        key: Path of the key; empty for the contract as a whole.
        value: What came.
        needed: What is allowed, to follow "it must be".
    """
    subject = key or "the contract"
    return ContractError(f"{subject} is {shown(value)}; it must be {needed}.", key=key, value=value)


def unknown_key(key: str, value: object, allowed: Iterable[str]) -> ContractError:
    """Builds the error for a key that nothing reads.

    Args:
        key: Path of the key.
        value: What it was set to.
        allowed: The keys that may stand there.
    """
    names = sorted(allowed)
    return ContractError(
        f"{key} (set to {shown(value)}) is not a key of a contract. "
        f"Allowed here: {', '.join(names) or 'nothing'}.{did_you_mean(key, names)}",
        key=key,
        value=value,
    )


def did_you_mean(key: str, names: Iterable[str]) -> str:
    """Returns a hint at the name closest to the last part of ``key``, or nothing."""
    near = difflib.get_close_matches(key.rpartition(".")[2].lower(), names, n=1)
    return f" Did you mean {near[0]}?" if near else ""


def shown(value: object) -> str:
    """Describes a value as the writer of a YAML file knows it, in few characters."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {_SHORT.repr(value)}"
    if isinstance(value, dict):
        return f"the mapping {_SHORT.repr(value)}"
    if isinstance(value, list):
        return f"the list {_SHORT.repr(value)}"
    return _SHORT.repr(value)
