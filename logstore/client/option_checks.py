"""Checks of a client's options. InvalidConfigError names an unknown option, or a wrong value and the allowed ones."""

from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from logstore.errors import InvalidConfigError


def refuse_unknown(client: str, options: Any, unknown: Iterable[str]) -> None:
    """Raise InvalidConfigError for ``unknown`` options of ``client``; suggest the nearest field of ``options``."""
    for name in unknown:
        names = ["bootstrap", *(field.name for field in fields(options))]
        near = get_close_matches(name.replace(".", "_"), names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(names)}"
        raise InvalidConfigError(f"A {client} has no option {name}: {hint}")


def check_one_of(name: str, value: object, allowed: tuple[object, ...], further: str = "") -> None:
    # True equals 1 in Python, but is not a value for `acks`.
    if not any(value == one and type(value) is type(one) for one in allowed):
        raise InvalidConfigError(f"{name} = {value!r}: give {', '.join(map(repr, allowed))}{further}")


def check_callable(name: str, value: Any, what: str) -> None:
    """Raise InvalidConfigError unless ``value`` is None or a function; ``what`` describes the function."""
    if value is not None and not callable(value):
        raise InvalidConfigError(f"{name} is not callable: give a function {what}")


def check_number(name: str, value: Any, least: int, most: int | None = None, *, whole: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise InvalidConfigError(f"{name} = {value!r}: give a {'whole ' if whole else ''}number from {least}")
    if not least <= value or (most is not None and value > most):
        raise InvalidConfigError(f"{name} = {value!r}: give a number from {least}{f' to {most}' if most else ''}")
