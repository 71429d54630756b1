import json

from support.servers import Workshop, tool

from .conftest import Run


def test_tools_are_listed_by_server_under_their_exposed_names(run: Run, workshop: Workshop) -> None:
    workshop.server("notes", tools=[tool("create", "Write down a note")])
    workshop.server("alarms", tools=[tool("ring"), tool("hush")])
    done = run("tools", "--config", workshop.config())

    assert done.returncode == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines if line and "__" in line[0]] == [
        "notes__create",
        "alarms__hush",
        "alarms__ring",
    ]
    assert "Write down a note" in done.stdout
    assert lines[1] == ["Name", "Class", "Tokens", "Description"]


def test_a_tool_and_its_description_fit_on_a_line_of_80_characters(run: Run, workshop: Workshop) -> None:
    workshop.server("notes", tools=[tool("create_a_note_of_a_longer_name", "Write down a note")])
    workshop.server("alarms", tools=[tool("ring", "Ring the bell")], settings={"include": "always"})
    shown = run("tools", "--config", workshop.config()).stdout.splitlines()

    assert all(len(line) <= 80 for line in shown)
    (note,) = (line for line in shown if "notes__create" in line)
    assert "Write down a no" in note
    assert any("Include" in line for line in shown), "where a tool is not chosen by requests"


def test_the_default_list_is_shown_beside_the_full_one(run: Run, workshop: Workshop) -> None:
    workshop.server("many", tools=[tool(f"tool_{n}", "Does much. " * 50) for n in range(50)])
    done = run("tools", "--config", workshop.config())
    data = json.loads(run("tools", "--json", "--config", workshop.config()).stdout)

    assert data["total"]["tools"] == 50
    assert data["default_list"]["tools"] == 3
    assert data["default_list"]["tokens"] < data["total"]["tokens"] / 5
    assert data["default_list"]["whole"] is False
    full, default = (line for line in done.stdout.splitlines() if " list " in line)
    assert f"{data['total']['tokens']:,} tokens" in full
    assert f"{data['default_list']['tokens']:,} tokens" in default


def test_json_has_exposed_definitions_and_include_modes(run: Run, workshop: Workshop) -> None:
    odd = tool("ring", annotations={"readOnlyHint": True}, **{"x-unknown": [1]})
    workshop.server("alarms", tools=[odd], settings={"include": "always"})
    data = json.loads(run("tools", "--json", "--config", workshop.config()).stdout)

    (ring,) = data["tools"]
    assert ring["definition"] == {**odd, "name": "alarms__ring"}
    assert (ring["server"], ring["tool"], ring["include"]) == ("alarms", "ring", "always")


def test_long_names_are_never_cut(run: Run, workshop: Workshop) -> None:
    name = "a_name_that_takes_all_there_is_of_room_on_a_line"
    workshop.server("s", tools=[tool(name, "What it does")])
    done = run("tools", "--config", workshop.config(), COLUMNS="50")

    assert any(line.strip().startswith("s__a_name") and "…" not in line for line in done.stdout.splitlines())
    assert "What it does" in done.stdout


def test_tools_that_are_turned_off_are_counted_and_not_listed(run: Run, workshop: Workshop) -> None:
    tools = [tool("get"), tool("delete"), tool("drop")]
    workshop.server("git", tools=tools, settings={"deny": ["d*"]})
    config = workshop.config()
    told = run("tools", "--config", config).stdout
    data = json.loads(run("tools", "--json", "--config", config).stdout)

    assert "2 tools are turned off: mcp-context-proxy check shows by which line." in told
    assert "git__d" not in told
    assert [(one["server"], one["tool"]) for one in data["tools"]] == [("git", "get")]
    assert [(one["name"], one["tool"]) for one in data["turned_off"]] == [
        ("git__delete", "delete"),
        ("git__drop", "drop"),
    ]
    assert data["turned_off"][0]["reason"].startswith("by servers.git.deny[0] (config.toml:")
