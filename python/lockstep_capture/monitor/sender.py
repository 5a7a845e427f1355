"""The program that writes the run file, on the other end of a pipe. Training never waits for a disk: a thread sends."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

_MOST_WAITING = 256  # steps; with a measured one among 100 a few megabytes
_END = None
_LAST_LINE = b'{"end": true}\n'


class Sender:
    """failed(why): the program ended by itself, e.g. because the disk is full. alarm(...): from its thread."""

    def __init__(
        self,
        command: list[str],
        header: dict[str, Any],
        failed: Callable[[str], None],
        alarm: Callable[[dict[str, Any]], None],
    ):
        self._failed, self._alarm = failed, alarm
        self._errors = tempfile.TemporaryFile()
        # A session of its own: Ctrl-C in the terminal ends the loop, and the loop's end ends the program.
        self._program = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True
        )
        self._waiting: queue.Queue[bytes | None] = queue.Queue(_MOST_WAITING)
        self.dropped = False
        self._ended = self._said_end = False
        self._send_thread = threading.Thread(target=self._send, daemon=True)
        self._alarm_thread = threading.Thread(target=self._listen, daemon=True)
        self._send_thread.start()
        self._alarm_thread.start()
        self._waiting.put(json.dumps(header).encode() + b"\n")

    def send(self, head: dict[str, Any], numbers: bytes) -> bool:
        """False, and nothing more is sent, where the program does not keep up: a file has every step or ends."""
        if self.dropped or self._ended:
            return False
        try:
            self._waiting.put_nowait(json.dumps(head | {"bytes": len(numbers)}).encode() + b"\n" + numbers)
        except queue.Full:
            self.dropped = True
            return False
        return True

    def let_end(self) -> None:
        """Nothing more comes. Does not wait."""
        if not self._ended:
            with contextlib.suppress(queue.Full):
                self._waiting.put_nowait(_END)

    def finish(self, seconds: float) -> str:
        """Waits so long for the file; a program that takes longer is killed. Returns: what is wrong, or ""."""
        end, problem = time.monotonic() + seconds, ""
        while not self._ended and not self._said_end:
            try:
                self._waiting.put(_END, timeout=0.1)
                self._said_end = True
            except queue.Full:
                if time.monotonic() > end:
                    break
        try:
            code = self._program.wait(max(0.0, end - time.monotonic()))
            self._alarm_thread.join(max(0.0, end - time.monotonic()))
            problem = "" if code == 0 else self._told()
        except subprocess.TimeoutExpired:
            self._program.kill()
            self._program.wait()
            problem = f"the program did not end within {seconds:g} s: the file has the steps that it took"
        if not self._alarm_thread.is_alive() and self._program.stdout is not None:
            self._program.stdout.close()
        return problem

    def _send(self) -> None:
        pipe = self._program.stdin
        assert pipe is not None
        try:
            while (message := self._waiting.get()) is not _END:
                pipe.write(message)
                pipe.flush()
            pipe.write(_LAST_LINE)  # a child process of the loop may hold the pipe open
            pipe.close()
        except (BrokenPipeError, OSError, ValueError):
            self._ended = True
            self._program.wait()
            self._failed(self._told())

    def _listen(self) -> None:
        assert self._program.stdout is not None
        for line in self._program.stdout:
            try:
                self._alarm(json.loads(line))
            except ValueError:
                continue

    def _told(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip() or f"exit code {self._program.returncode}"
