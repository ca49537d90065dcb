"""Detector memories as plain values, so that they can lie in a checkpoint."""

from typing import Any


def to_plain(state: Any) -> Any:
    """Turns nested NamedTuples into dicts and lists of numbers and text.

    Args:
        state: A memory as a detector keeps it.

    Returns:
        The same content as dict (for a NamedTuple), list (for a tuple) and plain
        values; survives JSON and ``torch.load(weights_only=True)``.
    """
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return {name: to_plain(getattr(state, name)) for name in state._fields}
    if isinstance(state, tuple | list):
        return [to_plain(part) for part in state]
    return state


def from_plain(example: Any, plain: Any) -> Any:
    """Rebuilds a memory from :func:`to_plain`.

    Args:
        example: A memory of the same detector, usually ``detector.start()``; gives
            the types. Where it holds an empty tuple, the parts are taken as they are.
        plain: What :func:`to_plain` returned.

    Returns:
        A memory equal to the one written down.

    Raises:
        ValueError: If a field is missing or too many, or a list is something else, as
            after a change of version.
    """
    if isinstance(example, tuple) and hasattr(example, "_fields"):
        if not isinstance(plain, dict) or set(plain) != set(example._fields):
            raise ValueError(
                f"A saved {type(example).__name__} must have the fields "
                f"{', '.join(example._fields)}; got {plain!r:.120}."
            )
        return type(example)(
            **{name: from_plain(getattr(example, name), plain[name]) for name in example._fields}
        )
    if isinstance(example, tuple):
        if not isinstance(plain, list | tuple):
            raise ValueError(f"A saved tuple must be a list; got {plain!r:.120}.")
        return tuple(
            from_plain(example[min(i, len(example) - 1)], part) if example else _frozen(part)
            for i, part in enumerate(plain)
        )
    return plain


def _frozen(plain: Any) -> Any:
    return tuple(_frozen(part) for part in plain) if isinstance(plain, list) else plain
