"""How many examples hypothesis tries: profiles for ``make test``, ``make test-all`` and ``make torture``."""

from typing import Final

from hypothesis import settings

from tests.support.torture import TORTURE

#: By name, the examples of a test that asks for no number.
PROFILES: Final = {"few": 30, "many": 100, "torture": 1_000}
DEFAULT: Final = "torture" if TORTURE else "few"


def examples(many: int) -> int:
    """``many`` in ``make test-all``; in proportion, and some at least, elsewhere."""
    return max(5, many * settings().max_examples // PROFILES["many"])
