"""The distributions that this program is installed from.

Ours is ``delta-logstore``. PyPI's ``logstore`` is another project's with the same import name, and our releases before
0.7.0 had that name also. If both are installed in one place, the later one has overwritten files of the other, and pip
removes files of both with either.

This imports nothing of ours, because it runs even if ``logstore/__init__.py`` is another project's.
"""

import functools
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

OURS = "delta-logstore"
PACKAGE = "logstore"
#: The directory of the program's files.
_RUNS_FROM = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Installation:
    """``own`` describes what is installed, ``warning`` what is wrong with it (None: nothing), ``remedy`` the fix."""

    own: str
    warning: str | None
    remedy: str = (
        f"pip uninstall --yes {PACKAGE} {OURS}, and the installation of the wheel of {OURS} after it "
        "(docs/install.md#the-name)"
    )


def installation() -> Installation:
    """Return what this program was installed from, and what is installed beside it or in its place."""
    ours = _installed(OURS)
    names = {_normalized(name) for name in packages_distributions().get(PACKAGE, ())} | {PACKAGE}
    others = [found for name in sorted(names - {OURS}) if (found := _installed(name)) is not None]
    return Installation(
        f"{OURS} {ours.version}" if ours is not None else f"no distribution, from the files in {_RUNS_FROM}",
        "; ".join(_in_words(other, beside=ours is not None) for other in others) or None,
    )


@functools.cache
def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _in_words(other: Distribution, *, beside: bool) -> str:
    whose = "an earlier release of this one" if _is_ours(other) else "another project's"
    where = f"installed beside {OURS}" if beside else f"installed in place of {OURS}"
    return f"the distribution {other.metadata['Name']} {other.version}, {whose}, is {where}"


def _is_ours(other: Distribution) -> bool:
    """Return True for earlier releases, which had the same command."""
    return any(script.group == "console_scripts" and script.name == PACKAGE for script in other.entry_points)


def _normalized(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
