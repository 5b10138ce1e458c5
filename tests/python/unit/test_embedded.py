"""The private daemon: started by the first, shared, ended by the last."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from tender_kv import _native
from tender_kv.vllm import embedded
from tender_kv.vllm.embedded import NoDaemon, PrivateDaemon

ARENA = "64MiB"


@pytest.fixture
def base(monkeypatch):
    """Where the daemons of this test live. Not `tmp_path`: a socket's path has to be short."""
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        monkeypatch.setattr(embedded, "_base", lambda: Path(folder))
        yield Path(folder)


@pytest.fixture
def engine(base):
    return str(uuid.uuid4())


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_both_sides_of_a_process_share_one_and_the_last_ends_it(engine):
    first = embedded.acquire(engine, ARENA)
    pid = first.pid
    assert embedded.acquire(engine, ARENA) is first
    assert not embedded._arena(first.folder).exists(), "a killed daemon would leave its memory behind"
    assert _native.run_tool(["tender", "--address", first.address, "ping"]) == 0
    embedded.release(engine)
    assert runs(pid)
    embedded.release(engine)
    assert not runs(pid)
    assert not first.folder.exists()


def test_another_process_finds_it_and_it_outlives_its_starter(engine, base):
    program = (
        "import sys; from tender_kv.vllm import embedded; from pathlib import Path\n"
        "embedded._base = lambda: Path(sys.argv[1])\n"
        "embedded.acquire(sys.argv[2], sys.argv[3]); print('up', flush=True)\n"
        "sys.stdin.read(); embedded.release(sys.argv[2])"
    )
    arguments = [sys.executable, "-c", program, str(base), engine, ARENA]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout.readline() == "up\n"
        daemon = embedded.acquire(engine, ARENA)
        pid = daemon.pid
        starter.stdin.close()
    assert runs(pid)
    embedded.release(engine)
    deadline = time.monotonic() + 10
    while runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not runs(pid)


def test_what_a_killed_engine_left_is_taken_away_by_the_next(engine, base):
    left = PrivateDaemon("another")
    left.join(ARENA)
    os.close(left._use)
    os.kill(left.pid, signal.SIGKILL)
    left._child.wait()
    # As if it had been killed while it started.
    embedded._arena(left.folder).touch()
    used = embedded.acquire(engine, ARENA)
    assert not left.folder.exists()
    assert not embedded._arena(left.folder).exists()
    embedded.sweep(base)
    assert used.folder.exists()
    embedded.release(engine)


def test_one_that_died_is_started_anew_by_the_next_engine_process(engine):
    daemon = embedded.acquire(engine, ARENA)
    os.kill(daemon.pid, signal.SIGKILL)
    daemon._child.wait()
    other = PrivateDaemon(engine)
    other.join(ARENA)
    assert other.pid != daemon._child.pid
    embedded.release(engine)
    other.leave()


def test_a_place_that_is_not_private_is_refused(engine, base):
    daemon = PrivateDaemon(engine)
    daemon.folder.mkdir(mode=0o755)
    os.chmod(daemon.folder, 0o755)
    with pytest.raises(NoDaemon, match="not a private folder"):
        daemon.join(ARENA)


def test_a_daemon_that_cannot_start_says_why(engine):
    with pytest.raises(NoDaemon, match="tenderd ended with"):
        embedded.acquire(engine, "1000TiB")


def test_a_door_that_nobody_opens_yet_is_no_daemon(base, monkeypatch):
    """A daemon listens before it has its arena; should that fail, its engine has to hear why."""
    monkeypatch.setattr(embedded, "_GREETING_LIMIT_S", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(str(base / "door"))
        door.listen()
        assert not embedded._answers(base / "door")


def test_leaving_a_place_that_is_gone_ends_the_daemon_all_the_same(engine):
    daemon = PrivateDaemon(engine)
    daemon.join(ARENA)
    pid = daemon.pid
    shutil.rmtree(daemon.folder)
    daemon.leave()
    assert not runs(pid)
