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
        example: A memory of the same detector, usually ``detector.start()``; gives the
            types. Where it holds an empty tuple, the parts are taken as they are; where it
            holds one part, there may be any number of that kind.
        plain: What :func:`to_plain` returned.

    Returns:
        A memory equal to the one written down.

    Raises:
        ValueError: If something is missing, too much or of another type, as after a
            change of version.
    """
    if isinstance(example, tuple) and hasattr(example, "_fields"):
        if not isinstance(plain, dict) or set(plain) != set(example._fields):
            wanted = f"the fields {', '.join(example._fields)}"
            raise _mismatch(f"A saved {type(example).__name__}", wanted, plain)
        return type(example)(
            **{name: from_plain(getattr(example, name), plain[name]) for name in example._fields}
        )
    if isinstance(example, tuple):
        return _tuple_from(example, plain)
    kind: type | tuple[type, ...] = str if isinstance(example, str) else (int, float)
    if not isinstance(plain, kind):
        raise _mismatch("A saved value", "text" if kind is str else "a number", plain)
    return plain


def _tuple_from(example: tuple[Any, ...], plain: Any) -> tuple[Any, ...]:
    if not isinstance(plain, list | tuple):
        raise _mismatch("A saved tuple", "a list", plain)
    if len(example) > 1 and len(plain) != len(example):
        raise _mismatch("A saved tuple", f"{len(example)} parts", plain)
    if not example:
        return tuple(_frozen(part) for part in plain)
    return tuple(
        from_plain(example[min(i, len(example) - 1)], part) for i, part in enumerate(plain)
    )


def _mismatch(what: str, wanted: str, plain: Any) -> ValueError:
    return ValueError(f"{what} must be or have {wanted}; got {plain!r:.120}.")


def _frozen(plain: Any) -> Any:
    return tuple(_frozen(part) for part in plain) if isinstance(plain, list) else plain
