"""Export and import of interactions: nothing twice, nothing pushed out, odd rows reported by their place."""

import json
import os
import resource
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.clocks import Clock

from mcp_context_proxy.errors import DataFileError
from mcp_context_proxy.interactions import InteractionMemory
from mcp_context_proxy.interactions.transfer import MessageTable, export_file, export_lines, import_file
from mcp_context_proxy.store.memory import InteractionScope
from mcp_context_proxy.store.opening import Store, open_store

from .conftest import DAY, NOW, Words, memory_in, said


def contents(memory: InteractionMemory) -> list[str]:
    return [one.interaction.content for one in memory.recent(limit=100).results]


def written(
    path: Path, rows: list[tuple[Any, ...]], columns: str = "agent_name, role, content, timestamp"
) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE messages (id INTEGER PRIMARY KEY, {columns})")
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT INTO messages ({columns}) VALUES ({marks})", rows)
    return path


def test_what_is_exported_can_be_imported_elsewhere(
    memory: InteractionMemory, store: Store, words: Words, clock: Clock, tmp_path: Path
) -> None:
    memory.add([said("one\nwith two lines", 3), said("two", 2, agent="coder"), said("three", 1)])
    file = tmp_path / "interactions.jsonl"
    file.write_bytes(b"".join(export_lines(store.interactions, InteractionScope())))
    with open_store("memory") as elsewhere:
        other = memory_in(elsewhere, words, clock)
        done = import_file(other, file)
        assert (done.read, done.kept, done.known) == (3, 3, 0)
        assert contents(other) == contents(memory)
        again = import_file(other, file)
        assert (again.kept, again.known) == (0, 3)


def test_an_export_that_cannot_be_written_leaves_the_former_one(
    memory: InteractionMemory, store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "exported" / "interactions.jsonl"
    memory.add([said("one")])
    assert export_file(store.interactions, InteractionScope(), file) == 1
    former = file.read_bytes()
    memory.add([said("words " * 1_000)])

    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, most))
    try:
        with pytest.raises(OSError, match="too large"):
            export_file(store.interactions, InteractionScope(), file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    assert file.read_bytes() == former
    assert list(file.parent.iterdir()) == [file]


def test_the_export_can_be_limited_to_an_agent_or_a_type(memory: InteractionMemory, store: Store) -> None:
    memory.add([said("one"), said("two", agent="coder"), said("three", kind="call")])
    (line,) = export_lines(store.interactions, InteractionScope("coder"))

    assert json.loads(line) == {
        "agent_name": "coder",
        "interaction_type": "message",
        "content": "two",
        "time": NOW,
    }


def test_a_table_of_messages_is_imported_with_its_roles_and_times(
    memory: InteractionMemory, store: Store, tmp_path: Path
) -> None:
    rows = [
        ("planner", "user", "in seconds", NOW - DAY),
        ("planner", "assistant", "in milliseconds", (NOW - 2 * DAY) * 1000),
        (None, None, "in words", "2020-05-01 12:00:00"),
    ]
    steps: list[tuple[int, int]] = []
    done = import_file(
        memory, written(tmp_path / "old.db", rows), on_progress=lambda *step: steps.append(step)
    )

    assert (done.read, done.kept, done.unusable) == (3, 3, 0)
    assert steps == [(3, 3)]
    kept = [(one.agent_name, one.interaction_type, one.time) for one in store.interactions.after(0, 10)]
    assert kept == [
        ("unknown", "message", 1_588_334_400.0),
        ("planner", "assistant", NOW - 2 * DAY),
        ("planner", "user", NOW - DAY),
    ]


def test_columns_may_have_other_names(memory: InteractionMemory, tmp_path: Path) -> None:
    path = written(tmp_path / "old.db", [("hello", 5.0)], columns="body, at")
    done = import_file(memory, path, MessageTable(content="body", time="at"))

    assert done.kept == 1
    told = "table 'messages' has no column 'content' for the text: name the one that has it, of at, body, id"
    with pytest.raises(DataFileError, match=told):
        import_file(memory, path)
    with pytest.raises(DataFileError, match="has no column 'timestamp' for the time: name"):
        import_file(memory, path, MessageTable(content="body"))
    with pytest.raises(DataFileError, match="no table 'chat'; it has messages"):
        import_file(memory, path, MessageTable(name="chat"))


def test_rows_that_are_no_interaction_are_left_out_and_told(
    memory: InteractionMemory, tmp_path: Path
) -> None:
    rows = [("a", "user", "good", NOW), ("a", "user", "bad", "yesterday"), ("a", "user", b"\0", NOW)]
    done = import_file(memory, written(tmp_path / "old.db", rows))

    assert (done.kept, done.unusable) == (1, 2)
    assert done.reasons == ["row 2: its time cannot be read", "row 3: its text cannot be read"]
    file = tmp_path / "lines.jsonl"
    file.write_text('{"agent_name": "a"}\n\nnothing\n')
    assert import_file(memory, file).unusable == 2


def test_what_a_damaged_table_still_has_is_imported_and_its_end_is_told(
    memory: InteractionMemory, tmp_path: Path
) -> None:
    rows = [("a", "user", f"message {number} {'x' * 200}", NOW - number) for number in range(2000)]
    whole = written(tmp_path / "old.db", rows).read_bytes()
    half, garbled, header = (tmp_path / f"{name}.db" for name in ("half", "garbled", "header"))
    half.write_bytes(whole[: len(whole) // 2])
    middle = len(whole) // 2
    garbled.write_bytes(whole[:middle] + b"\xa5" * 8192 + whole[middle + 8192 :])
    header.write_bytes(whole[:100] + b"\xa5" * 3996 + whole[4096:])

    for path in (half, garbled):
        done = import_file(memory, path)
        assert 900 < done.kept + done.known < 1100
        assert (done.unusable, done.no_room) == (1, 0)
        assert done.reasons == [f"row {done.read} and those after it: database disk image is malformed"]
    with pytest.raises(DataFileError, match="malformed"):
        import_file(memory, header)


def test_a_text_of_a_table_that_is_not_utf_8_does_not_stop_the_import(
    memory: InteractionMemory, tmp_path: Path
) -> None:
    path = written(tmp_path / "old.db", [("a", "user", "before", NOW), ("a", "user", "after", NOW - 2)])
    with closing(sqlite3.connect(path)) as connection:
        query = "UPDATE messages SET content = cast(x'ff626164' AS TEXT) WHERE content = 'before'"
        connection.execute(query)
        connection.commit()

    assert import_file(memory, path).kept == 2
    assert contents(memory) == ["\ufffdbad", "after"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_lines_begin_after_a_byte_order_mark(
    memory: InteractionMemory, tmp_path: Path, encoding: str
) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text('{"content": "gr\u00fcn"}\r\n{"content": "rot"}\n', encoding=encoding, newline="")
    done = import_file(memory, file)

    assert (done.kept, done.unusable) == (2, 0)
    assert sorted(contents(memory)) == ["gr\u00fcn", "rot"]


def test_an_array_of_messages_is_told_how_to_become_lines(memory: InteractionMemory, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text('[{"content": "one"},\n{"content": "two"}]', encoding="utf-8")

    with pytest.raises(DataFileError, match="one array of JSON; write a line for each message"):
        import_file(memory, file)


def test_a_line_that_hardly_ends_is_refused(memory: InteractionMemory, tmp_path: Path) -> None:
    file = tmp_path / "zeros"
    file.write_bytes(b'{"content": "one"}\n' + bytes(20 * 1024 * 1024))

    with pytest.raises(DataFileError, match="zeros:2: the line has no end within 16,777,216 characters"):
        import_file(memory, file)


def test_lines_of_messages_need_a_text_alone(memory: InteractionMemory, store: Store, tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"
    lines = [
        {"role": "user", "content": "what is the plan"},
        {"role": "assistant", "content": "to ship", "timestamp": "2020-05-01 12:00:00"},
        {"role": "user", "content": [{"type": "image"}, {"text": 1}, "no"]},
        {"role": "user", "content": "when", "timestamp": "soon"},
        {"role": "tool", "content": [{"type": "text", "text": "done"}, {"type": "text", "text": "at 5"}]},
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n[1]\n", encoding="utf-8")
    os.utime(file, (NOW - 50, NOW - 50))
    done = import_file(memory, file)

    assert (done.kept, done.unusable) == (3, 3)
    assert done.reasons == [
        "line 3: its text, 'content', cannot be read",
        "line 4: its time cannot be read",
        "line 6: it is no object of JSON",
    ]
    kept = [(one.interaction_type, one.content, one.time) for one in store.interactions.after(0, 10)]
    assert kept == [
        ("assistant", "to ship", 1_588_334_400.0),
        ("user", "what is the plan", NOW - 50),
        ("tool", "done\nat 5", NOW - 50),
    ]
    assert {one.agent_name for one in store.interactions.after(0, 10)} == {"unknown"}
    assert import_file(memory, file).known == 3


@pytest.mark.parametrize(
    "line",
    [
        '{"content": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"content": "text", "time": 1' + "0" * 400 + "}",
        '{"content": "text", "time": 1e400}',
        '{"content": "text", "time": "0000-00-00"}',
    ],
    ids=["nested", "digits", "exponent", "date"],
)
def test_a_line_that_cannot_be_read_costs_no_other(
    memory: InteractionMemory, store: Store, tmp_path: Path, line: str
) -> None:
    file = tmp_path / "messages.jsonl"
    file.write_text(f'{line}\n{{"content": "kept"}}\n', "utf-8")
    done = import_file(memory, file)

    assert (done.read, done.kept, done.unusable) == (2, 1, 1)


def test_fields_of_lines_may_have_other_names(
    memory: InteractionMemory, store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "chat.jsonl"
    file.write_text('{"who": "a", "text": "hello", "at": 5}\n', encoding="utf-8")
    done = import_file(memory, file, MessageTable(agent="who", content="text", time="at"))

    assert (done.kept, [one.agent_name for one in store.interactions.after(0, 10)]) == (1, ["a"])


def test_an_import_pushes_nothing_out_and_takes_the_latest(
    store: Store, words: Words, clock: Clock, tmp_path: Path
) -> None:
    memory = memory_in(store, words, clock, rows=3)
    memory.add([said("was there", 50)])
    rows = [("a", "user", f"{days} days ago", NOW - days * DAY) for days in range(9, 4, -1)]
    done = import_file(memory, written(tmp_path / "old.db", rows))

    assert (done.kept, done.no_room) == (2, 3)
    assert contents(memory) == ["5 days ago", "6 days ago", "was there"]


def test_messages_of_the_future_are_not_imported_twice(
    memory: InteractionMemory, clock: Clock, tmp_path: Path
) -> None:
    """As those of a program that writes local times, east of Greenwich."""
    path = written(tmp_path / "old.db", [("a", "user", "in two hours", time.time() + 7200)])
    clock.now = time.time()
    first = import_file(memory, path)
    clock.now += 60
    again = import_file(memory, path)

    assert (first.kept, again.kept, again.known) == (1, 0, 1)


def test_an_interrupted_import_goes_on_where_it_ended(memory: InteractionMemory, tmp_path: Path) -> None:
    rows = [("a", "user", f"message {number}", NOW - number) for number in range(700)]
    path = written(tmp_path / "old.db", rows)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_file(memory, path, on_progress=interrupt)
    done = import_file(memory, path)
    assert (done.known, done.kept) == (500, 200)
