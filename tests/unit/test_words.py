"""Holds the text of the code to plain English (docs/CONTRIBUTING.md, How it reads).

A lint cannot see whether a sentence is clear. It can see forms that readers had to read twice: function docstrings that
do not begin with a verb, comments that hang on a name, and a few words used in an unusual sense.
"""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

#: Folders and files that read plainly. One that is rewritten is added here, and is never removed.
PLAIN = (
    "airflow_dags",
    "benchmarks",
    "compaction_jobs",
    "conf",
    "consumer_offsets",
    "ingest_api",
    "logstore",
    "tests/api",
    "tests/cli",
    "tests/unit",
)

#: A function's docstring begins with a verb, so with none of these words.
_NO_VERBS = frozenset(
    """
    a after all also among an and another any around as at because before behind below beside besides between both but
    by during each either else every few first for from has have he her here his how if in inside into is it its last
    less like many more most much neither never no none not nothing of off on once one only or other others out over
    past same several she since so some something still such than that the their them then there these they this those
    three to too two under unless until up upon was were what whatever when where whether which while who whoever whose
    why with within without yes
    """.split()  # noqa: SIM905 - a list would be eighty lines
)
#: A comment, or the docstring of a property, may be a noun with its meaning. It does not begin like this.
_FRAGMENTS = re.compile(r"(Of|Also|Until|Whether|Those|What|Whoever|Behind|Beside|None of|Not one|As many)\b")
#: Each expression with a better one.
_WORDS = {
    re.compile(r"\banew\b"): "again, or new",
    re.compile(r", too\b(?=[.;:)]|$)"): "also, before the verb",
    re.compile(r"\b(is|are) none of\b"): "is not a ..., or is not in ...",
    re.compile(r"\b[Ss]o many\b"): "this many, or the number",
    re.compile(r"\b([Tt]ell|[Tt]ells|[Tt]old|[Tt]elling)\b(?! apart)"): "report, return, notify, or say",
    re.compile(r"\bit is all the same\b"): "it does not matter",
}


_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Text(NamedTuple):
    line: int
    #: ``function``, ``noun`` (a module, a class, a property), or ``comment``.
    kind: str
    text: str


def texts(source: str) -> Iterator[Text]:
    """Yield the docstrings and comments of a Python file; adjacent lines of comment are one text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and (docstring := ast.get_docstring(node)) is not None:
            yield Text(getattr(node, "lineno", 1), _kind(node), docstring)
    block: list[str] = []
    started = last = 0
    for token in tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__):
        if token.type != tokenize.COMMENT or _is_for_tools(token.string):
            continue
        row, own_line = token.start[0], token.line.lstrip().startswith("#")
        if block and not (own_line and row == last + 1):
            yield Text(started, "comment", " ".join(block))
            block = []
        if not block:
            started = row
        block.append(token.string.lstrip("#: ").strip())
        last = row
    if block:
        yield Text(started, "comment", " ".join(block))


def _kind(node: ast.AST) -> str:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return "noun"
    decorators = {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}
    return "noun" if decorators & {"property", "cached_property"} else "function"


def _is_for_tools(comment: str) -> bool:
    return re.match(r"#\s*(type:|noqa|pragma|fmt:|ruff|!|-{4}|mypy)", comment) is not None


def faults(text: Text) -> Iterator[str]:
    """Yield what has to change in a text."""
    first = re.match(r"[`\"'(]*([\w-]+)", text.text)
    if text.kind == "function":
        if first is None or first[1].lower() in _NO_VERBS or first[1].isdigit():
            yield "begin with a verb"
    elif _FRAGMENTS.match(text.text):
        yield "make it a sentence, or a noun with its meaning"
    prose = re.sub(r"``.*?``|`[^`]*`", "", text.text, flags=re.DOTALL)
    for pattern, better in _WORDS.items():
        if found := pattern.search(prose):
            yield f"instead of {found[0]!r}: {better}"


def _files() -> list[Path]:
    return sorted(each for plain in PLAIN for each in (ROOT / plain, *(ROOT / plain).rglob("*.py")) if each.is_file())


@pytest.mark.parametrize("file", _files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_the_text_reads_plainly(file: Path) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{text.line}: {fault}: {' '.join(text.text.split())[:90]!r}"
        for text in texts(file.read_text())
        for fault in faults(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("function", "Whether the topic was deleted for certain."),
        ("function", "The replicas in ZooKeeper, in this epoch."),
        ("function", "Until a row has frames or an error, or the time is over."),
        ("comment", "Of a file, however many there are of others."),
        ("comment", "Also behind an iteration that was left at the last record of a batch."),
        ("comment", "Then rows count whose ends moved, too."),
        ("noun", "The producer is told its epoch."),
    ],
)
def test_a_form_that_has_to_be_read_twice_is_refused(kind: str, text: str) -> None:
    assert list(faults(Text(1, kind, text)))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("function", "Return whether the topic is certainly deleted."),
        ("function", "``fsync`` the file."),
        ("comment", "ZooKeeper has stored these replicas for the current epoch."),
        ("noun", "The address for clients: two topics are told apart by their ids."),
    ],
)
def test_a_plain_sentence_is_taken(kind: str, text: str) -> None:
    assert not list(faults(Text(1, kind, text)))


if __name__ == "__main__":  # python -m tests.unit.test_words FOLDER ...: what has to change there
    import sys

    for name in sys.argv[1:]:
        for path in sorted(Path(name).rglob("*.py")) if Path(name).is_dir() else [Path(name)]:
            for one in texts(path.read_text()):
                for what in faults(one):
                    print(f"{path}:{one.line}: {what}: {' '.join(one.text.split())[:110]}")
