"""Damage to the files of a data directory, as a disk or a person causes it."""

import random
import shutil
from pathlib import Path

#: Files without records, whose loss or damage a start refuses or repairs by itself.
_NO_RECORDS = {"lock", "secret", "endpoint.json", "broker.json", "cluster.json", "log_directory.json"}


def flip_bit(path: Path, at: int, bit: int = 0) -> None:
    """Flip a bit; ``at`` counts from the end if it is negative."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


def cut(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])


def zero(path: Path, start: int, length: int) -> None:
    content = bytearray(path.read_bytes())
    end = min(start + length, len(content))
    content[start:end] = bytes(end - start)
    path.write_bytes(content)


def swap(one: Path, other: Path) -> None:
    aside = one.with_name(f"{one.name}.aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def record_files(data: Path) -> list[Path]:
    """Return the files of the journal and of tables, by name."""
    return sorted(path for path in data.rglob("*") if path.is_file() and path.name not in _NO_RECORDS)


def damage_at_random(data: Path, rng: random.Random) -> str:
    """Damage one file, or two of a kind, and return a description."""
    files = record_files(data)
    path = rng.choice(files)
    size = path.stat().st_size
    alike = [other for other in files if other.suffix == path.suffix and other != path]
    kind = rng.choice(["flip", "flip", "cut", "zero", "remove", "copy", "swap"])
    if kind in ("copy", "swap") and not alike:
        kind = "remove"
    match kind:
        case "flip":
            at, bit = rng.randrange(size), rng.randrange(8)
            flip_bit(path, at, bit)
            what = f"bit {bit} of byte {at}"
        case "cut":
            length = rng.randrange(size)
            cut(path, length)
            what = f"to {length} bytes"
        case "zero":
            start, length = rng.randrange(size), rng.choice([1, 16, 512, 4096])
            zero(path, start, length)
            what = f"{length} bytes at {start}"
        case "remove":
            path.unlink()
            what = ""
        case _:
            other = rng.choice(alike)
            what = f"with {other.relative_to(data)}"
            if kind == "copy":
                shutil.copyfile(other, path)
            else:
                swap(path, other)
    return f"{kind} {path.relative_to(data)} {what}"
