"""Runs a command of the proxy in a process that the fork server forks.

Its command line is ``launch.py SOCKET ARGUMENT...``. It passes its standard streams, environment,
folder and signals on, and exits as the command does. If it is killed, so is the command.
"""

import _signal as signal  # the modules without the underscore take longer to import than this program to run
import _socket as socket
import marshal
import os
import sys
from array import array

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    path, *arguments = sys.argv[1:]
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    for number in FORWARDED:
        signal.signal(number, lambda number, frame: connection.send(bytes([number])))
    data = marshal.dumps({"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()})
    streams = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [0, 1, 2]))]
    connection.sendmsg([len(data).to_bytes(4, "big")], streams)
    connection.sendall(data)
    # The command alone has them now, so that a pipe ends when the command ends it.
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    status = int(connection.recv(100) or 1)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
