"""The files of the audit: fair to everybody, and whole after a kill, beside other proxies and damage."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from mcp_context_proxy.trust import MARK
from mcp_context_proxy.trust.audit_file import AuditFile


def file_in(folder: Path, max_bytes: int = 1_000_000, files: int = 3) -> AuditFile:
    return AuditFile(folder, max_bytes, files)


def flood(file: AuditFile, count: int, first: int = 0, **facts: Any) -> None:
    for begin in range(first, first + count, 50):
        entries = ({"time": begin + index, "kind": "call", **facts} for index in range(50))
        lines = [json.dumps(entry).encode() for entry in entries]
        while lines:
            del lines[: file.append(lines)]


@pytest.mark.parametrize("files", [1, 2, 3])
def test_no_flood_of_calls_pushes_out_what_others_or_its_caller_did_before(
    tmp_path: Path, files: int
) -> None:
    file = AuditFile(tmp_path, 20_000, files, fair=True)
    deed: dict[str, Any] = {"server": "work", "tool": "delete_all", "decision": "allowed"}
    flood(file, 50, principal="mallory", **deed)
    flood(file, 50, principal="anna", server="work", tool="echo", decision="allowed")
    file.append([b'{"time":1,"kind":"login","server":"work","event":"in"}'])
    flood(file, 4_000, principal="mallory", server="work", tool="echo", decision="allowed")
    flood(file, 4_000, 50, principal="mallory", **deed)

    found = list(file.entries())
    assert sum(entry["kind"] == "login" for entry in found) == 1
    assert sum(entry.get("principal") == "anna" for entry in found) == 50
    deeds = [entry["time"] for entry in found if entry.get("tool") == "delete_all"]
    assert deeds[:10] == list(range(10)), "the first of them"
    dropped = [entry for entry in found if entry["kind"] == "dropped"]
    assert [entry["principal"] for entry in dropped] == ["mallory"]
    assert dropped[0]["since"] < 1_000
    assert dropped[0]["count"] + len(found) - len(dropped) == 8_101
    sizes = [path.stat().st_size for path in tmp_path.glob("audit*.jsonl")]
    assert len(sizes) == max(files, 2)
    assert max(sizes) <= 20_000


def test_whoever_has_clients_of_several_profiles_has_one_share_of_the_oldest_file(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, 20_000, 2, fair=True)
    flood(file, 50, principal="anna", server="work", tool="echo")
    flood(file, 50, principal="mallory", server="work", tool="delete_all")
    for number in range(30):
        flood(file, 500, principal=f"mallory {MARK}profile {number}", server="work", tool="echo")

    found = list(file.entries())
    assert sum(entry.get("principal") == "anna" for entry in found) == 50
    assert sum(entry.get("tool") == "delete_all" for entry in found) > 20


def test_many_principals_with_dropped_entries_leave_room_for_entries(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, 20_000, 3, fair=True)
    for number in range(500):
        flood(file, 50, principal=f"principal {number}", server="work", tool="echo")

    found = list(file.entries())
    dropped = [entry for entry in found if entry["kind"] == "dropped"]
    assert len(dropped) < 100
    assert sum(entry["count"] for entry in dropped) + len(found) - len(dropped) == 500 * 50
    assert sum(path.stat().st_size for path in tmp_path.glob("audit*.jsonl")) <= 60_000


def test_a_kill_between_the_steps_of_a_rotation_loses_no_entry_and_doubles_none(tmp_path: Path) -> None:
    """The folder is as such a kill leaves it: one file too many, whose entries may be in the older one."""
    lines = [json.dumps({"time": index, "kind": "call", "tool": "echo"}).encode() for index in range(5)]
    (tmp_path / "audit.3.jsonl").write_bytes(b"\n".join(lines[:3]) + b"\n")
    (tmp_path / "audit.2.jsonl").write_bytes(b"\n".join(lines[1:]) + b"\n")
    file = AuditFile(tmp_path, 20_000, 3, fair=True)
    flood(file, 1_000, principal="anna", server="work", tool="echo")

    assert [entry["time"] for entry in file.entries() if "principal" not in entry] == [0, 1, 2, 3, 4]
    assert not (tmp_path / "audit.3.jsonl").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_file_is_closed_when_it_is_renamed_as_windows_wants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(source: Path, target: Path, real: Callable[..., None] = os.replace) -> None:
        assert Path(source) not in [opened.resolve() for opened in Path("/proc/self/fd").iterdir()]
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    flood(file_in(tmp_path, 20_000), 1_000)

    assert (tmp_path / "audit.1.jsonl").exists()


def test_entries_that_a_damaged_disk_has_changed_disturb_no_rotation(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, 20_000, 3, fair=True)
    for facts in ({"principal": [1]}, {"count": "9", "since": []}, {"time": 10**400, "tool": {"a": 1}}):
        file.append([json.dumps({"time": 1, "kind": "dropped", **facts}).encode()])
    flood(file, 2_000, principal="anna", server="work", tool="echo")

    assert sum(entry.get("tool") == "echo" for entry in file.entries()) > 200


def test_of_a_file_that_something_else_has_made_huge_only_the_end_is_read(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.append([b'{"time":1,"kind":"first"}'])
    os.truncate(file.path, 3_000_000_000)
    with file.path.open("ab") as opened:
        opened.write(b'\n{"time":2,"kind":"last"}\n')

    assert [entry["kind"] for entry in file.entries()] == ["last"]


def test_lines_of_several_proxies_do_not_mix_and_none_is_lost_while_files_are_rotated(tmp_path: Path) -> None:
    """Each process opens the file for itself, so several objects in threads are as good as processes."""
    files = [file_in(tmp_path, 20_000, 50) for _ in range(4)]

    async def write(number: int) -> None:
        for index in range(200):
            line = json.dumps({"time": index, "kind": "call", "by": number, "pad": "x" * 100}).encode()
            assert await anyio.to_thread.run_sync(files[number].append, [line]) == 1

    async def all_of_them() -> None:
        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(write, number)

    anyio.run(all_of_them)

    found = [(entry["by"], entry["time"]) for entry in files[0].entries()]
    assert sorted(found) == [(number, index) for number in range(4) for index in range(200)]
    assert len(list(tmp_path.glob("audit.*.jsonl"))) >= 4


@pytest.mark.parametrize(
    ("files", "written", "lost"), [(3, 400, 0), (5, 1_200, 0), (2, 1_200, 1_000), (3, 4_000, 3_500)]
)
def test_whoever_follows_gets_each_entry_once_however_often_the_files_rotate(
    tmp_path: Path, files: int, written: int, lost: int
) -> None:
    """The file that is read may be renamed several times between two looks, or merged into the oldest."""
    file = AuditFile(tmp_path, 20_000, files, fair=True)
    flood(file, 100, tool="echo")
    further = file.follow()
    found = list(iter(lambda: next(further), None))
    for begin in range(100, 100 + 3 * written, written):
        flood(file, written, begin, tool="echo")
        found += iter(lambda: next(further), None)

    times = [entry["time"] for entry in found if entry["kind"] == "call"]
    assert times == sorted(set(times))
    assert times[0] == 0
    assert times[-1] == 99 + 3 * written
    assert len(times) >= 100 + 3 * (written - lost)
