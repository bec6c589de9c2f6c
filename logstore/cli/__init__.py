"""The command line ``logstore``.

Invariants: results go to stdout and everything else to stderr; an error is one line, never a traceback; the exit code
is 0, 1 (the operation failed), 2 (wrong usage) or 130 (Ctrl-C). ``--json`` shapes are documented in ``docs/cli.md`` and
stable. A command imports what it needs when it runs, so that ``--help`` is quick.
"""

import sys

import logstore


def main() -> None:
    """Run the script ``logstore``; this exits the process."""
    if not hasattr(logstore, "__version__"):
        # The __init__ of another distribution replaces ours, so none of our modules that import the version would load.
        sys.exit(_replaced())
    from logstore.cli.app import app

    sys.exit(app(prog_name="logstore"))


def _replaced() -> int:
    from logstore.cli.distributions import installation

    found = installation()
    sys.stderr.write(
        f"logstore: {logstore.__file__} is not of {found.own}: {found.warning}; mend it with {found.remedy}\n"
    )
    return 1
