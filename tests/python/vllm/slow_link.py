"""A TCP relay whose rate from the daemon to the client can be limited, so that a load takes many engine steps."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

_PIECE_BYTES = 32 * 1024


class SlowLink:
    """Listens on a free port of 127.0.0.1 and relays to `target_port` there."""

    def __init__(self, target_port: int, bytes_per_s: int | None):
        self._target_port = target_port
        self.bytes_per_s = bytes_per_s
        """None: as fast as it goes. May be changed at any time."""
        self._listener = socket.create_server(("127.0.0.1", 0))

    def start(self) -> int:
        """Relays until the process ends; the port to connect to."""
        threading.Thread(target=self._accept, daemon=True).start()
        return self._listener.getsockname()[1]

    def _accept(self) -> None:
        while True:
            near, _peer = self._listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                # The daemon is down: to its client the connection then ends at once.
                _cut(near)
                continue
            threading.Thread(target=_relay, args=(near, far, lambda: None), daemon=True).start()
            threading.Thread(target=_relay, args=(far, near, lambda: self.bytes_per_s), daemon=True).start()


def _relay(source: socket.socket, sink: socket.socket, rate: Callable[[], int | None]) -> None:
    try:
        while piece := source.recv(_PIECE_BYTES):
            if bytes_per_s := rate():
                time.sleep(len(piece) / bytes_per_s)
            sink.sendall(piece)
    except OSError:
        pass
    _cut(source)
    _cut(sink)


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
