"""Lines of Python for a codec, with the names that they use."""

import struct
from typing import Any


class SourceLines:
    """The source of one function. ``names`` are the globals that it sees."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = dict(names)
        self._lines: list[str] = []
        self._depth = 0
        self._variables = 0

    def add(self, line: str) -> None:
        self._lines.append(" " * self._depth + line)

    def indent(self) -> None:
        self._depth += 1

    def dedent(self) -> None:
        self._depth -= 1

    def variable(self, letter: str = "v") -> str:
        """Return a new local variable."""
        self._variables += 1
        return f"{letter}{self._variables}"

    def constant(self, name: str, value: object) -> str:
        """Return the name of ``value``: ``name``, or a variation of it if another value has that name."""
        wanted, number = name, 0
        while self.names.setdefault(name, value) is not value:
            number += 1
            name = f"{wanted}_{number}"
        return name

    def structs(self, formats: str, method: str) -> str:
        """Return the method of the ``Struct`` of these characters, big-endian."""
        name = f"{method}_{formats.replace('?', 'Z')}"
        if name not in self.names:
            self.names[name] = getattr(struct.Struct(">" + formats), method)
        return name

    def function(self, name: str, file: str) -> Any:
        """Return the compiled function."""
        code = compile("\n".join(self._lines), f"<{file}>", "exec")
        exec(code, self.names)  # noqa: S102 # made of Kafka's definitions alone
        return self.names[name]

    @property
    def text(self) -> str:
        return "\n".join(self._lines)
