"""Runs a command of the proxy in a process that the fork server forks: ``launch.py SOCKET ARGUMENT...``.

It passes its standard streams, environment, folder and signals on, and exits as the command does. If it is
killed, so is the command.
"""

import json
import os
import signal
import socket
import sys

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    path, *arguments = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        for number in FORWARDED:
            signal.signal(number, lambda number, frame: connection.send(bytes([number])))
        request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
        text = json.dumps(request).encode()
        socket.send_fds(connection, [len(text).to_bytes(4, "big")], [0, 1, 2])
        connection.sendall(text)
        # The command alone has them now, so that a pipe ends when the command ends it.
        with open(os.devnull, "r+b") as nothing:
            for descriptor in (0, 1, 2):
                os.dup2(nothing.fileno(), descriptor)
        status = int(connection.recv(100) or 1)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
