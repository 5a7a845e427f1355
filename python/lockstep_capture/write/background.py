"""Work that the loop need not wait for: a capture's tensors reach the disk while the next step computes."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable

MOST_BYTES = 256 << 20  # that wait; a single job may have more


class Background:
    """Jobs, one after the other, in a thread that lives while there are some. After a failure no other job runs."""

    def __init__(self) -> None:
        self._jobs: collections.deque[tuple[Callable[[], None], int]] = collections.deque()
        self._bytes, self._works = 0, False
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._thread: int | None = None

    @property
    def is_here(self) -> bool:
        """Whether a job has called this, through Python's collector of garbage: it must not wait for itself."""
        return self._thread == threading.get_ident()

    def put(self, job: Callable[[], None], size: int = 0) -> None:
        """size: bytes that the job keeps. Waits while too many do. Throws: what an earlier job threw."""
        with self._changed:
            self._changed.wait_for(lambda: self._bytes == 0 or self._bytes + size <= MOST_BYTES)
            self._check()
            self._jobs.append((job, size))
            self._bytes += size
            if self._works:
                return
            self._works = True
        try:
            threading.Thread(target=self._work, name="lockstep_capture", daemon=True).start()
        except RuntimeError:  # no new threads, as when the interpreter ends
            self._work()
        except BaseException:  # Ctrl-C before it began
            with self._changed:
                self._works = False
            raise

    def wait(self) -> None:
        """Until all jobs are done. Throws: what one of them threw."""
        with self._changed:
            self._changed.wait_for(lambda: not self._works)
            self._check()

    def drop(self) -> None:
        """Forgets the jobs that have not begun, waits for the other."""
        with self._changed:
            self._bytes -= sum(size for _, size in self._jobs)
            self._jobs.clear()
            self._changed.wait_for(lambda: not self._works)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        with self._changed:
            self._thread = threading.get_ident()
        while True:
            with self._changed:
                if not self._jobs:
                    self._works, self._thread = False, None
                    self._changed.notify_all()
                    return
                job, size = self._jobs.popleft()
            error: BaseException | None = None
            try:
                job()
            except BaseException as caught:
                error = caught
            del job  # and with it what it keeps
            with self._changed:
                self._bytes -= size
                if error is not None:
                    self._error = self._error or error
                    self._bytes -= sum(size for _, size in self._jobs)
                    self._jobs.clear()
                self._changed.notify_all()
