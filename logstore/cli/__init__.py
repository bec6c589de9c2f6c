"""The command line ``logstore``.

Invariants: results go to stdout and everything else to stderr; an error is one line, never a traceback; the exit code
is 0, 1 (the operation failed), 2 (wrong usage) or 130 (Ctrl-C). ``--json`` shapes are documented in ``docs/cli.md``
and stable. What a command needs is imported when it runs, so that ``--help`` is quick.
"""

import sys


def main() -> None:
    """Entry point of the script ``logstore``; exits the process."""
    from logstore.cli.app import app

    sys.exit(app(prog_name="logstore"))
