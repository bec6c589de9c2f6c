"""A process like an installation of ``logstore`` with some of its extras, or none: other packages cannot be imported.

A test in a separate process calls ``hide_all_but`` before it imports anything from this repository.
"""

import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from types import ModuleType

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def hide_all_but(*extras: str) -> None:
    """Allow only imports from the standard library, our packages, and the packages of these extras from now on."""
    installed = distributions(*extras)
    hidden = {
        module
        for module, names in packages_distributions().items()
        if not installed & set(map(canonicalize_name, names)) and module not in sys.stdlib_module_names
    }
    hidden -= {"logstore", "ingest_api", "consumer_offsets", "compaction_jobs"}

    class Finder(PathFinder):
        """Finds installed modules, except hidden ones."""

        @classmethod
        def find_spec(
            cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
        ) -> ModuleSpec | None:
            return None if fullname in hidden else super().find_spec(fullname, path, target)

    sys.meta_path[:] = [Finder if finder is PathFinder else finder for finder in sys.meta_path]


def distributions(*extras: str) -> set[str]:
    """Return the distributions that pip would install: our dependencies, those of the extras, and all their
    dependencies.
    """
    found: set[str] = set()
    waiting = list(_of_ours(*extras))
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found:
            continue
        try:
            needs = distribution(name).requires or []
        except PackageNotFoundError:
            continue  # for another platform
        found.add(name)
        for extra in ("", *requirement.extras):
            waiting += [
                each for each in map(Requirement, needs) if not each.marker or each.marker.evaluate({"extra": extra})
            ]
    return found


def _of_ours(*extras: str) -> Iterator[Requirement]:
    """Yield the requirements in pyproject.toml, because the installed metadata may be older."""
    for text in (*PROJECT["dependencies"], *(text for e in extras for text in PROJECT["optional-dependencies"][e])):
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:
            yield from _of_ours(*requirement.extras)
        else:
            yield requirement
