"""Values of options, all of them text, read strictly. InvalidRequestError names the option and its allowed values."""

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
#: The similarity that makes a name a misspelling. Kafka's other names, such as session.timeout.ms, are less similar.
_MISSPELT = 0.85


class OptionValues:
    """Options by their case-insensitive names. ``names`` are the known ones, spelt as in messages."""

    def __init__(self, options: Mapping[str, str], names: Iterable[str]) -> None:
        self._names = {name.lower(): name for name in names}
        self._values = {name.lower(): str(value).strip() for name, value in options.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def unknown(self) -> list[str]:
        """Return the given options that are not known, in lower case."""
        return sorted(self._values.keys() - self._names.keys())

    def near(self, name: str) -> str | None:
        """Return the known name that an unknown one may be a misspelling of."""
        near = get_close_matches(name.lower(), self._names, n=1)
        return self._names[near[0]] if near else None

    def shown(self, name: str, others: Iterable[str] = ()) -> str:
        """Return the log text for an option without effect. It has the name that the option seems to misspell."""
        # The prefix is left out because all names share it, which would make every name a near one.
        known = [each.removeprefix("kafka.") for each in (*self._names, *others) if each.startswith("kafka.")]
        near = get_close_matches(name.removeprefix("kafka."), known, n=1, cutoff=_MISSPELT)
        meant = f"kafka.{near[0]}" if near else name
        return name if meant == name else f"{name} (did you mean {meant}?)"

    def given(self, names: Sequence[str]) -> str:
        """Return the name by which an option with several ``names`` is given, or the first if none is.

        Raises InvalidRequestError for two names with two values.
        """
        given = [name for name in names if name in self]
        if len({self.text(name) for name in given}) > 1:
            raise InvalidRequestError(f"options {' and '.join(given)} say different things: give one of them")
        return given[0] if given else names[0]

    def text(self, name: str) -> str:
        """Return the value, "" if the option is not given."""
        return self._values.get(name.lower(), "")

    def number(self, name: str, least: int) -> int | None:
        """Return a whole number from ``least`` (0 or 1) on, up to a long's largest; None if the option is not given."""
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
        """Return a duration in Spark's notation: 15m, 15min, 90s, 500ms, or a number of ms."""
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
        """Return the value as ``read`` parses it. Its ValueError becomes an InvalidRequestError naming the option."""
        try:
            return read(self.text(name))
        except ValueError as error:
            raise InvalidRequestError(f"{name}: {error}") from None
