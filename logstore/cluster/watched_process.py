"""A process that ends with the one that started it, however that ends, also by ``kill -9``.

Its standard input is a pipe from there. A watcher beside it waits for the end of that pipe, and kills it. (The kernel's
PR_SET_PDEATHSIG is bound to the thread that forks, and needs code between fork and exec.)
"""

from collections.abc import Sequence
from typing import Final

#: $0 is a part of the command line, the rest the command. The watcher ends no process but this one, if its number is
#: used again.
_WATCHED: Final = """
exec 3<&0
(cat <&3; grep -qsF -- "$0" /proc/$$/cmdline && kill -9 $$) >/dev/null 2>&1 &
exec "$@" 3<&- </dev/null
"""


def watched(command: Sequence[str], known_by: str) -> list[str]:
    """``command``, to be started with a pipe as its standard input; the process id is the command's.

    ``known_by``: a part of one of its arguments, which tells it from another process of the same number. Who started it
    keeps the pipe open while it is to live, and closes it once it has ended.
    """
    return ["/bin/sh", "-c", _WATCHED, known_by, *command]
