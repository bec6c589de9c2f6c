"""Functions of the store with other text in them: planted bugs."""

import inspect
import textwrap
import types
from typing import Any


def rewritten(function: Any, *changes: tuple[str, str]) -> Any:
    """Return the function with other text in it."""
    function = inspect.unwrap(function)
    source = textwrap.dedent(inspect.getsource(function))
    for before, after in changes:
        assert before in source, f"{function.__qualname__} does not say {before!r} any more"
        source = source.replace(before, after)
    namespace: dict[str, Any] = {}
    exec(source, {**function.__globals__}, namespace)
    made = namespace[function.__name__]
    # The module's own names, also those that a test has put in their place.
    broken = types.FunctionType(made.__code__, function.__globals__, made.__name__, made.__defaults__, made.__closure__)
    broken.__kwdefaults__ = made.__kwdefaults__
    return broken
