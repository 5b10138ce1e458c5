"""`tenderd` as a child process of a test: started on sockets of its own, asked, stopped, or killed.

The one place of the suite that knows the flags of `tenderd` and `tender`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30
ASK_TIMEOUT_S = 30


def program(name: str) -> Path:
    """Path of one of our binaries: from TENDER_BIN_DIR, else the newest build in this checkout."""
    folders = [Path(os.environ["TENDER_BIN_DIR"])] if "TENDER_BIN_DIR" in os.environ else []
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPO / "target"))
    found = [f / name for f in folders or (target / "release", target / "debug") if (f / name).is_file()]
    if not found:
        raise FileNotFoundError(f"no program {name}: run `make build` first")
    return max(found, key=lambda path: path.stat().st_mtime)


class Daemon:
    """One `tenderd` with its own socket and arena. `start` again after `kill` reuses both places."""

    def __init__(
        self, folder: Path, arena: str = "128MiB", tcp: bool = False, on: Sequence[str] = (), flags: Sequence[str] = ()
    ):
        """`on` is put before the command (another host); `flags` come after ours."""
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.socket = self.folder / "tenderd.sock"
        self.arena = arena
        self.tcp_port = _free_port() if tcp else None
        self._on, self._flags = list(on), list(flags)
        self.log = self.folder / "tenderd.log"
        self._process: subprocess.Popen | None = None

    @property
    def address(self) -> str:
        return f"unix:{self.socket}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> Daemon:
        """Starts it and returns once it answers a ping; raises with the end of its log if it does not."""
        self._process = self._spawn()
        return self._answers()

    def take_over(self) -> int:
        """Another one takes over from the running one, whose exit status is returned once the other answers."""
        old, self._process = self._process, self._spawn("--take-over")
        try:
            status = old.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            old.kill()
            raise RuntimeError(f"the daemon did not hand over:\n{self._log_end()}") from None
        self._answers()
        return status

    def restart(self) -> int:
        """SIGTERM, and another one on the same sockets and arena. Returns the exit status of the one before."""
        old = self._process
        self._end(signal.SIGTERM)
        self.start()
        return old.returncode

    def _spawn(self, *more: str) -> subprocess.Popen:
        with self.log.open("ab") as log:
            command = [*self._command(), *more]
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _answers(self) -> Daemon:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"tenderd ended with {self._process.returncode}:\n{self._log_end()}")
            if self.socket.exists() and self._tender("ping").returncode == 0:
                return self
            time.sleep(0.05)
        self.kill()
        raise RuntimeError(f"tenderd did not answer within {START_TIMEOUT_S} s:\n{self._log_end()}")

    def stat(self) -> dict:
        """What `tender stat --json` says."""
        answer = self._tender("stat", "--json")
        if answer.returncode != 0:
            raise RuntimeError(f"tender stat failed: {answer.stderr}")
        return json.loads(answer.stdout)

    def stat_without_sessions(self) -> dict:
        """The same once it noticed that its clients are gone, or after the time it may take for that."""
        deadline = time.monotonic() + ASK_TIMEOUT_S
        while (stat := self.stat())["sessions"] and time.monotonic() < deadline:
            time.sleep(0.1)
        return stat

    def kill(self) -> None:
        """SIGKILL, as the kernel's out-of-memory killer would."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP: it keeps all it has and answers nothing, until `go_on`."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM and a clean end; killed if it does not end in time. Takes away what an earlier `kill` left."""
        self._end(signal.SIGTERM)
        self._arena_file().unlink(missing_ok=True)

    def __enter__(self) -> Daemon:
        return self.start()

    def __exit__(self, *_exc) -> None:
        self.stop()

    def _command(self) -> list[str]:
        listen = ["--listen", self.address]
        if self.tcp_port is not None:
            listen += ["--listen", f"tcp://127.0.0.1:{self.tcp_port}"]
        arena = ["--arena-size", self.arena, "--arena-path", str(self._arena_file())]
        return [*self._on, str(program("tenderd")), *listen, *arena, *self._flags]

    def _arena_file(self) -> Path:
        # Not in /dev/shm: containers often have 64 MiB there, and what a killed test leaves would stay in memory.
        return self.folder / "arena"

    def _tender(self, *arguments: str) -> subprocess.CompletedProcess:
        command = [str(program("tender")), "--address", self.address, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self.go_on()
        self._process.send_signal(how)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _log_end(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
