"""The limit of open files, and a store's need of them. Sockets get at most three quarters: a journal that cannot open a
file stops the store.
"""

import resource

# Files of the journal, files that readers and rolls open for a moment, and those of Python and its libraries. A topic
# has none open while nobody reads it, so the number of topics does not count.
_OTHERS = 256


def open_files_limit() -> int | None:
    """Return the soft limit of this process (``ulimit -n``); None if it has no limit."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if files == resource.RLIM_INFINITY else files


def connections_within(max_connections: int, limit: int | None) -> int:
    """Return how many connections are accepted: ``max.connections``, or three quarters of ``limit``."""
    return max_connections if limit is None else min(max_connections, limit * 3 // 4)


def open_files_shortage(limit: int | None, max_connections: int) -> str | None:
    """Return why ``limit`` is too low for a store, and a remedy; None if it is high enough."""
    if limit is None:
        return None
    needed = max(-(-max_connections * 4 // 3), max_connections + _OTHERS)
    if limit >= needed:
        return None
    return (
        f"{limit} files may be open: that is {connections_within(max_connections, limit)} connections, and "
        f"max.connections is {max_connections}. Raise it with ulimit -n {needed}, or lower max.connections."
    )
