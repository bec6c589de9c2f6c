"""A history of produce requests, and the check that a log agrees with it (invariants A1 to A5, B1, B2, C1).

Values are unique. The outcome of a request is ``ok`` (acknowledged, with its place), ``fail`` (certainly not stored) or
``info`` (unknown: a cut connection, a timeout, a 5xx).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal


@dataclass(slots=True)
class Request:
    producer: int
    sequence: int
    partition: int
    values: list[str]
    outcome: Literal["ok", "fail", "info"] = "info"
    base_offset: int | None = None


@dataclass(slots=True)
class History:
    requests: list[Request] = field(default_factory=list)

    @property
    def acknowledged_records(self) -> int:
        return sum(len(r.values) for r in self.requests if r.outcome == "ok")

    def check(self, final: dict[int, list[tuple[int, str]]]) -> None:
        """Compare with ``final``: all (offset, value) by partition, read after all faults. Raises AssertionError."""
        place = {}
        for partition, rows in final.items():
            assert [o for o, _ in rows] == list(range(len(rows))), f"offsets of partition {partition} are not dense"
            for offset, value in rows:
                assert value not in place, f"{value} is stored twice: {place[value]} and {(partition, offset)}"
                place[value] = (partition, offset)
        sent = {value: request for request in self.requests for value in request.values}
        for value, (partition, _) in place.items():
            assert value in sent, f"{value} was never sent"
            assert sent[value].partition == partition, f"{value} is in partition {partition}"
            assert sent[value].outcome != "fail", f"{value} was refused, but is stored"
        for request in self.requests:
            self._check_request(request, place)
        self._check_order(place)

    def _check_request(self, request: Request, place: dict[str, tuple[int, int]]) -> None:
        found = [place.get(value) for value in request.values]
        if request.outcome == "ok":
            assert request.base_offset is not None
            expected = [(request.partition, request.base_offset + i) for i in range(len(request.values))]
            assert found == expected, f"acknowledged {request} is at {found}"
        elif any(found):
            assert all(found), f"half of {request} is stored: {found}"
            offsets = [at[1] for at in found if at]
            assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), f"{request} is scattered"

    def _check_order(self, place: dict[str, tuple[int, int]]) -> None:
        last: dict[tuple[int, int], int] = {}
        for request in sorted(self.requests, key=lambda r: (r.producer, r.sequence)):
            at = place.get(request.values[0])
            if at:
                key = request.producer, request.partition
                assert last.get(key, -1) < at[1], f"{request} is before an earlier request of its producer"
                last[key] = at[1]


def rows_by_partition(rows: Iterable[tuple[int, int, str]]) -> dict[int, list[tuple[int, str]]]:
    """Sort (partition, offset, value) in any order into (offset, value) by partition."""
    result: dict[int, list[tuple[int, str]]] = {}
    for partition, offset, value in sorted(rows):
        result.setdefault(partition, []).append((offset, value))
    return result
