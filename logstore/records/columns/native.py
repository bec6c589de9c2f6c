"""The kernel in C (``json_columns.c``), called through ctypes, which lets other threads run meanwhile."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.native_library import library_of, load
from logstore.records.columns.field_tree import Fault, FieldNode
from logstore.records.columns.times import EPOCH_MICROS

SOURCE: Final = Path(__file__).with_name("json_columns.c")
LIBRARY: Final = library_of(SOURCE)
#: The code of a value that the kernel leaves to ``one_value``. 0 is one that fits or is null, and others are misfits.
UNSURE: Final = -1

_FAULTS: Final = 16
_WORDS: Final = (
    *(("struct",), ("array",), ("boolean",), ("bigint",), ("double",), ("decimal",), ("string",), ("timestamp",)),
    *(("date",), ("epoch_s", "epoch_ms", "epoch_us")),
)
_KINDS: Final = {word: kind for kind, words in enumerate(_WORDS) for word in words}
_WIDTHS: Final = dict.fromkeys(("bigint", "double", "timestamp", *EPOCH_MICROS), 8) | {"decimal": 16, "date": 4}
_WITH_OFFSETS: Final = frozenset({"string", "array"})
_ALIGNMENT: Final = 64
_DATA_BYTES_MAX: Final = 2**31 - 1
#: The first guesses of the bytes of a row in a column of strings, and of the elements of an array.
_STRING_BYTES: Final = 16
_ELEMENTS: Final = 2


class _Node(NamedTuple):
    """The fields of ``struct node``."""

    kind: int
    first: int
    children: int
    inner: int
    name: int
    name_length: int
    parameter: int
    precision: int
    width: int
    valid: int = 0
    data: int = 0
    offsets: int = 0
    data_size: int = 0
    following: int = -1
    leading: int = -1
    seen: int = 0


class _Space(NamedTuple):
    """The fields of ``struct space``."""

    first: int
    members: int
    variable: int
    length: int = 0
    capacity: int = 0
    kept: int = 0


class _Values(NamedTuple):
    """The fields of ``struct values``."""

    rows: int
    valid: int
    bit: int
    offsets: int
    data: int


class _Task(NamedTuple):
    """The fields of ``struct task``."""

    nodes: int
    spaces: int
    space_count: int
    members: int
    codes: int
    row: int = 0
    full: int = -1
    needed: int = 0
    objects: int = 0


_FOLLOWING, _LEADING, _DATA_SIZE = (_Node._fields.index(name) for name in ("following", "leading", "data_size"))
_ADDRESSES: Final = {name: _Node._fields.index(name) for name in ("valid", "data", "offsets")}
_LENGTH, _CAPACITY = (_Space._fields.index(name) for name in ("length", "capacity"))
_FULL, _NEEDED = (_Task._fields.index(name) for name in ("full", "needed"))


class Kernel:
    """The functions of the library."""

    def __init__(self, library: Path = LIBRARY) -> None:
        """Load the library. Raises the errors of ``native_library.load``."""
        functions = load(SOURCE, library)
        self.derive = functions.derive
        self.derive.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self.derive.restype = ctypes.c_int64


# ---- the layout of a tree -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Entry:
    """A node's field, the name in its struct, and the space that counts its elements; -1 for the root."""

    field: FieldNode
    name: bytes
    space: int
    type: pa.DataType
    children: range = range(0)
    #: The space of an array's elements.
    inner: int = -1


def _entries(root: FieldNode) -> tuple[list[_Entry], int]:
    """Return the nodes of a tree, level by level, and the number of spaces."""
    entries = [_Entry(root, b"", -1, root.conversion.type)]
    spaces = 1
    for entry in entries:
        first = len(entries)
        if entry.field.element is not None:
            entry.inner = spaces
            spaces += 1
            entries.append(_Entry(entry.field.element, b"", entry.inner, entry.type.value_type))
        else:
            named = sorted((len(name.encode()), name.encode(), name) for name in entry.field.fields)
            for _, name, text in named:
                field = entry.field.fields[text]
                entries.append(_Entry(field, name, max(entry.space, 0), field.conversion.type))
        entry.children = range(first, len(entries))
    return entries, spaces


class KernelConverter:
    """Converts chunks of values for one tree of fields."""

    def __init__(self, kernel: Kernel, root: FieldNode) -> None:
        """Lay out the tree. Raises ValueError if a name is escaped in JSON: the kernel compares names as they are."""
        self._kernel = kernel
        self.entries, spaces = _entries(root)
        if any(character in b'"\\' or character < 0x20 for entry in self.entries for character in entry.name):
            raise ValueError("a name of the schema has characters that JSON escapes")
        self._names = pa.py_buffer(b"".join(entry.name for entry in self.entries) or b"\0")
        self.nodes = np.array(self._laid_nodes(), np.int64)
        self.members: list[list[int]] = []
        for space in range(spaces):
            inside = [number for number, entry in enumerate(self.entries) if entry.space == space]
            self.members.append(sorted(inside, key=lambda number: self.entries[number].field.word not in _WITH_OFFSETS))
        self.numbers = np.array([number for inside in self.members for number in inside], np.int64)
        self.spaces = np.array(self._laid_spaces(), np.int64)

    def _laid_nodes(self) -> list[list[int]]:
        name = self._names.address
        nodes = []
        for entry in self.entries:
            field = entry.field
            node = _Node(
                kind=_KINDS[field.word],
                first=entry.children.start,
                children=len(entry.children),
                inner=entry.inner,
                name=name,
                name_length=len(entry.name),
                parameter=EPOCH_MICROS.get(field.word, field.conversion.scale),
                precision=field.conversion.precision,
                width=_WIDTHS.get(field.word, 0),
            )
            nodes.append(list(node))
            name += len(entry.name)
        # At first, fields are expected in the order in which they are declared.
        for number, entry in enumerate(self.entries):
            at = number, _LEADING
            for child in self.ordered_children(entry):
                nodes[at[0]][at[1]] = child
                at = child, _FOLLOWING
        return nodes

    def ordered_children(self, entry: _Entry) -> list[int]:
        """Return the numbers of the children in the order of the entry's type."""
        if entry.field.element is not None:
            return list(entry.children)
        numbers = {self.entries[child].name: child for child in entry.children}
        return [numbers[name.encode()] for name, _ in entry.field.conversion.fields]

    def _laid_spaces(self) -> list[_Space]:
        spaces, first = [], 0
        for inside in self.members:
            variable = sum(self.entries[number].field.word in _WITH_OFFSETS for number in inside)
            spaces.append(_Space(first, len(inside), variable))
            first += len(inside)
        return spaces

    def reason(self, code: int) -> str:
        """Return the reason of a misfit."""
        return self.entries[code // _FAULTS].field.reason(Fault(code % _FAULTS))

    def convert(self, values: pa.Array) -> tuple[pa.StructArray, np.ndarray]:
        """Return rows of the root's type for values, and the code of each row."""
        valid, offsets, data = values.buffers()
        packed = np.array(
            _Values(
                len(values),
                valid.address if values.null_count else 0,
                values.offset,
                offsets.address + 4 * values.offset,
                0 if data is None else data.address,
            ),
            np.int64,
        )
        codes = _zeros([4 * len(values)])[0]
        columns = _Columns(self, len(values))
        members = self.numbers.ctypes.data
        nodes, spaces = columns.nodes.ctypes.data, columns.spaces.ctypes.data
        task = np.array(_Task(nodes, spaces, len(self.spaces), members, codes.address), np.int64)
        while self._kernel.derive(packed.ctypes.data, task.ctypes.data) < len(values):
            columns.grow(int(task[_FULL]), int(task[_NEEDED]))
        return columns.rows(), np.frombuffer(codes, np.int32, len(values))


# ---- memory ---------------------------------------------------------------------------------------------------------


def _zeros(sizes: Sequence[int]) -> list[pa.Buffer]:
    """Return writable memory of zeros; a test puts memory with guarded ends here."""
    starts = np.cumsum([0, *(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)]).tolist()
    block = pa.py_buffer(np.zeros(starts[-1], np.uint8))
    return [block.slice(start, size) for start, size in zip(starts, sizes, strict=False)]


class _Columns:
    """The columns of a chunk while the kernel fills them."""

    def __init__(self, layout: KernelConverter, rows: int) -> None:
        self._layout, self._rows = layout, rows
        self.nodes, self.spaces = layout.nodes.copy(), layout.spaces.copy()
        self._buffers: list[dict[str, pa.Buffer]] = [{} for _ in layout.entries]
        for space in range(len(layout.members)):
            self._enlarge(space, rows if space == 0 else max(_ELEMENTS * rows, 1))

    def _enlarge(self, space: int, capacity: int) -> None:
        """Give the columns of a space room for as many elements."""
        self.spaces[space, _CAPACITY] = capacity
        needs = []
        for number in self._layout.members[space]:
            word = self._layout.entries[number].field.word
            bits = -(-capacity // 8)
            needs.append((number, "valid", bits))
            if word == "string" and "data" not in self._buffers[number]:
                needs.append((number, "data", _STRING_BYTES * capacity))
            elif word == "boolean" or word in _WIDTHS:
                needs.append((number, "data", bits if word == "boolean" else _WIDTHS[word] * capacity))
            if word in _WITH_OFFSETS:
                needs.append((number, "offsets", 4 * (capacity + 1)))
        for (number, name, _), buffer in zip(needs, _zeros([size for *_, size in needs]), strict=True):
            self._put(number, name, buffer)

    def _put(self, number: int, name: str, buffer: pa.Buffer) -> None:
        """Use a buffer in the place of a smaller one."""
        if old := self._buffers[number].get(name):
            ctypes.memmove(buffer.address, old.address, old.size)
        self._buffers[number][name] = buffer
        self.nodes[number, _ADDRESSES[name]] = buffer.address
        if name == "data":
            self.nodes[number, _DATA_SIZE] = buffer.size

    def grow(self, number: int, needed: int) -> None:
        """Enlarge the memory that is full: a node's strings, or the elements of an array, to at least ``needed``."""
        entry = self._layout.entries[number]
        if entry.field.word == "string":
            size = min(max(needed, 2 * self._buffers[number]["data"].size), _DATA_BYTES_MAX)
            self._put(number, "data", _zeros([size])[0])
        else:
            self._enlarge(entry.inner, max(needed, 2 * int(self.spaces[entry.inner, _CAPACITY])))

    def rows(self) -> pa.StructArray:
        children = [self._array(child) for child in self._layout.ordered_children(self._layout.entries[0])]
        return pa.StructArray.from_buffers(self._layout.entries[0].type, self._rows, [None], children=children)

    def _array(self, number: int) -> pa.Array:
        entry, buffers = self._layout.entries[number], self._buffers[number]
        kind = entry.type
        length = int(self.spaces[entry.space, _LENGTH])
        word, valid = entry.field.word, buffers["valid"]
        if word == "struct":
            children = [self._array(child) for child in self._layout.ordered_children(entry)]
            return pa.StructArray.from_buffers(kind, length, [valid], children=children)
        if word == "array":
            parts, children = [valid, buffers["offsets"]], [self._array(entry.children.start)]
            return pa.Array.from_buffers(kind, length, parts, children=children)
        if word == "string":
            used = int(np.frombuffer(buffers["offsets"], np.int32, 1, 4 * length)[0])
            return pa.Array.from_buffers(kind, length, [valid, buffers["offsets"], buffers["data"].slice(0, used)])
        return pa.Array.from_buffers(kind, length, [valid, buffers["data"]])
