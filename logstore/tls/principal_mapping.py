"""``ssl.principal.mapping.rules``: names of principals from subjects of certificates, by Kafka's rules (KIP-371).

Rules are separated by commas: ``RULE:pattern/replacement/`` with ``L`` or ``U`` behind it for lower or upper case, or
``DEFAULT``, the whole subject. The first rule whose pattern matches the whole subject counts. Patterns are regular
expressions, ``$1`` in a replacement is a group, and a backslash takes the meaning of a slash away.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

_PART = r"(?:\\.|[^\\/])*"
_RULE: Final = re.compile(rf"\s*(?:(DEFAULT)|RULE:({_PART})/({_PART})/([LU]?))\s*(?:[,\n]|$)")
_GROUP: Final = re.compile(r"\$(\d)")
_CASES: Final[dict[str, Callable[[str], str]]] = {"": str, "L": str.lower, "U": str.upper}


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule; ``pattern`` is None in ``DEFAULT``."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def name_of(self, subject: str) -> str | None:
        if self.pattern is None:
            return subject
        found = self.pattern.fullmatch(subject)
        if found is None:
            return None

        def group(reference: re.Match[str]) -> str:
            number = int(reference[1])
            # As in Kafka, a reference to a group that does not exist is text.
            return reference[0] if number > found.re.groups else found[number] or ""

        return _CASES[self.case](_GROUP.sub(group, self.replacement))


@dataclass(frozen=True, slots=True)
class PrincipalMapping:
    rules: tuple[_Rule, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError naming the part that is no rule."""
        rules, at = [], 0
        while at < len(text.rstrip()):
            found = _RULE.match(text, at)
            if found is None:
                raise ValueError(f"it takes DEFAULT and RULE:pattern/replacement/, not {text[at:].strip()!r}")
            rules.append(_rule(found))
            at = found.end()
        return cls(tuple(rules) or (_Rule(),))

    def name_of(self, subject: str) -> str | None:
        """Return the name of the principal with a certificate of ``subject``; None if no rule is for it."""
        return next((name for rule in self.rules if (name := rule.name_of(subject)) is not None), None)


def _rule(found: re.Match[str]) -> _Rule:
    default, pattern, replacement, case = found.groups()
    if default:
        return _Rule()
    try:
        return _Rule(re.compile(pattern.replace(r"\/", "/")), replacement.replace(r"\/", "/"), case)
    except re.error as error:
        raise ValueError(f"the pattern {pattern!r} is no regular expression: {error}") from None
