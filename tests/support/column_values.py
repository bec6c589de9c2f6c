"""Schemas, values and what they have to become, for tests of typed columns.

``fields`` is a naive model: a strategy of a conversion with pairs of a JSON text and the value that its column must
have, made from the value and not by reading the text. ``mutations`` damages texts.
"""

import json
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any, NamedTuple

from hypothesis import strategies as st

from logstore.records.columns.schema import Column, ColumnSchema, Conversion, type_of

ODD_SCHEMA = """
    i bigint, d double, s string, b boolean, t timestamp, day date, ms epoch_ms, sec epoch_s, us epoch_us,
    m decimal(12,2), big decimal(38,0), st struct<x:bigint,l:array<struct<y:string,at:timestamp>>>,
    l array<array<bigint>>, texts array<string>, prices array<decimal(9,3)>, é string
"""


def schema_of(text: str) -> ColumnSchema:
    """Return a schema of a text like ``i bigint, user.city string``: names are paths, of which columns are the ends."""
    columns, depth, begin = [], 0, 0
    for at, character in enumerate(text + ","):
        depth += (character in "<(") - (character in ">)")
        if character == "," and not depth:
            path, conversion = text[begin:at].split(maxsplit=1)
            name = path.replace(".", "_")
            columns.append(Column(name, tuple(path.split(".")), conversion.strip(), type_of(conversion)))
            begin = at + 1
    return ColumnSchema(tuple(columns))


# ---- a naive model --------------------------------------------------------------------------------------------------


class Field(NamedTuple):
    conversion: str
    #: A strategy of JSON texts and what they become.
    values: st.SearchStrategy[tuple[str, Any]]


def _dumped(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, Any]]:
    return st.builds(lambda value, is_ascii: (json.dumps(value, ensure_ascii=is_ascii), value), values, st.booleans())


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_integers = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
_doubles = st.floats(allow_nan=False, allow_infinity=False)
_zones = st.one_of(st.none(), st.integers(-23 * 60 - 59, 23 * 60 + 59))


@st.composite
def _timestamps(draw: st.DrawFn) -> tuple[str, datetime]:
    local = draw(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)))  # noqa: DTZ001 - the zone is drawn
    minutes = draw(_zones)
    zone = UTC if minutes is None else timezone(timedelta(minutes=minutes))
    sign, size = ("-", -(minutes or 0)) if (minutes or 0) < 0 else ("+", minutes or 0)
    ends = ["", "Z", "z"] if minutes is None else [f"{sign}{size // 60:02}:{size % 60:02}"]
    begin = f"{local.year:04}-{local:%m-%d}{draw(st.sampled_from('Tt '))}{local:%H:%M:%S}"
    digits = f"{local.microsecond:06}" + draw(st.text("0123456789", max_size=5))
    if draw(st.booleans()):
        digits, local = "", local.replace(microsecond=0)
    fraction = f".{digits}" if digits else ""
    return json.dumps(begin + fraction + draw(st.sampled_from(ends))), local.replace(tzinfo=zone).astimezone(UTC)


def _days(day: date) -> tuple[str, date]:
    return f'"{day.year:04}-{day:%m-%d}"', day


def _epochs(unit: int) -> st.SearchStrategy[tuple[str, datetime]]:
    begin = datetime(1970, 1, 1, tzinfo=UTC)
    least, most = -62_135_596_800_000_000 // unit, 253_402_300_799_999_999 // unit
    return st.integers(least, most).map(lambda n: (str(n), begin + timedelta(microseconds=n * unit)))


@st.composite
def _decimals(draw: st.DrawFn, precision: int, scale: int) -> tuple[str, Decimal]:
    unscaled = draw(st.integers(1 - 10**precision, 10**precision - 1))
    value = Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))
    form = draw(st.sampled_from(["{:f}", '"{:f}"', "{:E}", '"{:f}"', "{:f}"]))
    text = form.format(value)
    # Python writes -0 for a negative zero only; a column has no negative zero.
    return text, value


def _scalars() -> st.SearchStrategy[Field]:
    made = [
        Field("boolean", _dumped(st.booleans())),
        Field("bigint", _dumped(_integers)),
        Field("double", st.one_of(_dumped(_doubles), _integers.map(lambda n: (str(n), float(n))))),
        Field("string", _dumped(_texts)),
        Field("timestamp", _timestamps()),
        Field("date", st.dates().map(_days)),
        Field("epoch_s", _epochs(1_000_000)),
        Field("epoch_ms", _epochs(1_000)),
        Field("epoch_us", _epochs(1)),
    ]
    digits = st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p)))
    decimals = digits.map(lambda d: Field(f"decimal({d[0]},{d[1]})", _decimals(*d)))
    return st.one_of(st.sampled_from(made), decimals)


_names = st.text(
    st.characters(codec="utf-8", exclude_characters=" ,;{}()\n\t=.:<>`", exclude_categories=["Cs", "Z", "Cc"]),
    min_size=1,
    max_size=6,
)


def _array_of(field: Field) -> Field:
    def build(parts: list[tuple[str, Any]]) -> tuple[str, list[Any]]:
        return f"[{', '.join(text for text, _ in parts)}]", [value for _, value in parts]

    return Field(f"array<{field.conversion}>", st.lists(st.one_of(_null, field.values), max_size=4).map(build))


_null = st.just(("null", None))


def object_of(fields: dict[str, Field]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """Return a strategy of objects: fields in any order, some missing, some null, and others that are not declared."""

    @st.composite
    def build(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
        row: dict[str, Any] = dict.fromkeys(fields)
        members = []
        for name in draw(st.permutations(list(fields))):
            if draw(st.integers(0, 5)) == 0:
                continue
            text, row[name] = draw(
                st.one_of(_null, fields[name].values) if draw(st.booleans()) else fields[name].values
            )
            members.append((json.dumps(name, ensure_ascii=draw(st.booleans())), text))
        if draw(st.booleans()):
            other = draw(_texts.filter(lambda text: text not in fields))
            text = draw(st.sampled_from(["1", '"x"', "[[1,{}],null]", '{"a":{"b":[]}}', "1e999", "true"]))
            members.insert(draw(st.integers(0, len(members))), (json.dumps(other), text))
        colon, comma = draw(st.sampled_from([(":", ","), (": ", ", "), (" :\t", "\n,\r ")]))
        return "{" + comma.join(f"{name}{colon}{text}" for name, text in members) + "}", row

    return build()


@st.composite
def _structs(draw: st.DrawFn, inner: st.SearchStrategy[Field]) -> Field:
    fields = draw(st.dictionaries(_names, inner, min_size=1, max_size=4))
    if len({name.lower() for name in fields}) < len(fields):
        fields = dict(list(fields.items())[:1])
    text = ",".join(f"{name}:{field.conversion}" for name, field in fields.items())
    return Field(f"struct<{text}>", object_of(fields))


fields: st.SearchStrategy[Field] = st.recursive(
    _scalars(), lambda inner: st.one_of(inner.map(_array_of), _structs(inner)), max_leaves=6
)


@st.composite
def schemas_with_values(draw: st.DrawFn) -> tuple[ColumnSchema, list[tuple[str, dict[str, Any]]]]:
    """Return a schema, and values with the row that each must become."""
    declared = draw(st.dictionaries(_names, fields, min_size=1, max_size=5))
    columns = tuple(
        Column(name, (name,), field.conversion, type_of(field.conversion)) for name, field in declared.items()
    )
    return ColumnSchema(columns), draw(st.lists(object_of(declared), min_size=1, max_size=6))


# ---- damaged values -------------------------------------------------------------------------------------------------

_ATOMS = [
    *(
        "null",
        "true",
        "false",
        "1",
        "-1",
        "0",
        "-0",
        "1.25",
        "-1.5e3",
        "1e400",
        "9" * 30,
        "-9223372036854775808",
        str(2**64),
        str(10 * 2**128),
    ),
    *('"x"', '"é"', r'"\u00e9\ud83d\ude00"', r'"\ud800"', r'"a\"b\\"', '""', "[]", "{}", "[null]", "[[1,null],null]"),
    *('{"x":1}', '{"x":null,"l":[{"y":"a"},null,{}]}', '{"l":null}', '{"x":1,"x":2}', '["a",null,"b"]', "[1.125]"),
    *('"2024-01-01T00:00:00Z"', '"2024-02-30T00:00:00Z"', '"1969-12-31T23:59:59.1234567+01:00"', '"2024-01-01"'),
    *('"9999-12-31T23:59:59-01:00"', "NaN", "-Infinity", '"12.5"', '".5"', "1700000000000", "99.999", '"NaN"'),
    *('{"l":[{"at":"2024-01-01 00:00:00"}]}', "0.1", "123456789012345678", "3.141592653589793", "2.5e-310"),
]
_FITTING = {
    "i": ["0", "-17", "9223372036854775807", "null"],
    "d": ["1.25", "-1.5e3", "3.141592653589793", "0.1", "123456789012345678", "2.5e-310", "-0.0", "7"],
    "s": ['"x"', '"é"', r'"\u00e9\ud83d\ude00"', r'"a\"b\\"', '""', '"NaN"'],
    "b": ["true", "false"],
    "t": ['"2024-01-01T00:00:00Z"', '"1969-12-31T23:59:59.1234567+01:00"', '"2013-05-06 07:08:09"'],
    "day": ['"2024-02-29"', '"0001-01-01"'],
    "ms": ["1700000000000", "-1"],
    "sec": ["1700000000", "0"],
    "us": ["1700000000000001"],
    "m": ["1.25", "100", '"12.5"', "-9999999999.99", "1e3", '".5"'],
    "big": ["9" * 38, "-1", "1e20"],
    "st": ['{"x":1}', '{"x":null,"l":[{"y":"a"},null,{}]}', '{"l":[{"at":"2024-01-01 00:00:00"}]}', "{}", '{"l":null}'],
    "l": ["[]", "[[1,null],null]", "[null]", "[[],[2,3]]"],
    "texts": ['["a",null,"b"]', '["\\u00e9"]'],
    "prices": ["[1.125]", "[]", "[null,99.9]"],
    "é": ['"x"'],
    "q": _ATOMS,
    "": _ATOMS,
    r"\u0069": ["1"],
}
_PIECES = [
    *(bytes([byte]) for byte in b'{}[]",:\\\n\x00\xff0-.eE'),
    b"null",
    b"}\n{",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\\u12",
]


def odd_values(random: Random, count: int) -> Iterator[bytes]:
    """Yield values for ``ODD_SCHEMA``: good ones, and some that are damaged in any way."""
    for _ in range(count):
        members = []
        for name in random.sample(list(_FITTING), random.randrange(8)):
            texts = _ATOMS if random.random() < 0.05 else _FITTING[name]
            members.append(f'"{name}":{random.choice(texts)}')
        value = f"{{{','.join(members)}}}".encode() if random.random() < 0.9 else random.choice(_ATOMS).encode()
        yield mutated(random, value) if random.random() < 0.3 else value


def mutated(random: Random, value: bytes) -> bytes:
    """Return a value with a few bytes removed, inserted or changed."""
    damaged = bytearray(value)
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(damaged) + 1)
        what = random.random()
        if what < 0.3:
            del damaged[at : at + random.randrange(1, 4)]
        elif what < 0.6:
            damaged[at:at] = random.choice(_PIECES)
        elif what < 0.9:
            damaged[at : at + 1] = struct.pack("B", random.randrange(256))
        else:
            del damaged[at:]
    return bytes(damaged)


# ---- any schema, with values that mostly fit it ---------------------------------------------------------------------

_SCALARS = ["boolean", "bigint", "double", "string", "timestamp", "date", "epoch_s", "epoch_ms", "epoch_us", "decimal"]


def random_conversion(random: Random, depth: int) -> str:
    """Return a conversion of at most ``depth`` levels."""
    word = random.choice([*_SCALARS, *["struct", "array"] * 3] if depth else _SCALARS)
    if word == "decimal":
        precision = random.randrange(1, 39)
        return f"decimal({precision},{random.randrange(precision + 1)})"
    if word == "struct":
        names = random.sample(["a", "b", "cc", "Dd", "é", "long_name", "x1", "x10"], random.randrange(1, 5))
        return f"struct<{','.join(f'{name}:{random_conversion(random, depth - 1)}' for name in names)}>"
    return f"array<{random_conversion(random, depth - 1)}>" if word == "array" else word


def random_schema(random: Random) -> ColumnSchema:
    columns = [f"c{n} {random_conversion(random, 4)}" for n in range(random.randrange(1, 6))]
    return schema_of(",".join([*columns, f"in.to {random_conversion(random, 2)}", "in.it.too bigint"]))


def random_value(random: Random, root: Conversion) -> bytes:
    """Return a value that fits the root of a tree, mostly."""
    text = _random_text(random, root) if random.random() < 0.98 else random.choice(_ATOMS)
    return text.encode("utf-8", "surrogatepass")


def _random_text(random: Random, conversion: Conversion) -> str:
    if random.random() < 0.02:
        return random.choice(_ATOMS)
    if random.random() < 0.08:
        return "null"
    if conversion.word == "struct":
        members = [
            f'"{name}":{_random_text(random, inner)}' for name, inner in conversion.fields if random.random() < 0.9
        ]
        if random.random() < 0.2:
            members.insert(random.randrange(len(members) + 1), f'"other":{random.choice(_ATOMS)}')
        if random.random() < 0.2:
            random.shuffle(members)
        return "{" + random.choice([",", ",", ", ", ",\n"]).join(members) + "}"
    if conversion.element is not None:
        size = random.randrange(4) if random.random() < 0.95 else random.randrange(40)
        return "[" + ",".join(_random_text(random, conversion.element) for _ in range(size)) + "]"
    return _random_scalar(random, conversion)


def _random_scalar(random: Random, conversion: Conversion) -> str:
    word = conversion.word
    if word == "boolean":
        return random.choice(["true", "false"])
    if word == "bigint":
        return str(random.getrandbits(random.randrange(1, 65)) * random.choice([1, -1]))
    if word == "double":
        return random.choice(
            [
                repr(random.gauss(0, 1)),
                repr(random.uniform(-1, 1) * 10 ** random.randrange(-300, 300)),
                f"{random.random():.3f}",
                str(random.getrandbits(70)),
                f"{random.getrandbits(64)}e{random.randrange(-340, 310)}",
                f"-0.{random.getrandbits(90)}E+{random.randrange(30)}",
            ]
        )
    if word == "decimal":
        digits = str(random.getrandbits(3 * random.randrange(1, conversion.precision + 1)))
        at = random.randrange(len(digits) + 1)
        text = f"{digits[:at] or '0'}.{digits[at:]}" if digits[at:] else digits
        text += random.choice(["", "", "", "0", "e1", "E-2"]) if random.random() < 0.2 else ""
        return random.choice([text, text, f"-{text}", f'"{text}"', f'"+{text}"', f'".{digits}"', f'"{digits}."'])
    if word == "string":
        return json.dumps(
            random.choice(["", "é", "a" * random.randrange(70), 'tab\t"', "\U0001f600", "\x00"]),
            ensure_ascii=random.random() < 0.5,
        )
    if word == "date":
        return f'"{random.randrange(1, 10_000):04}-{random.randrange(1, 13):02}-{random.randrange(1, 32):02}"'
    if word == "timestamp":
        second = datetime(1, 1, 1) + timedelta(microseconds=random.randrange(315_537_897_600_000_000))  # noqa: DTZ001
        separator, zone = random.choice("Tt "), random.choice(["", "Z", "z", "123Z", "+05:30", "-00:01"])
        return f'"{second.isoformat(separator)}{zone}"'
    return str(
        random.randrange(-100_000_000_000, 400_000_000_000)
        * {"epoch_s": 1, "epoch_ms": 1_000, "epoch_us": 1_000_000}[word]
    )
