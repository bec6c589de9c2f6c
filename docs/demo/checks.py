"""The demo's results, beside the expected ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Contents:
    """A reader's offsets: the range of each partition, and ``dense``, which is true if none is missing."""

    offsets: Mapping[int, range]
    dense: bool

    @property
    def total(self) -> int:
        return sum(map(len, self.offsets.values()))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the offsets of parts that were read one after the other: dense if each part is dense and begins where
        the one before it ends.
        """
        offsets: dict[int, range] = {}
        dense = all(part.dense for part in parts)
        for partition, found in (item for part in parts for item in part.offsets.items()):
            before = offsets.get(partition, range(found.start, found.start))
            dense &= before.stop == found.start
            offsets[partition] = range(before.start, before.stop + len(found))
        return cls(offsets, dense)


@dataclass(slots=True)
class Checks:
    """Counts that have to agree, and statements that have to hold, in the order in which they were found."""

    rows: list[tuple[str, str, bool]] = field(default_factory=list)

    def count(self, what: str, found: int, expected: int) -> None:
        self.rows.append((what, f"{found:,}", found == expected))

    def contents(self, what: str, found: Contents, expected: Mapping[int, range]) -> None:
        """Compare each partition, not only the sum."""
        self.rows.append((what, f"{found.total:,}", found.offsets == expected and found.dense))

    def holds(self, what: str, *, held: bool) -> None:
        self.rows.append((what, "", held))

    @property
    def agree(self) -> bool:
        return all(held for _, _, held in self.rows)

    def table(self) -> Table:
        table = Table(title="Does it agree everywhere?", title_justify="left")
        table.add_column("what")
        table.add_column("records", justify="right")
        table.add_column("agrees")
        for what, found, held in self.rows:
            table.add_row(what, found, "[green]yes[/]" if held else "[bold red]NO[/]")
        return table
