"""A proxy before a PostgreSQL server that loses the answers to commits."""

import socket
import threading
from pathlib import Path

from support.postgres import PostgresServer


class CuttingProxy:
    """Passes bytes between clients and the server, and swallows the answer to a COMMIT when told to."""

    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self._target = str(server.folder / ".s.PGSQL.5432")
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        self.cuts = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            committing = threading.Event()
            for source, target, inward in ((client, server, True), (server, client, False)):
                thread = threading.Thread(
                    target=self._pass, args=(source, target, inward, committing), daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _pass(
        self, source: socket.socket, target: socket.socket, inward: bool, committing: threading.Event
    ) -> None:
        with source:
            while data := self._received(source):
                if inward and b"COMMIT" in data and self.cuts > 0:
                    self.cuts -= 1
                    committing.set()
                elif not inward and committing.is_set():
                    # The server has committed; its client never hears of that.
                    break
                try:
                    target.sendall(data)
                except OSError:
                    break
            for each in (source, target):
                try:
                    each.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue

    def _received(self, source: socket.socket) -> bytes:
        try:
            return source.recv(65_536)
        except OSError:
            return b""

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)
