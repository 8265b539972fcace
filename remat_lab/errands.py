"""Work in threads that leaves to the thread which started it what belongs there.

Solvers and XLA work in any thread. What traces a user's function, runs a program or reports stays in the thread that asked for
all this: JAX's context managers (default precision, device, ...) are in force there only, users' functions need not be safe to
call from several threads, and interrupts come there.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Self

_POLL_SECONDS = 0.1


class Stopped(BaseException):
    """Ends a thread's work from within; not an Exception, so that nobody handles it on the way."""


class Errands:
    """What threads ask of the one that made this; as a context it asks them to end when it is left.

    Args:
        most: threads that work at a time; others wait for their turn, in the order in which they were started.
    """

    def __init__(self, most: int = 1):
        self._home, self._stop = threading.get_ident(), threading.Event()
        self._free = threading.Semaphore(most)
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        while not self._asked.empty():
            self._asked.get()[1].cancel()

    def start[T](self, work: Callable[[], T]) -> Future[T]:
        """Works in a thread, which does not keep the process from ending."""
        future = Future[T]()

        def run() -> None:
            with self._free:
                try:
                    self.check()
                    future.set_result(work())
                except BaseException as error:  # whoever waits raises it
                    future.set_exception(error)

        threading.Thread(target=run, name="errands", daemon=True).start()
        return future

    def check(self) -> None:
        """To be called from time to time by work in threads.

        Raises:
            Stopped: if they are to end.
        """
        if self._stop.is_set():
            raise Stopped

    def ask[T](self, work: Callable[[], T]) -> T:
        """Has something done at home, and waits for it."""
        if threading.get_ident() == self._home:
            return work()
        future = Future[T]()

        def errand() -> None:
            try:
                future.set_result(work())
            except Exception as error:  # whoever asked raises it
                future.set_exception(error)

        self._put(errand, future)
        return future.result()

    def tell(self, work: Callable[[], object]) -> None:
        """Has something done at home, without waiting for it; what it raises is raised there."""
        self._put(work, Future[None]())

    def _put(self, work: Callable[[], object], future: Future[Any]) -> None:
        self.check()
        self._asked.put((work, future))
        if self._stop.is_set():  # since the check, and so nobody may serve any more
            future.cancel()

    def serve(self, *, seconds: float = 0.0) -> None:
        """Does what was asked for; to be called at home.

        Args:
            seconds: how long to wait for the first errand.
        """
        try:
            work, _ = self._asked.get(timeout=seconds) if seconds else self._asked.get_nowait()
            while True:
                work()
                work, _ = self._asked.get_nowait()
        except queue.Empty:
            return

    def wait(self, futures: Iterable[Future[Any]]) -> None:
        """Serves until all these are there."""
        waiting = list(futures)
        while not all(future.done() for future in waiting):
            self.serve(seconds=_POLL_SECONDS)
        self.serve()
