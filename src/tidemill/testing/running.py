"""Programs that start processes of their own, and the processes, which are ended by their ids."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

from tidemill.children import Running

STOP_TIMEOUT_S = 60


def end_in_order() -> None:
    """SIGTERM ends this program as Ctrl-C does: what it has started goes with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))


class OwnProcess(Running):
    """A process of ours; whoever extends this sets `_process` in `start`."""

    _process: subprocess.Popen[Any] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"this {type(self).__name__} was not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> int:
        """Stop cleanly with SIGTERM and return the exit code; 0 if it does not run."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """SIGKILL, as a crash would: the process gets no chance to flush or to say goodbye."""
        return self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and says nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)  # One that is paused would never hear it.
        try:
            return process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            if process.stdout is not None:
                process.stdout.close()
