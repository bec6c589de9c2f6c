"""A process that ends with its parent, even if that ends by ``kill -9``.

Its standard input is a pipe from the parent. A watcher beside it waits for the end of that pipe, and then kills it.
(The kernel's PR_SET_PDEATHSIG is bound to the thread that forks, and needs code between fork and exec.)
"""

from collections.abc import Sequence
from typing import Final

#: $0 is a part of the command line, the rest is the command. The watcher checks it before it kills, because the process
#: number may be used again.
_WATCHED: Final = """
exec 3<&0
(cat <&3; grep -qsF -- "$0" /proc/$$/cmdline && kill -9 $$) >/dev/null 2>&1 &
exec "$@" 3<&- </dev/null
"""


def watched(command: Sequence[str], known_by: str) -> list[str]:
    """Return a command that runs ``command`` watched, with a pipe as its standard input and with its own process id.

    ``known_by`` is a part of one of its arguments, which distinguishes it from a later process with the same id. The
    caller keeps the pipe open as long as the process should live, and closes it once it has ended.
    """
    return ["/bin/sh", "-c", _WATCHED, known_by, *command]
