"""Imports of a proxy over stdio until its start, a list and a call: nothing that only a search needs.

Names are looked at, not times. Python itself reports each import, and each search for garbage, on stderr.
"""

import gc
import gzip
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.ledger import until
from support.proxies import real_command
from support.servers import TOOLS, Workshop, tool
from support.tables import each
from support.wires import stdio

from mcp_context_proxy.system.later import importing, pattern

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="its servers are started by the SDK")

REPORT = {"PYTHONPROFILEIMPORTTIME": "1"}
IMPORTED = re.compile(r"^import time:[^|]*\|[^|]*\|\s*(\S+)$", re.MULTILINE)

FOR_SEARCHES = (
    *("numpy", "onnxruntime", "tokenizers"),
    *(f"mcp_context_proxy.retrieval.{name}" for name in ("queries", "purposes")),
)
FOR_DOCUMENTS = ("yaml",)
FOR_HTTP = ("mcp", "pydantic", "starlette", "uvicorn", "httpx2")
FOR_TERMINALS = ("rich", "prometheus_client")
FOR_TEAMS = (
    "psycopg",
    "jwt",
    "cryptography",
    "mcp_context_proxy.cluster",
    "mcp_context_proxy.store.postgres",
)


@pytest.fixture(scope="module")
async def used(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[set[str], set[str]]]:
    """The modules imported until a call was answered, and those that a search added."""
    folder = tmp_path_factory.mktemp("imports")
    workshop = Workshop(folder)
    # The second one is a message of 400 KB.
    for server in ("github", "linear"):
        plain = folder / f"{server}.tools.json"
        plain.write_bytes(gzip.decompress((TOOLS / f"{server}.json.gz").read_bytes()))
        workshop.server(server, tools_file=str(plain), ledger=None)
    table = {"content": [{"type": "text", "text": 'a,"b",,1\n' * 20_000}]}
    files = {"read": [{"large": 2_000_000}], "sum": [{"result": table}]}
    workshop.server("files", tools=[tool("read"), tool("sum")], calls=files, ledger=None)
    # Statistics count the tokens of all tools once one was called, beside whatever happens then.
    settings = {"expose": {"mode": "all"}, "statistics": {"enabled": False}}
    config = workshop.config(store={"path": "store.db"}, **settings)
    log = folder / "stderr"
    with log.open("wb") as stderr:
        async with stdio(real_command(config), env=REPORT, stderr=stderr) as client:
            await client.until_listed("github__create_issue")
            await client.until_listed("linear__linear_getIssues")
            assert "isError" not in await client.call("github__create_issue", {})
            await client.until_listed("files__read")
            for name in ("files__read", "files__sum"):
                assert "isError" not in await client.call(name, {})
            before = imported(log)
            await client.call("search_available_tools", {"query": "open a bug report"})
            after = imported(log)
    yield before, after - before
    workshop.close()


def imported(log: Path) -> set[str]:
    return set(IMPORTED.findall(log.read_text(encoding="utf-8", errors="replace")))


@each("name", [*FOR_SEARCHES, *FOR_DOCUMENTS, *FOR_HTTP, *FOR_TERMINALS, *FOR_TEAMS])
async def test_a_list_and_a_call_import_nothing_that_they_do_not_use(
    used: tuple[set[str], set[str]], name: str
) -> None:
    before, _ = used

    assert "mcp_context_proxy.server.tools_call" in before
    assert [module for module in before if module == name or module.startswith(f"{name}.")] == []


async def test_an_expression_is_compiled_at_its_first_use() -> None:
    expression = pattern("(")

    with pytest.raises(re.error):
        expression.search("text")


async def test_a_deferred_expression_finds_what_a_compiled_one_finds() -> None:
    deferred, compiled = pattern("a(b)?", re.IGNORECASE), re.compile("a(b)?", re.IGNORECASE)

    for text in ("", "xAb ab", "c"):
        assert deferred.findall(text) == compiled.findall(text)
        assert deferred.sub("-", text) == compiled.sub("-", text)
        assert bool(deferred.fullmatch(text)) == bool(compiled.fullmatch(text))


async def test_the_first_search_imports_the_rest(used: tuple[set[str], set[str]]) -> None:
    _, later = used

    assert {"onnxruntime", "tokenizers"} <= later
    assert not later & {*FOR_TEAMS, "numpy.ma"}
    assert any(module.startswith("numpy.") for module in later)


async def test_an_import_leaves_the_garbage_collector_on_or_off() -> None:
    was_searched, seen = gc.isenabled(), list[bool]()
    try:
        for before in (gc.enable, gc.disable):
            before()
            with importing():
                seen.append(gc.isenabled())
            seen.append(gc.isenabled())
    finally:
        gc.unfreeze()
        (gc.enable if was_searched else gc.disable)()

    assert seen == [False, True, False, False]


SAYS_WHETHER_IT_SEARCHES = """
import gc, sys, threading, time

def tell():
    while True:
        time.sleep(0.05)
        print("searches for garbage:", gc.isenabled(), file=sys.stderr, flush=True)

threading.Thread(target=tell, daemon=True).start()
"""


async def test_the_garbage_collector_is_on_while_a_proxy_serves(workshop: Workshop, tmp_path: Path) -> None:
    # Python imports this module in each process with this path. Calls leave too little for a search.
    (tmp_path / "sitecustomize.py").write_text(SAYS_WHETHER_IT_SEARCHES)
    workshop.server("mail", tools=[tool("send_mail")], ledger=None)
    log = tmp_path / "stderr"
    with log.open("wb") as stderr:
        config = workshop.config(statistics={"enabled": False})
        async with stdio(real_command(config), env={"PYTHONPATH": str(tmp_path)}, stderr=stderr) as client:
            await client.until_listed("mail__send_mail")
            assert "isError" not in await client.call("mail__send_mail", {})
            await until(lambda: log.read_bytes().endswith(b"True\n"))


def test_a_proxy_that_keeps_its_files_imports_whatever_has_not_been_imported_before() -> None:
    """Python itself may have imported `importlib.util` at its start, or may not."""
    program = (
        "import sys; from mcp_context_proxy.system import later; later.keep_files(); "
        "sys.modules.pop('importlib.util', None); import colorsys, mcp_context_proxy.retrieval.purposes"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
