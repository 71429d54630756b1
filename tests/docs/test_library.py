"""docs/library.md: its example runs as it stands, and its names can be imported."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import mcp_context_proxy
from mcp_context_proxy import library

from .conftest import Page, page


@pytest.fixture
def text() -> Page:
    return page("docs/library.md")


OPENAI = """
import json
from types import SimpleNamespace as Made

class OpenAI:
    def __init__(self):
        self.chat = Made(completions=Made(create=self.create))

    def create(self, model, messages, tools):
        assert [tool["type"] for tool in tools] == ["function"]
        function = tools[0]["function"]
        assert (function["name"], function["parameters"]["required"]) == ("get_weather", ["city"])
        assert messages[0] == {"role": "system", "content": "Be brief."}
        last = messages[-1]
        if last["role"] == "tool":
            assert last["tool_call_id"] == "call_1"
            return self.answer(None, last["content"] + "!")
        called = Made(name=function["name"], arguments=json.dumps({"city": "Oslo"}))
        return self.answer([Made(id="call_1", function=called)], None)

    def answer(self, calls, text):
        return Made(choices=[Made(message=Made(tool_calls=calls, content=text))])
"""

ANTHROPIC = """
from types import SimpleNamespace as Made

class Anthropic:
    def __init__(self):
        self.messages = Made(create=self.create)

    def create(self, model, max_tokens, system, messages, tools):
        assert [tool["name"] for tool in tools] == ["get_weather"]
        assert tools[0]["input_schema"]["required"] == ["city"]
        assert system == "Be brief."
        (block, *_) = messages[-1]["content"]
        if isinstance(block, dict):
            assert (block["type"], block["tool_use_id"]) == ("tool_result", "toolu_1")
            return Made(content=[Made(type="text", text=block["content"] + "!")])
        called = Made(type="tool_use", id="toolu_1", name="get_weather", input={"city": "Oslo"})
        return Made(content=[called])
"""


def printed_by(example: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_the_example_runs_and_selects(text: Page, tmp_path: Path) -> None:
    example, *_ = text.blocks("python")
    lines = printed_by(example, tmp_path)

    assert lines[0].split()[:3] == ["always", "rule", "tone"]
    assert lines[1].split()[:3] == ["agent", "tool", "send_mail"]
    assert "'mail'" in lines[-1]
    assert "'tone'" not in lines[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "module", "fake"), [(1, "openai", OPENAI), (2, "anthropic", ANTHROPIC)])
def test_the_agent_loops_run_with_a_client_that_answers_like_the_real_one(
    text: Page, tmp_path: Path, number: int, module: str, fake: str
) -> None:
    (tmp_path / f"{module}.py").write_text(fake, encoding="utf-8")
    example = list(text.blocks("python"))[number]

    assert printed_by(example, tmp_path) == ["Rain in Oslo!"]


def test_the_example_of_interactions_runs_and_recalls(text: Page, tmp_path: Path) -> None:
    *_, example, _ = text.blocks("python")
    (line,) = printed_by(example, tmp_path)

    said, _, score = line.rpartition(" ")
    assert said == "planner We ship on Friday."
    assert float(score) > 0
    assert list(tmp_path.iterdir()) == []


def test_the_example_of_embeddings_runs_and_finds_the_nearest_text(text: Page, tmp_path: Path) -> None:
    *_, example = text.blocks("python")
    dimension, cosine, nearest = printed_by(example, tmp_path)

    assert dimension == "384"
    assert 0 < float(cosine) < 1
    assert nearest.startswith("[(1, ")


def test_every_public_name_can_be_imported_from_the_package(text: Page) -> None:
    for name in library.__all__:
        assert getattr(mcp_context_proxy, name) is getattr(library, name)
    imported = re.findall(r"from mcp_context_proxy import (.*)", text.text)
    assert len(imported) == 5
    assert set(", ".join(imported).split(", ")) <= set(library.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Proxy'"):
        _ = mcp_context_proxy.Proxy  # type: ignore[attr-defined]
