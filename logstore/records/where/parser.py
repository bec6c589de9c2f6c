"""Reads expressions: ``$.user == "ada" and not (key < "m" or timestamp >= "2026-11-21")``.

    expression = conjunction {"or" conjunction}
    conjunction = negation {"and" negation}
    negation = "not" negation | "(" expression ")" | comparison
    comparison = ("key" | "timestamp" | path) ("==" | "!=" | "<" | "<=" | ">" | ">=") literal
    path = "$" {"." name | "[" index "]" | "[" string "]"}
    literal = string | number | "true" | "false" | "null" | bytes

A string is a JSON string, in double or single quotes. Bytes are compared with a key, and are written in hexadecimal
digits: ``x'00ff'``.
"""

import json
import re
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Final, NamedTuple

from logstore.errors import InvalidWhereError
from logstore.limits import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN
from logstore.quantities import datetime_ms
from logstore.records.where.expression import And, Comparison, Key, Literal, Node, Not, Operator, Or, Path, Timestamp

#: The longest expression, in characters, and the largest depth of its parentheses and ``not``.
LENGTH_MAX: Final = 65_536
DEPTH_MAX: Final = 50
#: The largest number of comparisons. One response searches a bounded number of bytes, and each comparison adds to the
#: work for each byte.
COMPARISONS_MAX: Final = 100

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
    |(?P<bytes>[xX](?:'[^']*'|"[^"]*"))
    |(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.]))
    |(?P<path>\$(?:\.[\w-]+|\[\s*(?:0|[1-9][0-9]*|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\s*\])*)
    |(?P<operator>==|!=|<=|>=|<(?!>)|>)
    |(?P<parenthesis>[()])
    |(?P<word>[A-Za-z_]\w*)
    """,
    re.VERBOSE | re.DOTALL,
)
_STEP = re.compile(
    r"""
    \.(?P<name>[\w-]+)
    |\[\s*(?:(?P<index>0|[1-9][0-9]*)|(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'))
    """,
    re.VERBOSE | re.DOTALL,
)
_WORDS: Final = {"true": True, "false": False, "null": None}
_LITERALS: Final = "a text in quotes, a number, true, false or null"
_INSTEAD: Final = {"=": "==", "<>": "!=", "&": "and", "|": "or", "!": "not"}
_INDEX_DIGITS_MAX: Final = 9


class _Token(NamedTuple):
    """A token of an expression. ``at`` counts characters from 0; the end has no text."""

    kind: str
    text: str
    at: int


def parse_where(text: str) -> Node:
    """Return the expression in ``text``.

    Raises InvalidWhereError, which names the position of the first wrong character, counted from 1.
    """
    if len(text) > LENGTH_MAX:
        raise InvalidWhereError(f"The expression has {len(text)} characters: at most {LENGTH_MAX} are allowed")
    parser = _Parser(text)
    node = parser.expression(0)
    parser.require_end()
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._next = next(self._tokens)
        self._comparisons = 0

    def expression(self, depth: int) -> Node:
        parts = [self._conjunction(depth)]
        while self._takes_word("or"):
            parts.append(self._conjunction(depth))
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def require_end(self) -> None:
        if self._next.kind != "end":
            raise self._unexpected("and, or, or the end")

    def _conjunction(self, depth: int) -> Node:
        parts = [self._negation(depth)]
        while self._takes_word("and"):
            parts.append(self._negation(depth))
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _negation(self, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise _wrong(self._next.at, f"parentheses and not nest deeper than {DEPTH_MAX}")
        if self._takes_word("not"):
            return Not(self._negation(depth + 1))
        if self._next.text == "(":
            self._take()
            node = self.expression(depth + 1)
            if self._next.text != ")":
                raise self._unexpected("and, or, or )")
            self._take()
            return node
        return self._comparison()

    def _comparison(self) -> Node:
        begin = self._next.at
        operand = self._operand()
        self._comparisons += 1
        if self._comparisons > COMPARISONS_MAX:
            raise _wrong(begin, f"an expression has at most {COMPARISONS_MAX} comparisons: ask several times")
        if self._next.kind != "operator":
            raise self._unexpected("one of == != < <= > >=")
        operator = Operator(self._take().text)
        at = self._next.at
        literal = self._literal()
        match operand:
            case Timestamp():
                literal = _time(literal, at)
            case Path() if isinstance(literal, bytes):
                raise _wrong(
                    at, "bytes are compared with key alone: a field of JSON is a text, a number, true, false or null"
                )
        if operator.is_order and (literal is None or isinstance(literal, bool)):
            raise _wrong(at, f"{operator} compares numbers and texts: {json.dumps(literal)} is only == or !=")
        return Comparison(operand, operator, literal)

    def _operand(self) -> Key | Timestamp | Path:
        token = self._next
        if token.kind == "path":
            self._take()
            return Path(tuple(_steps(token)))
        if token.kind == "word" and token.text in ("key", "timestamp"):
            self._take()
            return Key() if token.text == "key" else Timestamp()
        raise self._unexpected("key, timestamp, a field as $.user, not or (")

    def _literal(self) -> Literal:
        token = self._next
        match token.kind:
            case "string":
                value: Literal = _string(token.text, token.at)
            case "number":
                value = _number(token)
            case "bytes":
                value = _bytes(token)
            case "word" if token.text in _WORDS:
                value = _WORDS[token.text]
            case _:
                raise self._unexpected(_LITERALS)
        self._take()
        return value

    def _takes_word(self, word: str) -> bool:
        if self._next.kind != "word" or self._next.text.lower() != word:
            return False
        self._take()
        return True

    def _take(self) -> _Token:
        taken = self._next
        self._next = next(self._tokens)
        return taken

    def _unexpected(self, expected: str) -> InvalidWhereError:
        token = self._next
        found = "the end" if token.kind == "end" else repr(token.text)
        return _wrong(token.at, f"expected {expected}, found {found}")


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _not_understood(text, at)
        kind = found.lastgroup or ""
        if kind == "path" and text[found.end() : found.end() + 1] in (".", "["):
            raise _wrong(found.end(), 'a field goes on with .name, [0] or ["name"]')
        if kind != "space":
            yield _Token(kind, found[0], at)
        at = found.end()
    while True:
        yield _Token("end", "", len(text))


def _not_understood(text: str, at: int) -> InvalidWhereError:
    if text[at] in "\"'":
        return _wrong(at, "the text that begins here has no closing quote")
    instead = _INSTEAD.get(text[at : at + 2]) or _INSTEAD.get(text[at])
    return _wrong(at, f"{text[at]!r} is not understood" + (f": use {instead}" if instead else ""))


def _steps(token: _Token) -> Iterator[str | int]:
    for found in _STEP.finditer(token.text, 1):
        if found["name"] is not None:
            yield found["name"]
        elif found["index"] is not None:
            if len(found["index"]) > _INDEX_DIGITS_MAX:
                raise _wrong(token.at + found.start(), "no array is that long")
            yield int(found["index"])
        else:
            yield _string(found["string"], token.at + found.start("string"))


def _string(text: str, at: int) -> str:
    if text.startswith("'"):
        text = '"' + re.sub(r'\\.|"', lambda found: _IN_DOUBLE_QUOTES.get(found[0], found[0]), text[1:-1]) + '"'
    try:
        value: str = json.loads(text, strict=False)
    except ValueError as error:
        raise _wrong(at, f"the text is not a JSON string: {getattr(error, 'msg', error)}") from None
    return value


_IN_DOUBLE_QUOTES: Final = {"\\'": "'", '"': '\\"'}


def _number(token: _Token) -> int | Decimal:
    try:
        number = Decimal(token.text)
    except InvalidOperation:
        raise _wrong(token.at, "the number is out of range") from None
    return int(token.text) if token.text.lstrip("-").isdigit() and len(token.text) < 4000 else number


def _bytes(token: _Token) -> bytes:
    digits = token.text[2:-1]
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise _wrong(token.at, f"{digits!r} is not pairs of hexadecimal digits") from None


def _time(literal: Literal, at: int) -> int:
    match literal:
        case bool() | None | Decimal() | bytes():
            pass
        case int() if TIMESTAMP_MS_MIN <= literal <= TIMESTAMP_MS_MAX:
            return literal
        case str():
            try:
                moment = datetime.fromisoformat(literal)
                if not moment.microsecond % 1000:
                    return datetime_ms(moment)
            except ValueError:
                pass
    raise _wrong(at, 'a timestamp is compared with whole milliseconds since 1970 or a time as "2026-11-21T08:00:00Z"')


def _wrong(at: int, message: str) -> InvalidWhereError:
    return InvalidWhereError(f"Position {at + 1} of the expression: {message}", position=at + 1)
