"""Values of options, which are all text, read strictly. InvalidRequestError names the option and what it may be."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar

from logstore.errors import InvalidRequestError
from logstore.quantities import duration_ms

Word = TypeVar("Word", bound=str)
Parsed = TypeVar("Parsed")

_DIGITS = re.compile(r"[0-9]{1,19}")
_LONG_MAX = 2**63 - 1
#: The likeness of a misspelt name. Kafka's other names, such as session.timeout.ms, are less like the known ones.
_MISSPELT = 0.85


class OptionValues:
    """Options by their names, in whatever case. ``names`` are the known ones, as messages have them."""

    def __init__(self, options: Mapping[str, str], names: Iterable[str]) -> None:
        self._names = {name.lower(): name for name in names}
        self._values = {name.lower(): str(value).strip() for name, value in options.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def unknown(self) -> list[str]:
        """Options that are given and not known, in lower case."""
        return sorted(self._values.keys() - self._names.keys())

    def near(self, name: str) -> str | None:
        """The known name that an unknown one was meant to be, perhaps."""
        near = get_close_matches(name.lower(), self._names, n=1)
        return self._names[near[0]] if near else None

    def told(self, name: str, others: Iterable[str] = ()) -> str:
        """An option that has no effect, for the log: with the known one, or one of ``others``, that it misspells."""
        # Without the prefix that all have in common, which would make every name a near one.
        known = [each.removeprefix("kafka.") for each in (*self._names, *others) if each.startswith("kafka.")]
        near = get_close_matches(name.removeprefix("kafka."), known, n=1, cutoff=_MISSPELT)
        meant = f"kafka.{near[0]}" if near else name
        return name if meant == name else f"{name} (did you mean {meant}?)"

    def given(self, names: Sequence[str]) -> str:
        """The name by which an option of several ``names`` is given; the first without any. InvalidRequestError for
        two names with two values.
        """
        given = [name for name in names if name in self]
        if len({self.text(name) for name in given}) > 1:
            raise InvalidRequestError(f"options {' and '.join(given)} say different things: give one of them")
        return given[0] if given else names[0]

    def text(self, name: str) -> str:
        """The value, "" without one."""
        return self._values.get(name.lower(), "")

    def number(self, name: str, least: int) -> int | None:
        """A whole number from 0 or 1 on, up to a long's largest."""
        if name not in self:
            return None
        text = self.text(name)
        number = int(text) if _DIGITS.fullmatch(text) else -1
        if not least <= number <= _LONG_MAX:
            what = "must be positive" if least else "must not be negative"
            raise InvalidRequestError(f"{name} {what}: give a whole number from {least}, got '{text}'")
        return number

    def flag(self, name: str, *, default: bool) -> bool:
        return self.one_of(name, ("true", "false"), str(default).lower()) == "true"

    def one_of(self, name: str, words: tuple[Word, ...], default: Word) -> Word:
        if name not in self:
            return default
        for word in words:
            if self.text(name).lower() == word:
                return word
        raise InvalidRequestError(f"{name} is {' or '.join(words)}, got '{self.text(name)}'")

    def duration_ms(self, name: str) -> int | None:
        """A duration as Spark writes it: 15m, 15min, 90s, 500ms, or a number of ms."""
        if name not in self:
            return None
        text = self.text(name).lower().replace(" ", "")
        try:
            return duration_ms(f"{text}ms" if text.isdecimal() else text.replace("min", "m"))
        except ValueError:
            raise InvalidRequestError(
                f"{name} is a duration such as 15m, 90s or 500ms, got '{self.text(name)}'"
            ) from None

    def time_ms(self, name: str) -> int:
        text = self.text(name)
        if not _DIGITS.fullmatch(text) or int(text) > _LONG_MAX:
            raise InvalidRequestError(f"{name}: Expected a single long value (ms since 1970), got {text or 'nothing'}")
        return int(text)

    def parsed(self, name: str, read: Callable[[str], Parsed]) -> Parsed:
        """The value as ``read`` understands it; a ValueError of it is an InvalidRequestError with the option's name."""
        try:
            return read(self.text(name))
        except ValueError as error:
            raise InvalidRequestError(f"{name}: {error}") from None
