"""The end of every command: an exception becomes one line and an exit code."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from logstore.errors import (
    LogStoreError,
    StoreUnreachableError,
    UnknownGroupError,
    UnknownHostError,
    UnknownTopicError,
    WakeupError,
)

FAILED = 1
#: Bad input, like typer's own code.
USAGE = 2
INTERRUPTED = 130
# A missing module of these packages is a fault of the installation, which no extra can fix.
_OUR_PACKAGES = ("logstore", "ingest_api", "consumer_offsets", "compaction_jobs")


class CommandGroup(TyperGroup):
    """The outermost group. Its commands need the extra ``extra``, or none."""

    extra = "server"
    extra_in_words = "the server"

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            # It is flushed here, where a reader that has gone is handled; at exit Python would complain about it.
            sys.stdout.flush()
        except BrokenPipeError:
            # In `logstore consume t | head` the reader has got what it wanted.
            _discard_output()
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in _OUR_PACKAGES:
                raise
            fail(f"this command needs {self.extra_in_words}: pip install 'delta-logstore[{self.extra}]'")
        except UnknownHostError as error:
            fail(error.message)
        except StoreUnreachableError as error:
            fail(f"{error.message}; start one with: logstore serve, or name another one with --url or LOGSTORE_URL")
        except UnknownTopicError as error:
            hint = "logstore topic list"  # a broker's message names it already
            fail(error.message if hint in error.message else f"{error.message.rstrip('.')}; {hint} shows what there is")
        except UnknownGroupError as error:
            fail(f"{error.message.rstrip('.')}; logstore group list shows what there is")
        except LogStoreError as error:
            fail(error.message)
        except OSError as error:
            fail(str(error) if error.filename is None else f"{error.filename}: {error.strerror}")
        return result


def fail(message: str, code: int = FAILED) -> NoReturn:
    """End the command: write ``message`` to stderr in one line, and exit with ``code``."""
    sys.stderr.write(f"logstore: {' '.join(message.split())}\n")
    raise typer.Exit(code) from None


class Interrupts:
    """Handles Ctrl-C and SIGTERM (a container's stop, ``timeout``) while a consumer reads.

    The first one wakes the consumer, because an exception within its locked code could leave a lock held. It is raised
    ``at_once`` where output may block, and so is the second one everywhere.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.asked = False
        self._wake = wake
        self._at_once = False

    def handle(self, _: int, __: FrameType | None) -> None:
        again, self.asked = self.asked, True
        if again or self._at_once:
            raise KeyboardInterrupt
        self._wake()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False


@contextmanager
def waking(wake: Callable[[], None]) -> Iterator[Interrupts]:
    """Raise KeyboardInterrupt at the end of the block after a Ctrl-C or SIGTERM; ``wake`` causes a WakeupError."""
    interrupts = Interrupts(wake)
    # Only the main thread can handle signals.
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = [(number, signal.signal(number, interrupts.handle)) for number in numbers]
    try:
        yield interrupts
    except WakeupError:
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    if interrupts.asked:
        raise KeyboardInterrupt


def confirm(question: str, *, otherwise: str) -> None:
    """Ask on the terminal; unless the user says yes, the command ends with ``otherwise``."""
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
