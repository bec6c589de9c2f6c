"""The numbers of examples and of places of damage in ``make test``, ``make test-all`` and ``make torture``."""

from typing import Final

from hypothesis import settings

from tests.support.torture import TORTURE

#: The default number of examples of a test, by profile.
PROFILES: Final = {"few": 20, "many": 100, "torture": 1_000}
DEFAULT: Final = "torture" if TORTURE else "few"


def examples(many: int) -> int:
    """Return ``many`` in ``make test-all``; elsewhere a proportional number, and at least 5."""
    return max(5, many * settings().max_examples // PROFILES["many"])


def stride(step: int) -> int:
    """Return the distance between the tried places: ``step`` in ``make test-all``, more in ``make test``."""
    if TORTURE:
        return 1
    return step if settings().max_examples >= PROFILES["many"] else 6 * step
