"""Holds the text of the code and of the pages to plain English (docs/CONTRIBUTING.md, How it reads).

A lint cannot see whether a sentence is clear. It can see forms that readers had to read twice: function docstrings that
do not begin with a verb, sentences that hang on a name, and a few words used in an unusual sense.
"""

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

#: Folders and files that read plainly. One that is rewritten is added here, and is never removed.
PLAIN = (
    "CHANGELOG.md",
    "README.md",
    "airflow_dags",
    "benchmarks",
    "compaction_jobs",
    "conf",
    "consumer_offsets",
    "docs/*.md",
    "docs/decisions/*.md",
    "docs/demo",
    "findings/README.md",
    "ingest_api",
    "logstore",
    "tests/airflow",
    "tests/api",
    "tests/cli",
    "tests/cluster",
    "tests/concurrency",
    "tests/conftest.py",
    "tests/docs",
    "tests/faults",
    "tests/golden",
    "tests/install",
    "tests/kafka_clients",
    "tests/simulation",
    "tests/spark",
    "tests/stateful",
    "tests/support",
    "tests/unit",
)

#: Pages among these that are not rewritten yet.
_LATER: frozenset[str] = frozenset()

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
#: A sentence of a page may be an instruction ("Also skip ..."), begin with a time ("Until then ..."), or be a question.
_FRAGMENTS_OF_PAGES = re.compile(r"(Of|Whether|Those|What|Who|Whose|Whoever|Behind|Beside|None of|Not one|As many)\b")
#: A sentence begins a text, or follows a full stop, a question mark or a colon.
_SENTENCE = re.compile(r"(?:\A|(?<=[.?:])\s+)[*\"(]*(?=[A-Z])([^.?:]*\??)")
#: Each expression with a better one.
_WORDS = {
    re.compile(r"\banew\b"): "again, or new",
    re.compile(r", too\b(?=[.;:)]|$)"): "also, before the verb",
    re.compile(r"\b(is|are)\s+none\s+of\b"): "is not a ..., or is not in ...",
    re.compile(r"\b[Ss]o\s+many\b"): "this many, or the number",
    re.compile(r"\b([Tt]ell|[Tt]ells|[Tt]old|[Tt]elling)\b(?!(\s+\w+)?\s+apart)"): "report, return, notify, or say",
    re.compile(r"\bit\s+is\s+all\s+the\s+same\b"): "it does not matter",
}
#: A test's name says the fact that it tests: it has a subject, and none of these words.
_NO_SUBJECTS = re.compile(r"(what|who|whose|whoever|those|of|until|also|nobody|as many)\b")
_WORDS_OF_TESTS = _WORDS | {
    re.compile(r"\btoo$"): "also, before the verb",
    re.compile(r"\bnone of\b"): "no, or not in",
    re.compile(r"\ball the same\b"): "nevertheless",
    re.compile(r"\b(goes|go|went) on\b"): "continue",
}
_CODE = re.compile(r"``.*?``|`[^`]*`", re.DOTALL)
#: A link, of which readers see the text alone.
_LINK = re.compile(r"(?<=\])\([^)]*\)")


class Text(NamedTuple):
    line: int
    #: ``function``, ``noun`` (a module, a class, a property), ``comment``, ``test`` (its name as words), ``page``
    #: (sentences), or ``cell``.
    kind: str
    text: str


class Fault(NamedTuple):
    line: int
    what: str
    excerpt: str

    def __str__(self) -> str:
        return f"{self.line}: {self.what}: {' '.join(self.excerpt.split())[:100]!r}"


def texts(source: str) -> Iterator[Text]:
    """Yield the docstrings and comments of a Python file; adjacent lines of comment are one text."""
    # The kinds of the docstring that the next statement may be, and of the one in the next block.
    here, inside = "noun", ""
    is_property = False
    begins = True
    block: list[str] = []
    started = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        row = token.start[0]
        if token.type == tokenize.COMMENT:
            if _is_for_tools(token.string):
                continue
            if block and not (row == last + 1 and token.line.lstrip().startswith("#")):
                yield Text(started, "comment", "\n".join(block))
                block = []
            if not block:
                started = row
            block.append(token.string.lstrip("#: ").strip())
            last = row
        elif token.type == tokenize.INDENT:
            here = inside
        elif token.type == tokenize.NEWLINE:
            begins = True
        elif begins and token.type not in {tokenize.NL, tokenize.DEDENT}:
            begins = False
            if here and token.type == tokenize.STRING:
                yield Text(row, here, inspect.cleandoc(ast.literal_eval(token.string)))
            here, inside = "", ""
            match token.string:
                case "@":
                    is_property |= token.line.strip().rpartition(".")[2].lstrip("@") in {"property", "cached_property"}
                case "def" | "async":
                    inside = "noun" if is_property else "function"
                    is_property = False
                case "class":
                    inside = "noun"
    if block:
        yield Text(started, "comment", "\n".join(block))


def _is_for_tools(comment: str) -> bool:
    return re.match(r"#\s*(type:|noqa|pragma|fmt:|ruff|!|-{4}|mypy)", comment) is not None


def names_of_tests(source: str) -> Iterator[Text]:
    """Yield the names of the tests in a Python file, as words."""
    for found in re.finditer(r"^ *(?:async )?def test_(\w+)", source, re.MULTILINE):
        yield Text(source.count("\n", 0, found.start(1)) + 1, "test", found[1].replace("_", " "))


def page_texts(page: str) -> Iterator[Text]:
    """Yield the paragraphs, items, headings and rows of tables of a page in Markdown, without its blocks of code."""
    paragraph: list[str] = []
    started = 0
    fence = ""
    for number, line in enumerate([*page.splitlines(), ""], 1):
        stripped = line.strip()
        mark = re.match(r"(```+|~~~+)?", stripped)
        is_code = bool(fence) or bool(mark and mark[1]) or (not paragraph and line.startswith("    "))
        if mark and mark[1] and (not fence or stripped == fence):
            fence = "" if fence else mark[1]
        is_alone = stripped.startswith(("#", "|", "<!--"))
        item = re.match(r"([-*]|\d+\.) ", stripped)
        if paragraph and (is_code or is_alone or item or not stripped):
            yield Text(started, "page", "\n".join(paragraph))
            paragraph = []
        if is_code or not stripped:
            continue
        if is_alone:
            yield Text(number, "cell", stripped)
            continue
        if not paragraph:
            started = number
        paragraph.append(stripped[item.end() :] if item else stripped)


def faults(text: Text) -> Iterator[Fault]:
    """Yield what has to change in a text."""
    first = re.match(r"[`\"'(]*([\w-]+)", text.text)
    if text.kind == "function":
        if first is None or first[1].lower() in _NO_VERBS or first[1].isdigit():
            yield Fault(text.line, "begin with a verb", text.text)
    elif text.kind in {"noun", "comment"} and _FRAGMENTS.match(text.text):
        yield Fault(text.line, "make it a sentence, or a noun with its meaning", text.text)
    elif text.kind == "test" and _NO_SUBJECTS.match(text.text):
        yield Fault(text.line, "begin with a subject", text.text)
    # Removed code keeps its line ends, so that a fault has the right line.
    prose = _CODE.sub(lambda code: "x" + "\n" * code[0].count("\n"), text.text)
    if text.kind in {"page", "cell"}:
        prose = _LINK.sub(lambda link: "\n" * link[0].count("\n"), prose)
    if text.kind == "page":
        for sentence in _SENTENCE.finditer(prose):
            if _FRAGMENTS_OF_PAGES.match(sentence[1]) and not sentence[1].endswith("?"):
                yield Fault(_line(text, prose, sentence.start(1)), "make it a sentence with a subject", sentence[1])
    for pattern, better in (_WORDS_OF_TESTS if text.kind == "test" else _WORDS).items():
        for found in pattern.finditer(prose):
            around = prose[max(0, found.start() - 40) : found.end() + 40]
            yield Fault(_line(text, prose, found.start()), f"instead of {found[0]!r}: {better}", around)


def _line(text: Text, prose: str, at: int) -> int:
    return text.line + prose.count("\n", 0, at)


def faults_of_file(path: Path) -> list[Fault]:
    source = path.read_text()
    found = page_texts(source) if path.suffix == ".md" else (*texts(source), *names_of_tests(source))
    return [fault for text in found for fault in faults(text)]


def files(plain: str) -> list[Path]:
    """Return the files of an entry of ``PLAIN``: of a folder its Python files."""
    found = [each for path in ROOT.glob(plain) for each in (path.rglob("*.py") if path.is_dir() else [path])]
    return sorted(each for each in found if str(each.relative_to(ROOT)) not in _LATER)


@pytest.mark.parametrize("plain", PLAIN)
def test_the_text_reads_plainly(plain: str) -> None:
    assert files(plain), "nothing has this name"
    found = [f"{path.relative_to(ROOT)}:{fault}" for path in files(plain) for fault in faults_of_file(path)]
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
        ("test", "a broker is told its address"),
        ("test", "what is malformed is refused"),
        ("test", "the listener speaks ipv6 too"),
        ("page", "The group is empty. Of a new one only the name exists."),
        ("page", "**Records**: What was read stays."),
        ("cell", "| how far | so\nmany records |"),
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
        ("test", "topics are told apart and refused"),
        ("page", "Commit first. What happens then? Until the commit, `tell` waits. Also read [the page](told.md)."),
        ("cell", "| Those that are left |"),
    ],
)
def test_a_plain_sentence_is_taken(kind: str, text: str) -> None:
    assert not list(faults(Text(1, kind, text)))


def test_texts_of_python_are_found_with_their_kinds() -> None:
    source = '''"""A module."""
class A:
    """A class."""
    @functools.cached_property
    # Why it is kept.
    def b(self):
        # First.
        """A noun."""
        return """No docstring."""  # A reason.
    @other
    async def c(self): ...
    "No docstring."
    def d(
        self,
    ):
        """Say it."""
'''
    assert sorted(tuple(text) for text in texts(source)) == [
        (1, "noun", "A module."),
        (3, "noun", "A class."),
        (5, "comment", "Why it is kept."),
        (7, "comment", "First."),
        (8, "noun", "A noun."),
        (9, "comment", "A reason."),
        (16, "function", "Say it."),
    ]


def test_names_of_tests_are_found_with_their_lines() -> None:
    source = "class Tests:\n    def test_a_b(self): ...\n\nasync def test_c(): ...\ndef tests_d(): ...\n"
    assert [tuple(text) for text in names_of_tests(source)] == [(2, "test", "a b"), (4, "test", "c")]


def test_texts_of_a_page_are_found_with_their_lines() -> None:
    page = "# Head\n\nOne\ntwo.\n- item\n  more\n\n```sh\n# code\n```\n\n    code\n\n| a | b |\n"
    assert [tuple(text) for text in page_texts(page)] == [
        (1, "cell", "# Head"),
        (3, "page", "One\ntwo."),
        (5, "page", "item\nmore"),
        (14, "cell", "| a | b |"),
    ]
    assert [fault.line for fault in faults(Text(3, "page", "One `a\nb`.\nOf two."))] == [5]


if __name__ == "__main__":  # python -m tests.unit.test_words FOLDER ...: what has to change there
    for name in sys.argv[1:]:
        for path in sorted(Path(name).rglob("*.*")) if Path(name).is_dir() else [Path(name)]:
            if path.suffix not in {".py", ".md"}:
                continue
            for one in faults_of_file(path):
                print(f"{path}:{one}")
