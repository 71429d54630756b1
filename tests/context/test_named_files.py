"""A request that names files brings the rules for these files, and no document that only has their name."""

from functools import partial
from pathlib import Path

from support.growth import costs_more
from support.tables import each

from mcp_context_proxy.catalog.documents import load_documents
from mcp_context_proxy.config import DocumentsConfig, Limits
from mcp_context_proxy.context import Mode
from mcp_context_proxy.items import Kind
from mcp_context_proxy.library import Catalog, ContextEngine, reference, tool
from mcp_context_proxy.retrieval.links import file_for, files_named

TOOLS = (
    tool("read_file", "Read the contents of a file from disk", server="files"),
    tool("write_file", "Write the contents of a file to disk", server="files"),
    tool("search_code", "Search the source code of a repository", server="code"),
    tool("get_time", "Tell the time in a city", server="clock"),
    tool("post_message", "Post a message to a channel of the team chat", server="chat"),
)


@each(
    ("text", "files"),
    [
        ("fix the bug in migrations/0042_orders.sql", ["migrations/0042_orders.sql"]),
        ("@src/api/users.ts:42 and `Lib/a.RB`, (b.py).", ["src/api/users.ts", "lib/a.rb", "b.py"]),
        (r"C:\repo\src\a.ts and ./b.ts, ../c.ts", ["repo/src/a.ts", "b.ts", "c.ts"]),
        ("app/[id]/(shop)/page.tsx", ["app/[id]/(shop)/page.tsx"]),
        (
            "a/b.ts(10,5): error TS2345 at a.ts:3:7 and c.ts#L10-L20, d.md#L3",
            ["a/b.ts", "a.ts", "c.ts", "d.md"],
        ),
        ("see file:///repo/src/a.ts, report(1).pdf", ["repo/src/a.ts", "report(1).pdf"]),
        ("edit .github/workflows/ci", [".github/workflows/ci"]),
        ("mail jane.doe@acme.com, and ask bob@shop.co.uk about icon@2x.png", ["icon@2x.png"]),
        ("read @package.json and pkg/@acme/ui/index.ts", ["package.json", "pkg/@acme/ui/index.ts"]),
        ("use Node.js, e.g. v1.2 and/or https://a.b/c.py at 5.30 p.m.", []),
    ],
)
def test_the_files_that_a_request_names(text: str, files: list[str]) -> None:
    assert files_named(text) == files


@each(
    ("patterns", "fitting", "other"),
    [
        ("src/api/**/*.ts", ["src/api/a.ts", "src/api/b/a.ts", "pkg/src/api/a.ts"], ["src/a.ts"]),
        ("*.sql", ["a.sql", "migrations/1.sql"], ["a.sql.md"]),
        ("**/*.{ts,tsx}", ["a.ts", "x/a.tsx"], ["a.t"]),
        ("src/", ["src/a", "src/b/c.d"], ["lib/src.c"]),
        ("{src/,doc/a}", ["src/b/c.d", "doc/a"], ["doc/b"]),
        ("/src/*.ts", ["src/a.ts"], ["src/b/a.ts"]),
        ("**", ["a.b"], []),
        ("Docs/**", ["docs/a.md"], ["a.md"]),
        ("src/** !src/gen/** !*.test.ts", ["src/a.ts"], ["src/gen/a.ts", "src/a.test.ts", "b.ts"]),
        ("src/** !src/gen/** src/gen/mine/", ["src/gen/mine/a.ts"], ["src/gen/a.ts"]),
    ],
)
def test_patterns_mean_files_as_those_of_editors_do(
    patterns: str, fitting: list[str], other: list[str]
) -> None:
    assert [file for file in (*fitting, *other) if file_for(patterns.split(), [file])] == fitting


def test_no_patterns_of_a_repository_delay_a_request_that_names_files() -> None:
    braces = "{" + ",".join(map(str, range(40))) + "}"
    patterns = [f"{braces}{'**/*/' * 9}{number}" for number in range(100)]
    files = [f"a/b/c/d/e/{number}.py" for number in range(20)]
    plain = [
        f"{folder}/**/*.{end}" for folder in ("src", "lib", "apps", "web") for end in ("ts", "js", "sql")
    ]

    assert not costs_more(25, partial(file_for, files=files), patterns, plain)
    assert file_for(plain, [*files, "src/a/b/c/d/e.js"]) == "src/a/b/c/d/e.js"


async def test_a_rule_for_files_comes_with_a_request_that_names_one_and_brings_the_tool_that_it_names(
    tmp_path: Path,
) -> None:
    text = "Say it in the chat with `post_message` before you touch anything."
    (tmp_path / "db.md").write_text(f"---\npaths: migrations/**/*.sql\n---\n{text}\n", encoding="utf-8")
    documents = load_documents([DocumentsConfig(path=tmp_path)], Limits()).documents
    with ContextEngine(Catalog([*TOOLS, *documents])) as engine:
        named = await engine.build("what time is it in migrations/2026/o.sql")
        other = await engine.build("what time is it in orders.py")

    assert [one.name for one in named.of(Kind.RULE)] == ["db"]
    (chat,) = (one for one in named.items if one.name == "chat__post_message")
    assert (chat.include_mode, chat.why) == (Mode.EXPANSION, "named in db")
    assert other.of(Kind.RULE) == ()
    assert not any(one.include_mode is Mode.EXPANSION for one in other.items)


async def test_rules_for_a_named_file_come_nearest_to_the_request_first(tmp_path: Path) -> None:
    texts = {
        "a": "Pictures have a description for people who do not see them.",
        "b": "Colors come from the palette of the brand.",
        "c": "Texts are translated into every language of the shop.",
        "d": "Passwords are hashed with a salt before they are stored.",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.md").write_text(f"---\npaths: src/**/*.ts\n---\n{text}\n", encoding="utf-8")
    documents = load_documents([DocumentsConfig(path=tmp_path)], Limits()).documents
    with ContextEngine(Catalog([*TOOLS, *documents])) as engine:
        search = "search the source code of the repository for"
        secret = await engine.build(f"{search} passwords in src/a.ts")
        colors = await engine.build(f"{search} colors in src/a.ts")

    assert secret.of(Kind.RULE)[0].name == "d"
    assert colors.of(Kind.RULE)[0].name == "b"
    assert {one.name for one in colors.of(Kind.RULE)} == set(texts)


@each(
    ("query", "shown"),
    [
        ("fix src/app.py", []),
        ("type the functions in src/app.py", ["python"]),
        ("the layout of the slides in talk.pptx", ["slides"]),
        ("find the root cause of the bug in src/app.rb", ["debugging"]),
    ],
)
async def test_the_name_of_a_file_finds_no_document_that_is_not_about_such_files(
    query: str, shown: list[str]
) -> None:
    scripts = "Run `python scripts/layout.py` on the file, then fix it with `python scripts/fix.py`."
    documents = [
        reference("slides", scripts, description="Create, read and edit slides of presentations"),
        reference("python", "Type every function of the file.", description="Conventions for Python code"),
        reference("debugging", "Find the root cause of a bug before you fix it.", description="Debugging"),
    ]
    with ContextEngine(Catalog([*TOOLS, *documents])) as engine:
        found = await engine.build(query)

    assert [one.name for one in found.of(Kind.REFERENCE)] == shown


async def test_a_rule_for_other_files_than_the_request_names_is_not_found_for_its_patterns(
    tmp_path: Path,
) -> None:
    (tmp_path / "api.md").write_text("---\npaths: src/api/**/*.ts\n---\nEndpoints check input.\n", "utf-8")
    documents = load_documents([DocumentsConfig(path=tmp_path)], Limits()).documents
    with ContextEngine(Catalog([*TOOLS, *documents])) as engine:
        found = {
            query: [one.name for one in (await engine.build(query)).of(Kind.RULE)]
            for query in ("check the input in lib/a.ts", "check src/api/a.ts", "how do endpoints check input")
        }

    assert list(found.values()) == [[], ["api"], ["api"]]


async def test_a_request_that_names_a_folder_finds_no_document_of_the_same_name_in_another(
    tmp_path: Path,
) -> None:
    packages = ("all", "bank", "shop", "web-shop")
    for name in packages:
        (tmp_path / name).mkdir()
        tests = f"## Tests\nRun the tests with `make {name}` before each commit.\n"
        (tmp_path / name / "AGENTS.md").write_text(f"# Rules\nBe kind.\n{tests}", encoding="utf-8")
    entries = [DocumentsConfig(path=tmp_path / name / "AGENTS.md") for name in packages]
    documents = load_documents(entries, Limits()).documents
    with ContextEngine(Catalog([*TOOLS, *documents])) as engine:
        found = [
            sorted(one.name.split("/")[0] for one in context.of(Kind.REFERENCE))
            for query in ("run the tests of the bank", "run the tests of the shop", "run the tests")
            if (context := await engine.build(query))
        ]

    assert found == [["bank"], ["shop"], [*packages]]
