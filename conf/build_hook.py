"""Compiles the C sources when a wheel is built or the checkout is installed as editable: a library beside each.

Hatchling calls it: pyproject.toml, ``[tool.hatch.build.targets.wheel.hooks.custom]``. Without a compiler, or with one
that fails, the package has no libraries and does the same with msgspec, numpy and Arrow: it prints a warning, and
nothing else differs.
"""

import os
import shlex
import shutil
import subprocess
import sysconfig
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SOURCES = (
    "logstore/kafka_batches/plain_pages.c",
    "logstore/kafka_batches/record_codec.c",
    "logstore/records/json_scan.c",
)
_OPTIONS = ("-std=c11", "-O3", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden")
_COMPILE_S = 120


class CompileHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        sources = [Path(self.root, source) for source in _SOURCES]
        # ``logstore.native_library`` loads it under this name.
        libraries = [source.with_name(f"_{source.stem}.so") for source in sources]
        for library in libraries:
            library.unlink(missing_ok=True)
        try:
            for source, library in zip(sources, libraries, strict=True):
                compile_library(source, library)
        except (OSError, subprocess.SubprocessError) as error:
            self.app.display_warning(f"JSON and Kafka's record batches will go a slower way, without C: {error}")
            for library in libraries:
                library.unlink(missing_ok=True)
            return
        # The library depends on the platform, but not on the version of Python.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
        build_data["artifacts"] += [f"/{library.relative_to(self.root)}" for library in libraries]


def compiler() -> list[str] | None:
    """Return the command of the C compiler: ``CC``, or the first that is installed; None without one."""
    if named := shlex.split(os.environ.get("CC", "")):
        return named
    return next(([name] for name in ("cc", "gcc", "clang") if shutil.which(name)), None)


def compile_library(source: Path, library: Path, options: Sequence[str] = ()) -> None:
    """Compile ``library``. Raises OSError without a compiler, subprocess.SubprocessError if it fails."""
    command = compiler()
    if command is None:
        raise FileNotFoundError("there is no C compiler (sudo apt-get install gcc libc6-dev)")
    # It is moved into place afterwards: a running process keeps the library that it has loaded.
    made = library.with_name(f"{library.name}.{os.getpid()}")
    # The library contains the checksum of its source.
    crc = zlib.crc32(source.read_bytes())
    try:
        subprocess.run(  # noqa: S603
            [*command, *_OPTIONS, *options, f"-DSOURCE_CRC={crc}LL", "-o", made, source],
            capture_output=True,
            check=True,
            timeout=_COMPILE_S,
        )
        made.replace(library)
    finally:
        made.unlink(missing_ok=True)
