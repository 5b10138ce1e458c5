"""The embedded daemon: a private `tenderd` for one engine, where no address is configured.

All processes of an engine know its engine id, so they find the same private folder; the first one there starts the
daemon, under a lock. It ends with the engine: the process that started it stops it, and if that process was killed,
the daemon ends by itself once nobody uses it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

logger = logging.getLogger("vllm.tender_kv")

DEFAULT_ARENA_BYTES = 1 << 30
MIN_ARENA_BYTES = 32 << 20
"""Below this a cut default is not worth a daemon."""
SHARE_OF_SHARED_MEMORY = 0.5
"""The default takes no more than this of what is free: the engine's own processes need shared memory too."""
START_SECONDS = 20
STOP_SECONDS = 10
EXIT_WHEN_UNUSED = "10s"

_SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "tender-embedded-"
_LONGEST_SOCKET_PATH = 90
"""The kernel takes 107 bytes, and the daemon's descriptor socket has a suffix."""


class EmbeddedError(Exception):
    """The daemon cannot be had; the text is a sentence for the user."""


class EmbeddedDaemon:
    """One process's view of the engine's private daemon."""

    def __init__(self, engine_id: str, arena_bytes: int | None):
        name = hashlib.sha256(engine_id.encode()).hexdigest()[:16]
        self._folder = _base() / f"{_PREFIX}{os.geteuid()}-{name}"
        self._arena = _arena_of(self._folder)
        self._arena_bytes = arena_bytes
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"unix:{self._socket}"

    @property
    def _socket(self) -> Path:
        return self._folder / "tenderd.sock"

    @property
    def _log(self) -> Path:
        return self._folder / "tenderd.log"

    def ensure(self) -> None:
        """Starts the daemon unless one of the engine's other processes has. Raises EmbeddedError."""
        try:
            sweep(self._folder.parent)
            _private_folder(self._folder)
            with _locked(self._folder):
                if not _answers(self._socket):
                    self._start()
        except OSError as error:
            raise EmbeddedError(f"the embedded daemon cannot be started ({error}).") from error

    def stop(self) -> None:
        """Ends the daemon if this process started it. Repeating it is harmless."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _remove(self._folder)

    def _start(self) -> None:
        size = self._arena_bytes or default_arena_bytes()
        command = [sys.executable, "-m", "tender_kv", "tenderd", "--listen", self.address]
        command += ["--arena-size", str(size), "--arena-path", str(self._arena)]
        command += ["--exit-when-unused", EXIT_WHEN_UNUSED]
        # Variables for a daemon of the host are not meant for this one.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TENDERD_")}
        with self._log.open("wb") as log:
            # A session of its own: an interrupt from the terminal is the engine's to handle.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        deadline = time.monotonic() + START_SECONDS
        while not _answers(self._socket):
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = self._log.read_text(errors="replace").strip().splitlines()[-3:]
                self.stop()
                raise EmbeddedError(f"the embedded daemon did not start: {' '.join(said) or 'it said nothing'}.")
            time.sleep(0.01)
        logger.info("Tender runs its own daemon for this engine, with %d MiB of shared memory.", size >> 20)


def default_arena_bytes() -> int:
    """Raises EmbeddedError where there is hardly any shared memory, as in many containers."""
    free = shutil.disk_usage(_SHARED_MEMORY).free
    size = min(DEFAULT_ARENA_BYTES, int(free * SHARE_OF_SHARED_MEMORY) >> 20 << 20)
    if size < MIN_ARENA_BYTES:
        raise EmbeddedError(
            f"{_SHARED_MEMORY} has {free >> 20} MiB left, too little for the embedded daemon; give the container "
            "more (--shm-size), or start a tenderd and name its address."
        )
    return size


def sweep(base: Path) -> None:
    """Takes away what killed engines left: folders of ours that nobody holds and whose daemon is gone."""
    for folder in base.glob(f"{_PREFIX}{os.geteuid()}-*"):
        with contextlib.suppress(OSError):
            if _is_private(folder) and (folder / "lock").exists():
                with _locked(folder, wait=False):
                    fresh = time.time() - folder.stat().st_mtime < START_SECONDS
                    if not fresh and not _answers(folder / "tenderd.sock"):
                        _remove(folder)


def _base() -> Path:
    base = Path(tempfile.gettempdir())
    return base if len(str(base)) + 60 < _LONGEST_SOCKET_PATH else Path("/tmp")


def _arena_of(folder: Path) -> Path:
    return _SHARED_MEMORY / folder.name


def _private_folder(folder: Path) -> None:
    """Makes it, for this user only. Others can write to its parent, so what is there already is looked at."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not _is_private(folder):
        raise EmbeddedError(f"{folder} does not belong to this user alone; remove it.")


def _is_private(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & 0o077 == 0


@contextlib.contextmanager
def _locked(folder: Path, wait: bool = True):
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        _arena_of(folder).unlink()
    shutil.rmtree(folder, ignore_errors=True)
