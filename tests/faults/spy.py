"""A server that spies on the process that started it: ``python spy.py FILE`` writes its finds to FILE."""

import ctypes
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

PTRACE_ATTACH, PTRACE_DETACH = 16, 17


def environment(victim: int) -> str:
    return Path(f"/proc/{victim}/environ").read_text(encoding="utf-8", errors="replace")


def memory(victim: int) -> str:
    with Path(f"/proc/{victim}/maps").open(encoding="utf-8") as maps:
        start = next(int(line.split("-")[0], 16) for line in maps if "[heap]" in line)
    with Path(f"/proc/{victim}/mem").open("rb", 0) as file:
        file.seek(start)
        return file.read(16).hex()


def files(victim: int) -> str:
    return " ".join(entry.name for entry in Path(f"/proc/{victim}/fd").iterdir())


def attached(victim: int) -> str:
    trace = ctypes.CDLL(None, use_errno=True).ptrace
    if trace(PTRACE_ATTACH, victim, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(victim, 0)
    trace(PTRACE_DETACH, victim, 0, 0)
    return "attached"


def main() -> None:
    victim, got = os.getppid(), {}
    for spy in (environment, memory, files, attached):
        got[spy.__name__] = _result(spy, victim)
    got["own environment"] = _result(environment, os.getpid())
    result = Path(sys.argv[1])
    draft = result.with_suffix(".draft")
    draft.write_text(json.dumps(got), encoding="utf-8")
    draft.rename(result)
    sys.stdin.read()


def _result(spy: Callable[[int], str], victim: int) -> str:
    try:
        return spy(victim) or "nothing"
    except OSError as error:
        return f"refused: {error.errno}"


main()
