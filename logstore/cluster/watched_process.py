"""A process that ends with the one that started it, even if that ends by ``kill -9``.

Its standard input is a pipe from the starting process. A watcher beside it waits for the end of that pipe, and kills
it. (The kernel's PR_SET_PDEATHSIG is bound to the thread that forks, and needs code between fork and exec.)
"""

from collections.abc import Sequence
from typing import Final

#: $0 is a part of the command line, the rest the command. The watcher kills only this process: the number of the
#: process may be used again.
_WATCHED: Final = """
exec 3<&0
(cat <&3; grep -qsF -- "$0" /proc/$$/cmdline && kill -9 $$) >/dev/null 2>&1 &
exec "$@" 3<&- </dev/null
"""


def watched(command: Sequence[str], known_by: str) -> list[str]:
    """Return ``command`` wrapped to be started with a pipe as its standard input; the process id is the command's.

    ``known_by`` is a part of one of its arguments, which distinguishes it from another process with the same id. The
    caller keeps the pipe open as long as the process should live, and closes it once it has ended.
    """
    return ["/bin/sh", "-c", _WATCHED, known_by, *command]
