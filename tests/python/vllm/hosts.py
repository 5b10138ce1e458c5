"""Several hosts on this machine, as network namespaces that `tests/hosts.sh` makes, and a directory on one of them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "hosts.sh"
_PREFIX = "tender-hosts"
_START_LIMIT_S = 20


class Hosts:
    """Some hosts behind one bridge, numbered from 1. They share the file system: Unix sockets work across them."""

    def __init__(self, count: int):
        self._name = f"{_PREFIX}{os.getpid()}"
        self._count = count

    def __enter__(self) -> Hosts:
        subprocess.run([SCRIPT, "sweep", _PREFIX], check=True)
        subprocess.run([SCRIPT, "up", self._name, str(self._count)], check=True)
        return self

    def __exit__(self, *_exc) -> None:
        subprocess.run([SCRIPT, "down", self._name], check=True)

    def address(self, host: int) -> str:
        return f"10.77.0.{host}"

    def on(self, host: int) -> list[str]:
        """Put before a command, it runs there."""
        return ["ip", "netns", "exec", f"{self._name}-{host}"]

    def change(self, what: str, host: int, *more: str) -> list[str]:
        """A command that changes that host's network."""
        return [str(SCRIPT), what, self._name, str(host), *more]


class Directory:
    """A Redis server on a host."""

    def __init__(self, hosts: Hosts, host: int, folder: Path):
        self._port = 6379
        self.uri = f"redis://{hosts.address(host)}:{self._port}"
        self._on = hosts.on(host)
        self._folder = folder
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> Directory:
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [*self._on, "redis-server", "--port", str(self._port), "--bind", "0.0.0.0", "--protected-mode", "no"]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self._folder)]
        with (self._folder / "redis.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_LIMIT_S
        while subprocess.run(self.ask("ping"), capture_output=True, check=False).stdout != b"PONG\n":
            assert time.monotonic() < deadline, "redis-server does not answer; is it installed? (make setup)"
            time.sleep(0.05)
        return self

    def __exit__(self, *_exc) -> None:
        # It may have been stopped by the test.
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        self._process.wait()

    def ask(self, *words: str) -> list[str]:
        """A command that asks it."""
        return [*self._on, "redis-cli", "-p", str(self._port), *words]

    def signalled(self, name: str) -> list[str]:
        """A command that sends it a signal."""
        return ["kill", f"-{name}", str(self._process.pid)]
