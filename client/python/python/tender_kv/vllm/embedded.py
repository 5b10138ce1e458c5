"""The private daemon of an engine that was given no address.

Its place is derived from the engine's id, so all of the engine's processes find it; whoever comes first starts it.
Everybody who uses it holds a shared lock on a file as long as the process lives. The last one to let go ends the
daemon; should all of them be killed, the daemon ends by itself when nobody is connected, and the next engine of this
user takes away what is left of it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

DEFAULT_ARENA_BYTES = 1 << 30
MIN_ARENA_BYTES = 32 << 20
"""Less than this is not worth a daemon."""
START_LIMIT_S = 20.0
STOP_LIMIT_S = 5.0
UNUSED_LIMIT = "10s"
_GREETING_LIMIT_S = 1.0
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The preface of a client and its settings, of which it has none (RFC 9113, 3.4)."""

_SHARED_MEMORY = Path("/dev/shm")
_PREFIX = "tender-private-"
_LONGEST_BASE = 40
"""The kernel takes a socket's path of 107 bytes, and the daemon puts a suffix behind one of its two."""

_lock = threading.Lock()
_uses: dict[str, int] = {}
_daemons: dict[str, PrivateDaemon] = {}


class NoDaemon(Exception):
    """A sentence: why there is no private daemon."""


def acquire(engine_id: str, arena_bytes: str | int | None) -> PrivateDaemon:
    """The engine's daemon, started if it does not run. Raises NoDaemon. `release` it."""
    with _lock:
        if engine_id not in _daemons:
            if not _daemons:
                # For engines that end without shutting their connectors down. Registering it again is harmless.
                atexit.unregister(_leave_all)
                atexit.register(_leave_all)
            daemon = PrivateDaemon(engine_id)
            daemon.join(arena_bytes)
            _daemons[engine_id] = daemon
            _uses[engine_id] = 0
        _uses[engine_id] += 1
        return _daemons[engine_id]


def release(engine_id: str) -> None:
    """Gives up one use; the last one in the last process ends the daemon."""
    with _lock:
        _uses[engine_id] -= 1
        if _uses[engine_id] == 0:
            del _uses[engine_id]
            _daemons.pop(engine_id).leave()


def _leave_all() -> None:
    while _daemons:
        _daemons.popitem()[1].leave()


class PrivateDaemon:
    """This process's hold on the engine's daemon."""

    def __init__(self, engine_id: str):
        self.folder = _base() / f"{_prefix()}{hashlib.sha256(engine_id.encode()).hexdigest()[:16]}"
        self._child: subprocess.Popen | None = None
        self._use: int | None = None

    @property
    def address(self) -> str:
        """As the client takes it."""
        return f"unix:{self._socket}"

    @property
    def pid(self) -> int | None:
        """The daemon's process, if it runs: process ids are used again, so its command line is looked at."""
        if self._child is not None:
            return self._child.pid if self._child.poll() is None else None
        return _running(self.folder)

    @property
    def _socket(self) -> Path:
        return self.folder / "tenderd.sock"

    @property
    def _log(self) -> Path:
        return self.folder / "tenderd.log"

    def join(self, arena_bytes: str | int | None) -> None:
        """Starts the daemon unless it runs, and takes part in its use."""
        try:
            sweep(self.folder.parent)
            _make_private(self.folder)
            with _exclusive(self.folder):
                use = _open(self.folder / "users")
                try:
                    fcntl.flock(use, fcntl.LOCK_SH)
                    if not _answers(self._socket):
                        self._start(arena_bytes)
                except BaseException:
                    os.close(use)
                    raise
                self._use = use
        except OSError as error:
            raise NoDaemon(f"a private tenderd cannot be started: {error}") from error

    def leave(self) -> None:
        """Ends the daemon if nobody else uses it."""
        use, self._use = self._use, None
        if use is None:
            return
        try:
            with _exclusive(self.folder):
                if _try_exclusive(use):
                    self._stop()
                    _remove(self.folder)
        except FileNotFoundError:
            # Somebody took the place away under us, and nobody finds that daemon any more.
            self._stop()
        finally:
            os.close(use)

    def _start(self, arena_bytes: str | int | None) -> None:
        arena = modest_arena_bytes() if arena_bytes is None else arena_bytes
        command = [sys.executable, "-m", "tender_kv.daemon", "--name", self.folder.name, "--listen", self.address]
        command += ["--arena-size", str(arena), "--arena-path", str(_arena(self.folder))]
        command += ["--exit-when-unused", UNUSED_LIMIT]
        # A group of its own: Ctrl-C is for the engine, which ends the daemon when it no longer needs it.
        group = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
        # Settings for another daemon on this host are not this one's.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TENDERD_")}
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, **group
            )
        (self.folder / "pid").write_text(str(self._child.pid))
        deadline = time.monotonic() + START_LIMIT_S
        while not _answers(self._socket):
            if self._child.poll() is not None:
                said = self._log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
                raise NoDaemon(f"the private tenderd ended with {self._child.returncode}: {said[-1]}")
            if time.monotonic() > deadline:
                self._stop()
                raise NoDaemon(f"the private tenderd did not answer within {START_LIMIT_S:.0f} s")
            time.sleep(0.02)
        # Clients get the arena by its descriptor. Without a name its memory goes with the daemon, even if that is
        # killed, as an engine does to what its processes started.
        _arena(self.folder).unlink(missing_ok=True)

    def _stop(self) -> None:
        """SIGTERM, and SIGKILL if that does not help. The daemon may be another process's child."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            pid = self.pid
            if pid is None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
            deadline = time.monotonic() + STOP_LIMIT_S
            while self.pid is not None and time.monotonic() < deadline:
                time.sleep(0.02)
        if self._child is not None:
            # It has let go of its command line, and may be busy giving its memory back.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(STOP_LIMIT_S)


def modest_arena_bytes() -> int:
    """The default, cut to half of what the host's shared memory has left: the engine's own processes need some too."""
    free = shutil.disk_usage(_SHARED_MEMORY).free
    arena = min(DEFAULT_ARENA_BYTES, free // 2)
    if arena < MIN_ARENA_BYTES:
        raise NoDaemon(
            f"{_SHARED_MEMORY} has {free >> 20} MiB left, too little for a private tenderd; give the container more "
            "(--shm-size), or start a tenderd and give its address"
        )
    return arena


def sweep(base: Path) -> None:
    """Takes away what killed engines of this user left: places that nobody uses and whose daemon has ended."""
    for folder in base.glob(f"{_prefix()}*"):
        with contextlib.suppress(OSError):
            if _is_private(folder) and _nobody_uses(folder) and _running(folder) is None:
                _remove(folder)


def _nobody_uses(folder: Path) -> bool:
    # A folder without the file is just being made, or is left by a crash at that very moment; it holds no memory.
    use = os.open(folder / "users", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return _try_exclusive(use)
    finally:
        os.close(use)


def _running(folder: Path) -> int | None:
    try:
        pid = int((folder / "pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if folder.name.encode() in command else None


def _remove(folder: Path) -> None:
    arena = _arena(folder)
    for file in (arena, arena.with_name(f"{arena.name}.takeover")):
        file.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _arena(folder: Path) -> Path:
    return _SHARED_MEMORY / folder.name


def _prefix() -> str:
    return f"{_PREFIX}{os.geteuid()}-"


def _base() -> Path:
    base = Path(tempfile.gettempdir())
    return base if len(os.fsencode(base)) <= _LONGEST_BASE else Path("/tmp")


def _make_private(folder: Path) -> None:
    """For this user only. Others can write to its parent, so what is there already is looked at."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not _is_private(folder):
        raise NoDaemon(f"{folder} is not a private folder of this user; remove it")


def _is_private(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _open(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _try_exclusive(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """One process at a time starts or ends the daemon."""
    held = _open(folder / "lock")
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _answers(path: Path) -> bool:
    """Whether a daemon greets there. One that starts has its door before its arena, so that a connection alone says
    nothing yet."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_GREETING_LIMIT_S)
        try:
            probe.connect(str(path))
            probe.sendall(_HTTP2_GREETING)
            return len(probe.recv(1)) == 1
        except OSError:
            return False
