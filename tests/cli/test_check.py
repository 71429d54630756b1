import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

from support.chat import chat_service
from support.issuer import AUDIENCE, issuing
from support.servers import Workshop, tool

from .conftest import Run, flat


def test_a_working_setup_is_confirmed_with_exit_code_0(run: Run, workshop: Workshop) -> None:
    workshop.server("good", tools=[tool("a")])
    workshop.server("chatty", tools=[tool("a")], at_start=[{"raw": "Welcome!"}])
    done = run("check", "--config", workshop.config())

    assert done.returncode == 0, done.stdout
    assert "good: 1 tool, ready in" in done.stdout
    assert "output on stdout that is no message is skipped | stdout: Welcome!" in flat(done.stdout)
    assert done.stdout.endswith("All is well: 2 servers.\n")


def test_servers_that_are_named_are_started_alone(run: Run, workshop: Workshop) -> None:
    desk = workshop.server("desk", tools=[tool("echo")])
    other = workshop.server("other", tools=[tool("echo")])
    workshop.server("unset").settings = {"command": "x", "env": {"T": "${NOT_SET_ANYWHERE}"}}
    config = workshop.config()
    checked = run("check", "desk", "--config", config)
    broken = run("check", "unset", "--config", config)
    unknown = run("check", "disk", "--config", config)

    assert (checked.returncode, broken.returncode, unknown.returncode) == (0, 1, 1)
    assert "desk: 1 tool" in checked.stdout
    assert "All is well: 1 server" in checked.stdout
    assert "NOT_SET_ANYWHERE is not set" in flat(broken.stdout)
    assert flat(broken.stdout).endswith("1 problem to fix: 0 of 1 server works.")
    assert (bool(desk.ledger.lines()), bool(other.ledger.lines())) == (True, False)
    assert "there is no server 'disk'; those configured are:" in unknown.stderr
    assert "about all servers" in run("check", "desk", "--offline", "--config", config).stderr


def test_a_server_that_says_the_same_as_an_older_one_is_named_with_it(run: Run, workshop: Workshop) -> None:
    file, says = workshop.folder / "store.db", "Create a note with a title and a body"
    workshop.server("notes", tools=[tool("create_note", says)])
    run("check", "--config", workshop.config(store={"path": str(file)}))
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE approved_versions SET time = time - ?", (30 * 24 * 3600,))
    workshop.server("again", tools=[tool("create_note", f"{says}."), tool("get_time", "Tell the time")])
    done = run("check", "--config", workshop.config(store={"path": str(file)}))

    copied = "again__create_note as notes__create_note"
    assert f"again: says nearly the same as notes, which was there before: {copied}" in flat(done.stdout)
    assert "get_time as" not in done.stdout


def test_offline_a_file_is_checked_where_none_of_its_values_and_programs_are(
    run: Run, workshop: Workshop
) -> None:
    """A review of a change in CI has neither secrets nor servers, and must not run what a change names."""
    ran, path = workshop.flag("ran"), workshop.folder / "config.toml"
    path.write_text(
        f"""[http]
host = "0.0.0.0"
allowed_hosts = ["${{PROXY_HOST}}"]
[store]
url = "postgresql://proxy:${{DB_PASSWORD}}@${{DB_HOST}}:${{DB_PORT}}/proxy"
[cluster]
enabled = true
replica = "${{POD}}"
advertise = "http://${{POD_IP}}:8765"
key = "${{file:/run/secrets/key}}"
[secrets]
commands = true
[servers.docs]
url = "${{DOCS_URL}}"
headers = {{ Authorization = "Bearer ${{cmd:touch {ran}}}" }}
[servers.local]
command = "touch"
args = ["{ran}", "$${{literal}}", "${{keyring:token}}"]
"""
    )
    path.chmod(0o666)  # as a checkout may have it: nothing is started from it
    good = run("check", "--offline", "--config", path)
    path.write_text(path.read_text() + 'aloow = ["a"]\n[[documents]]\npath = "nowhere"\nkind = "rule"\n')
    bad = run("check", "--offline", "--json", "--config", path)

    assert good.returncode == 0, good.stdout
    assert "PROXY_HOST" in good.stdout
    assert good.stdout.endswith("No problem. No server was started.\n")
    assert bad.returncode == 1
    told = json.loads(bad.stdout)
    problems = [one for one in told["findings"] if one["level"] == "problem"]
    assert [(one["key"], one["line"], one["file"]) for one in problems] == [
        ("documents[0].path", 21, str(path)),
        ("servers.local.aloow", 19, str(path)),
    ]
    assert (told["ok"], told["problems"], told["warnings"]) == (False, 2, 0)
    assert not ran.exists()
    assert run("check", "--offline", "--pin", "--config", path).returncode == 2


def test_offline_a_value_that_is_not_known_hides_no_mistake_beside_it(run: Run, workshop: Workshop) -> None:
    path = workshop.folder / "config.toml"
    good = """[auth]
mode = "jwt"
issuer = "${LOGIN}/issuer"
[[documents]]
path = "${RULES}/team"
kind = "rule"
[embedding]
pooling = "${POOLING}"
model = "${MODEL}"
[servers.desk]
url = "${BASE}/mcp"
oauth = { grant = "${GRANT}", client_id = "a" }
[servers.tool]
command = "tool"
cwd = "${FOLDER}"
args = ["${cmd:date}"]
"""
    path.write_text(good + "[secrets]\ncommands = true\n")
    passed = run("check", "--offline", "--strict", "--config", path)
    path.write_text(good.replace("client_id", "client_idd") + '[http]\nport = "${PORT}"\n')
    failed = run("check", "--offline", "--json", "--config", path)

    assert passed.returncode == 0, passed.stdout
    problems = [one for one in json.loads(failed.stdout)["findings"] if one["level"] == "problem"]
    assert [(one["key"], one["message"]) for one in problems] == [
        ("servers.desk.oauth.client_idd", "unknown key; did you mean client_id?"),
        ("servers.tool.args[0]", "${cmd:...} is off"),
        ("http.port", "must be a whole number, not text"),
    ]


def test_offline_each_server_without_a_version_or_with_a_variable_for_a_shell_is_told_with_its_line(
    run: Run, workshop: Workshop
) -> None:
    path = workshop.folder / "config.toml"
    path.write_text(
        """[servers.one]
command = "npx"
args = ["-y", "some-server"]
[servers.two]
command = "uvx"
args = ["other-server@1.2.3", "$NOT_SET_HERE", "^costs$five"]
env = { TOKEN = "$ITS_TOKEN" }
"""
    )
    strict = run("check", "--offline", "--strict", "--config", path)
    told = json.loads(run("check", "--offline", "--json", "--config", path).stdout)

    assert strict.returncode == 1
    assert "No problem, 2 warnings, and --strict allows none. No server was started." in flat(strict.stdout)
    warnings = {one["line"]: one for one in told["findings"] if one["level"] == "warning"}
    assert {line: one["key"] for line, one in warnings.items()} == {1: "servers.one", 4: "servers.two"}
    assert warnings[1]["message"].startswith("not pinned")
    assert warnings[4]["message"].startswith("no braces around NOT_SET_HERE, ITS_TOKEN: passed on")


def test_the_outcome_as_json_has_what_is_shown_with_the_line_of_each_server(
    run: Run, workshop: Workshop
) -> None:
    workshop.server("good", tools=[tool("a")])
    workshop.server("gone").settings = {"command": "/nowhere"}
    config = workshop.config()
    done = run("check", "--json", "--config", config)

    told = json.loads(done.stdout)
    lines = config.read_text().splitlines()
    (gone,) = [one for one in told["findings"] if one["subject"] == "gone" and one["level"] == "problem"]
    assert done.returncode == 1
    assert "there is no program" in gone["message"]
    assert lines[gone["line"] - 1] == "[servers.gone]"
    assert any(one["subject"] == "good" and "1 tool, ready in" in one["message"] for one in told["findings"])


def test_the_folders_in_which_servers_start_are_shown(run: Run, workshop: Workshop) -> None:
    for name in ("one", "two"):
        workshop.server(name, tools=[tool("a")])
    workshop.server("three", tools=[tool("a")], settings={"cwd": "launch"})
    done = run("check", "--config", workshop.config())

    # Long paths are wrapped, and those with a space also there.
    told, folder, here = ("".join(str(each).split()) for each in (done.stdout, workshop.folder, Path.cwd()))
    assert f"folder:one,twostartin{folder}ok" in told
    assert f"folder:threestartsin{here}(wherethehoststartstheproxy)" in told


def test_a_name_in_an_expansion_rule_that_nothing_has_is_a_warning(run: Run, workshop: Workshop) -> None:
    workshop.server("good", tools=[tool("read_file"), tool("write_file"), tool("find")])
    rules = {"read_fil": ["write_file"], "good__read_file": ["good__find", "search_code"]}
    done = run("check", "--config", workshop.config(context={"expansion_rules": rules}))

    told = [line for line in flat(done.stdout).split("warning ") if "expansion_rules" in line]
    assert len(told) == 2
    assert "called 'read_fil'; did you mean 'read_file'?" in told[0]
    assert "called 'search_code'" in told[1]


def test_check_tells_which_rules_come_always_with_files_or_only_by_hand(run: Run, workshop: Workshop) -> None:
    workshop.server("good", tools=[tool("a")])
    rules = workshop.folder / "rules"
    rules.mkdir()
    fronts = {
        "house": "trigger: always_on",
        "sql": 'paths: "*.sql"',
        "old": "trigger: manual",
        "tone": "tags: a",
    }
    for name, front in fronts.items():
        (rules / f"{name}.md").write_text(f"---\n{front}\n---\nThe rule {name}.\n", encoding="utf-8")
    done = run("check", "--config", workshop.config(documents=[{"kind": "rule", "path": str(rules)}]))

    assert [line.split("documents: ")[1] for line in done.stdout.splitlines() if "documents: " in line] == [
        "4 rules, 0 references",
        "in every context (4 tokens): house",
        "only by hand: old",
        "for files: sql",
    ]


def test_check_names_hidden_rules_of_a_folder_that_no_entry_has(run: Run, workshop: Workshop) -> None:
    workshop.server("good", tools=[tool("a")])
    project = workshop.folder / "project"
    rules = (".cursor/rules/a.mdc", ".github/instructions/b.instructions.md", ".kiro/steering/d.md")
    for name in (*rules, ".windsurfrules", "c.md"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("Be kind.\n", encoding="utf-8")
    entries = [{"path": str(project / part)} for part in (".", ".cursor/rules", ".kiro")]
    told = flat(run("check", "--config", workshop.config(documents=entries)).stdout)

    said = "hidden and so not read; give each that you want an entry: "
    places = f"{project}/.github/instructions, {project}/.windsurfrules"
    assert said in told
    assert places.replace(" ", "") in told.replace(" ", "")


def test_check_tells_which_entries_of_a_hosts_file_are_left_out(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    ours = {"command": "mcp-context-proxy", "args": ["serve"]}
    off = {"command": "x", "envFile": ".env", "disabled": True}
    secret = {"command": "x", "env": {"KEY": "${{ secrets.KEY }}"}}
    config.write_text(
        json.dumps({"mcpServers": {"us": ours, "off": off, "secret": secret}}), encoding="utf-8"
    )
    told = flat(run("check", "--config", config).stdout)

    assert "ok config: " in told
    assert "server 'us' is this proxy itself and is skipped" in told
    assert "server 'off': envFile is not read; name its variables in env" in told
    assert "only its host knows ${{ secrets.KEY }}; write the value, or ${VARIABLE}" in told


def test_check_says_that_there_is_nothing_to_serve_without_servers(run: Run, workshop: Workshop) -> None:
    done = run("check", "--config", workshop.config())

    assert done.returncode == 0
    assert done.stdout.endswith("Nothing to serve: no server is configured.\n")


def test_every_problem_of_a_broken_configuration_is_reported_with_its_line(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[expose]\nmode = "loud"\n[servers.a]\ncomand = "x"\n', encoding="utf-8")
    done = run("check", "--config", config)

    assert done.returncode == 1
    told, file = ("".join(str(each).split()) for each in (done.stdout, config))
    assert f"{file}:2:expose.mode" in told
    assert f"{file}:4:servers.a.comand" in told
    assert "2 problems to fix" in done.stdout


def test_a_configuration_that_cannot_be_read_starts_no_server(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[servers.a\n", encoding="utf-8")
    done = run("check", "--config", config)

    assert done.returncode == 1
    assert "1 problem to fix. No server was started." in done.stdout


def test_without_any_configuration_the_problem_is_told_once_with_its_remedy(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "mcp-context-proxy" / "config.toml"
    done = run("check", XDG_CONFIG_HOME=str(tmp_path))
    listed = run("tools", XDG_CONFIG_HOME=str(tmp_path))

    problem = "there is no configuration: MCP_CONTEXT_PROXY_CONFIG is not set, and"
    assert flat(done.stdout).startswith(f"PROBLEM config: {problem}")
    assert listed.stderr.startswith(
        f"mcp-context-proxy: {problem} {place} does not exist; 'mcp-context-proxy install' "
    )
    assert len(listed.stderr.splitlines()) == 1
    assert not place.exists()


def test_serve_begins_a_configuration_where_there_is_none(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "mcp-context-proxy" / "config.toml"
    first = run("serve", XDG_CONFIG_HOME=str(tmp_path))
    again = run("serve", XDG_CONFIG_HOME=str(tmp_path))

    assert (first.returncode, again.returncode) == (0, 0)
    assert first.stderr.startswith(f"mcp-context-proxy: no server is configured yet, and {place} was written")
    assert place.stat().st_mode & 0o077 == 0
    assert again.stderr == ""


def test_servers_that_do_not_work_are_not_counted_and_their_remedy_stands_apart(
    run: Run, workshop: Workshop
) -> None:
    workshop.server("good", tools=[tool("a")])
    workshop.server("away", settings={"enabled": False})
    workshop.server("unset").settings = {"command": "x", "env": {"T": "${NOT_SET_ANYWHERE}"}}
    told = flat(run("check", "--config", workshop.config()).stdout)

    assert "servers.unset.env.T: NOT_SET_ANYWHERE is not set -> set this environment variable, or" in told
    assert told.endswith("1 problem to fix: 1 of 3 servers works.")


def test_a_front_that_everyone_could_reach_without_a_token_is_a_problem(run: Run, workshop: Workshop) -> None:
    workshop.server("good", tools=[tool("a")])
    done = run("check", "--config", workshop.config(http={"host": "0.0.0.0", "auth": False}))

    assert done.returncode == 1
    assert "http.auth: serving without a token needs a loopback address" in flat(done.stdout)


def test_an_issuer_is_asked_for_its_keys(run: Run, workshop: Workshop) -> None:
    workshop.server("good", tools=[tool("a")])
    http = {"resource_url": AUDIENCE}
    with issuing() as issuer:
        config = workshop.config(auth=issuer.settings(), http=http)
        good = run("check", "--config", config)
        issuer.answers = {"/keys": (404, {}, b"")}
        bad = run("check", "--config", config)
    unlike = run("check", "--config", workshop.config(auth=issuer.settings()))

    assert (good.returncode, f"the keys of {issuer.url} have been fetched" in flat(good.stdout)) == (0, True)
    assert (bad.returncode, f"{issuer.url}/keys answered 404" in flat(bad.stdout)) == (1, True)
    assert (unlike.returncode, "needs http.resource_url" in flat(unlike.stdout)) == (1, True)


def test_the_only_server_works_or_does_not(run: Run, workshop: Workshop) -> None:
    workshop.server("unset").settings = {"command": "x", "env": {"T": "${NOT_SET_ANYWHERE}"}}

    assert run("check", "--config", workshop.config()).stdout.endswith(": 0 of 1 server works.\n")


def test_a_missing_configuration_is_a_problem(run: Run, tmp_path: Path) -> None:
    done = run("check", "--config", tmp_path / "none.toml")

    assert done.returncode == 1
    assert "the file does not exist" in flat(done.stdout)


def test_text_is_wrapped_and_a_path_stays_whole_to_be_copied(run: Run, workshop: Workshop) -> None:
    workshop.server("dies", at_start=[{"stderr": "y" * 300 + "\n"}, {"exit": 3}])
    folder = workshop.folder / "Application Support"
    folder.mkdir()
    config = workshop.config().rename(folder / "config.toml")
    lines = run("check", "--config", config, COLUMNS="60").stdout.splitlines()

    assert any(str(config) in line for line in lines)
    assert any("y" * 300 in line for line in lines), "so does a line of a server"
    others = [line for line in lines if "/" not in line and "yyy" not in line]
    assert max(map(len, others)) <= 60


def test_definitions_that_are_withheld_for_one_reason_share_a_line(run: Run, workshop: Workshop) -> None:
    templates = [{"uriTemplate": f"/page{at}/{{title}}", "name": f"t{at}"} for at in range(7)]
    workshop.server(
        "wiki",
        tools=[tool("look")],
        on={"resources/templates/list": [{"result": {"resourceTemplates": templates}}]},
        resources=[{"uri": "x:1", "name": "one"}],
    )
    told = flat(run("check", "--config", workshop.config()).stdout)

    assert told.count("is withheld") == 0
    assert (
        "warning wiki: 7 resource templates are withheld: its uriTemplate does not begin with a scheme"
        in told
    )
    assert "'/page0/{title}'" in told
    assert "and 2 more" in told


def test_an_oddity_that_works_is_a_warning(run: Run, workshop: Workshop) -> None:
    workshop.server("empty", tools=[])
    workshop.server(
        "mixed",
        tools=[tool("good"), {"name": "no_schema"}, tool("wordy", "Says much. " * 300_000)],
        resources=[{"uri": "x:1", "name": "one"}, {"name": "no_uri"}],
        on={"prompts/list": [{"result": {"prompts": "none"}}]},
        prompts=[{"name": "p"}],
    )
    asking = ["Show me my notes.", "I need a flight.", "Send me the news."] * 4
    workshop.server("asking", tools=[tool(f"helper_{at}", text) for at, text in enumerate(asking)])
    rules = workshop.folder / "rules"
    rules.mkdir()
    (rules / "odd.md").write_text("---\npriority: high\n---\nBe brief.\n", encoding="utf-8")
    done = run(
        "check",
        "--config",
        workshop.config(documents=[{"kind": "rule", "path": str(rules)}], audit={"files": 1}),
    )

    told = flat(done.stdout)
    assert done.returncode == 0
    assert "warning audit: audit.files = 1 counts as 2" in told
    assert "warning empty: it is ready, but offers no tools" in told
    assert re.search(r"ok mixed: 2 of 3 tools, ready in \S+ m?s \(\d", told)
    assert "warning mixed: entry 2 of its tools is withheld" in told
    assert "mixed: tool 'wordy': its description is cut: 16,384 of 3,300,000 bytes are shown" in told
    assert "mixed: entry 2 of its resources is withheld: it has no uri" in told
    assert "mixed: prompts/list: stopped, a result has no list of prompts" in told
    assert "odd.md:2" in done.stdout.replace("\n         ", "")
    assert "warning asking: its descriptions read like requests, so its tools come after" in told
    assert "It works, with 8 warnings" in told


def test_strict_fails_on_warnings(run: Run, workshop: Workshop) -> None:
    workshop.server("good", tools=[tool("a")])
    well = run("check", "--strict", "--config", workshop.config())
    workshop.server("empty")
    oddly = run("check", "--strict", "--config", workshop.config())

    assert (well.returncode, oddly.returncode) == (0, 1)
    assert "It works, with 1 warning, and --strict allows none: 2 servers." in flat(oddly.stdout)


def test_a_model_that_cannot_be_loaded_is_a_problem(run: Run, workshop: Workshop) -> None:
    workshop.server("good", tools=[tool("a")])
    done = run("check", "--config", workshop.config(embedding={"model": str(workshop.folder / "none")}))

    assert done.returncode == 1
    assert "PROBLEM  model: embedding model" in done.stdout


def test_the_reranker_model_is_tried(run: Run, workshop: Workshop) -> None:
    workshop.server("desk", tools=[tool("echo")])
    with chat_service() as service:
        config = workshop.config(rerank={"endpoint": service.url, "model": "small"})
        well = run("check", "--config", config)
        service.reply = lambda asked: asked.answer(401, b"no")
        badly = run("check", "--config", config)

    assert well.returncode == badly.returncode == 0
    assert f"rerank: small at {service.url}, answered in" in " ".join(well.stdout.split())
    assert "set rerank.api_key" in " ".join(badly.stdout.split())
    assert "warning" in badly.stdout


def test_tools_that_are_turned_off_are_shown_with_the_setting_that_does_it(
    run: Run, workshop: Workshop
) -> None:
    names = ("get", "delete_one", "delete_all", "close")
    off = {"deny": ["delete_*", "remove_*"], "tools": {"close": {"enabled": False}}}
    workshop.server("git", tools=[tool(name) for name in names], settings=off)
    workshop.server("none", tools=[tool("a")], settings={"allow": []})
    workshop.server("away", settings={"enabled": False})
    config = workshop.config()
    done = run("check", "--config", config)

    lines = config.read_text().split("\n")
    deny = lines.index('deny = ["delete_*", "remove_*"]') + 1
    told = flat(done.stdout)
    assert done.returncode == 0
    assert "git: 1 of 4 tools (3 turned off), ready in" in told
    assert f"turned off by servers.git.deny[0] (config.toml:{deny}): delete_one, delete_all" in told
    assert "turned off by servers.git.tools.close.enabled (config.toml:" in told
    assert (
        f"warning git: servers.git.deny[1] (config.toml:{deny}): 'remove_*' matches none of its tools" in told
    )
    assert "warning none: it is ready, but all its tools are turned off" in told
    assert "away: switched off by servers.away.enabled (config.toml:" in told


def test_settings_carried_over_from_the_file_of_a_host_are_told(run: Run, workshop: Workshop) -> None:
    server = workshop.server("git", tools=[tool("get"), tool("delete")])
    command = {"command": server.command[0], "args": server.command[1:]}
    entry = {**command, "excludeTools": ["delete"], "alwaysAllow": ["get"]}
    file = workshop.folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"git": entry, "old": {"command": "x", "disabled": True}}}))
    told = flat(run("check", "--config", file).stdout)

    assert "git: mcpServers.git.excludeTools (mcp.json:1) is carried over as deny: delete" in told
    assert "git: mcpServers.git.alwaysAllow (mcp.json:1) is not carried over" in told
    assert "git: turned off by mcpServers.git.excludeTools[0] (mcp.json:1): delete" in told
    assert "old: switched off by mcpServers.old.disabled (mcp.json:1)" in told
