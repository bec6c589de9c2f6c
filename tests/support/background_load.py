"""Threads that load a store for as long as a block runs."""

import threading
from collections.abc import Callable, Iterable
from typing import Self


class BackgroundLoad:
    """Runs each of ``targets`` in a thread during ``with load: ...``; the block's end sets ``_stop``, and they end.

    Exceptions of targets are in ``errors``, and fail the block; so does a hanging request.
    """

    def __init__(self, targets: Iterable[Callable[[], None]]) -> None:
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._guarded, args=(target,)) for target in targets]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a request hangs"
        if self.errors:
            raise AssertionError(f"{type(self).__name__} failed: {self.errors[0]!r}") from self.errors[0]

    def _guarded(self, target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - raised at the end of the block
            self.errors.append(error)
