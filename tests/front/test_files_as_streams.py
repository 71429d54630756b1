"""A person at a shell connects files and the null device where a host connects pipes."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.proxies import command
from support.raw_client import INITIALIZE
from support.servers import Workshop


@pytest.fixture
def proxy(tmp_path: Path) -> list[str]:
    return command(Workshop(tmp_path).config())


def test_requests_can_come_from_a_file_and_answers_go_to_one(proxy: list[str], tmp_path: Path) -> None:
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    asked.write_text(json.dumps(INITIALIZE) + "\n", encoding="utf-8")

    with asked.open("rb") as stdin, answered.open("wb") as stdout:
        subprocess.run(proxy, stdin=stdin, stdout=stdout, check=True, timeout=30)

    assert [json.loads(line)["id"] for line in answered.read_text("utf-8").splitlines()] == [1]


def test_an_empty_input_ends_the_proxy(proxy: list[str]) -> None:
    done = subprocess.run(proxy, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=True)

    assert done.stdout == b""


def test_a_person_at_a_terminal_is_answered_while_the_input_is_open(proxy: list[str]) -> None:
    ours, terminal = os.openpty()
    with subprocess.Popen(proxy, stdin=terminal, stdout=terminal, stderr=subprocess.DEVNULL) as running:
        os.close(terminal)
        with os.fdopen(ours, "r+b", 0) as shell:
            shell.write(json.dumps(INITIALIZE).encode() + b"\n")
            said = b""
            while b'"result"' not in said:
                said += shell.read(4096)
            shell.write(b"\x04")  # the end of the input
            assert running.wait(timeout=30) == 0
