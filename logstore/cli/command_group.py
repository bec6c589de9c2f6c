"""The end of every command: an exception becomes one line and an exit code."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from logstore.errors import (
    LogStoreError,
    StoreUnreachableError,
    UnknownGroupError,
    UnknownHostError,
    UnknownTopicError,
)

FAILED = 1
#: Bad input, as typer's own.
USAGE = 2
INTERRUPTED = 130
# A missing module of these packages is a fault of the installation, which no extra mends.
_OUR_PACKAGES = ("logstore", "ingest_api", "consumer_offsets", "compaction_jobs")


class CommandGroup(TyperGroup):
    """The outermost group. Its commands need the extra ``extra``, or none."""

    extra = "server"
    extra_in_words = "the server"

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            # Flushed here, where a reader that has gone is handled; at exit Python would complain about it.
            sys.stdout.flush()
        except BrokenPipeError:
            # `logstore consume t | head`: the reader has what it wanted.
            _discard_output()
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in _OUR_PACKAGES:
                raise
            fail(f"this command needs {self.extra_in_words}: pip install 'logstore[{self.extra}]'")
        except UnknownHostError as error:
            fail(error.message)
        except StoreUnreachableError as error:
            fail(f"{error.message}; start one with: logstore serve")
        except UnknownTopicError as error:
            fail(f"{error.message.rstrip('.')}; logstore topic list shows what there is")
        except UnknownGroupError as error:
            fail(f"{error.message.rstrip('.')}; logstore group list shows what there is")
        except LogStoreError as error:
            fail(error.message)
        except OSError as error:
            fail(str(error) if error.filename is None else f"{error.filename}: {error.strerror}")
        return result


def fail(message: str, code: int = FAILED) -> NoReturn:
    """End the command: ``message`` on stderr in one line, exit code ``code``."""
    sys.stderr.write(f"logstore: {' '.join(message.split())}\n")
    raise typer.Exit(code) from None


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Make SIGTERM (a container's stop, ``timeout``) raise KeyboardInterrupt, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Signals are the main thread's.
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def confirm(question: str, *, otherwise: str) -> None:
    """Ask on the terminal; unless the answer is yes the command ends with ``otherwise``."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to ask on: confirm with --yes", param_hint="--yes")
    if not typer.confirm(question, err=True):
        typer.echo(otherwise, err=True)
        raise typer.Exit(FAILED)


def _discard_output() -> None:
    try:
        descriptor = sys.stdout.fileno()
    except OSError:
        return
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123 (a device, for its descriptor)
        os.dup2(nothing.fileno(), descriptor)
