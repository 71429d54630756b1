"""Files of hosts and editors as rules and references."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.documents import Write, only, told

from mcp_context_proxy.catalog.document_reading import SECTIONS_LIMIT, divide
from mcp_context_proxy.catalog.documents import Loaded, load_documents
from mcp_context_proxy.config import DocumentsConfig, Limits
from mcp_context_proxy.items import IncludeMode, Kind
from mcp_context_proxy.retrieval.links import file_for


def load(folder: Path, kind: Kind | None = None, include: IncludeMode | None = None, **limits: int) -> Loaded:
    return load_documents([DocumentsConfig(kind=kind, path=folder, include=include)], Limits(**limits))


def test_a_cursor_rule_says_when_it_applies(write: Write) -> None:
    loaded = load(
        write(
            {
                "always.mdc": "---\ndescription: Style\nglobs:\nalwaysApply: true\n---\nx",
                "asked.mdc": "---\ndescription: Migrations\nglobs:\nalwaysApply: false\n---\nx",
                "files.mdc": "---\ndescription:\nglobs: src/**/*.tsx\nalwaysApply: false\n---\nx",
                "by-name.mdc": "---\ndescription:\nglobs:\nalwaysApply: false\n---\nx",
                "unsaid.mdc": "---\ndescription: Unsaid\n---\nx",
                "bare.mdc": "x",
            }
        )
    )

    assert {d.name: d.include for d in loaded.documents} == {
        "always": IncludeMode.ALWAYS,
        "asked": IncludeMode.AGENT,
        "files": IncludeMode.AGENT,
        "by-name": IncludeMode.MANUAL,
        "unsaid": IncludeMode.AGENT,
        "bare": IncludeMode.AGENT,
    }
    assert {d.kind for d in loaded.documents} == {Kind.RULE}
    assert not loaded.findings


@pytest.mark.parametrize(
    ("front", "kind", "include", "patterns"),
    [
        ('paths:\n  - "src/api/**/*.ts"', Kind.RULE, IncludeMode.AGENT, ("src/api/**/*.ts",)),
        ("paths: **/*.py", Kind.RULE, IncludeMode.AGENT, ("**/*.py",)),
        ('applyTo: "**/*.py,**/*.pyi"', Kind.RULE, IncludeMode.AGENT, ("**/*.py", "**/*.pyi")),
        ('applyTo: "**"', Kind.RULE, IncludeMode.ALWAYS, ()),
        ('globs: "**/*"\nalwaysApply: false', Kind.RULE, IncludeMode.AGENT, ()),
        ("globs: src/*.ts, **/*\ntrigger: glob", Kind.RULE, IncludeMode.AGENT, ()),
        ("trigger: always_on", Kind.RULE, IncludeMode.ALWAYS, ()),
        ("trigger: manual", Kind.RULE, IncludeMode.MANUAL, ()),
        ("paths:\n  - src/**\n  - !src/gen/*", Kind.RULE, IncludeMode.AGENT, ("src/**", "!src/gen/*")),
        ("trigger: glob\nglobs: *.css", Kind.RULE, IncludeMode.AGENT, ("*.css",)),
        ("trigger: model_decision\ndescription: Colours", Kind.RULE, IncludeMode.AGENT, ()),
        ("inclusion: always", Kind.RULE, IncludeMode.ALWAYS, ()),
        ('inclusion: fileMatch\nfileMatchPattern: "*.tf"', Kind.RULE, IncludeMode.AGENT, ("*.tf",)),
        ("alwaysApply: true", Kind.RULE, IncludeMode.ALWAYS, ()),
        ("alwaysApply: false\ndescription: Types", Kind.RULE, IncludeMode.AGENT, ()),
        ("include: manual\npaths: src/*", Kind.RULE, IncludeMode.MANUAL, ("src/*",)),
        ("trigger: an alert fires", Kind.REFERENCE, IncludeMode.AGENT, ()),
    ],
)
def test_rules_of_other_agents_and_editors_apply_when_they_say_so(
    write: Write, front: str, kind: Kind, include: IncludeMode, patterns: tuple[str, ...]
) -> None:
    loaded = load(write({"a.md": f"---\n{front}\n---\nUse types."}))
    one = only(loaded)

    assert (one.kind, one.include, one.patterns) == (kind, include, patterns)
    assert not loaded.findings


def test_a_rule_for_some_files_is_not_in_every_context_of_a_folder_that_is(write: Write) -> None:
    folder = write({"all.md": "x", "api.md": "---\npaths: src/api/**\n---\nx"})
    by_name = {d.name: d.include for d in load(folder, Kind.RULE, IncludeMode.ALWAYS).documents}

    assert by_name == {"all": IncludeMode.ALWAYS, "api": IncludeMode.AGENT}


def test_the_rules_of_a_package_are_for_no_file_of_another(write: Write) -> None:
    rule = "---\nglobs: src/**/*.tsx\n---\nx"
    places = [f"{package}.cursor/rules" for package in ("", "packages/web/", "packages/admin/")]
    root = write({f"{place}/rule{number}.mdc": rule for number, place in enumerate(places)})
    entries = [DocumentsConfig(path=root / place) for place in places]
    patterns = {one.name: one.patterns for one in load_documents(entries, Limits()).documents}

    def fitting(file: str) -> list[str]:
        return [name for name, known in patterns.items() if file_for(known, [file])]

    assert fitting("src/a.tsx") == ["rule0", "rule1", "rule2"]
    assert fitting("packages/web/src/a.tsx") == ["rule0", "rule1"]
    assert fitting("repo/packages/admin/src/a.tsx") == ["rule0", "rule2"]


def test_the_rules_of_a_package_are_for_its_files_beside_another_copy_of_the_project(write: Write) -> None:
    places = [f"{copy}/packages/web/.cursor/rules" for copy in ("main", "feature")]
    root = write({f"{place}/rule.mdc": "---\nglobs: src/**/*.tsx\n---\nx" for place in places})
    entries = [DocumentsConfig(path=root / place) for place in places]

    for one in load_documents(entries, Limits()).documents:
        assert file_for(one.patterns, ["packages/web/src/a.tsx"])


def test_the_rules_of_the_home_directory_are_for_every_package(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = "---\nglobs: src/**/*.tsx\n---\nx"
    root = write({f"{place}/rule.mdc": rule for place in ("home/.cursor/rules", "srv/web/.cursor/rules")})
    monkeypatch.setenv("HOME", str(root / "home"))
    monkeypatch.setenv("USERPROFILE", str(root / "home"))
    entries = [DocumentsConfig(path=root / place / ".cursor/rules") for place in ("home", "srv/web")]

    for one in load_documents(entries, Limits()).documents:
        assert file_for(one.patterns, ["srv/web/src/a.tsx"])


def test_a_package_whose_name_would_be_a_pattern_keeps_no_rule_from_others(write: Write) -> None:
    places = ["site/app/[id]/.cursor/rules", "other/app/i/.cursor/rules"]
    root = write({f"{place}/rule.mdc": "---\nglobs: src/**/*.tsx\n---\nx" for place in places})
    entries = [DocumentsConfig(path=root / place) for place in places]

    loaded = load_documents(entries, Limits()).documents
    (_,) = (one for one in loaded if file_for(one.patterns, ["app/i/src/a.tsx"]))


def test_an_import_of_what_is_read_anyway_is_no_text_and_any_other_is_reported(write: Write) -> None:
    root = write(
        {
            "CLAUDE.md": "@AGENTS.md\n\n## Plans\n\nAsk @anna first.\n",
            "GEMINI.md": "@./AGENTS.md\n@~/.gemini/mine.md\n",
            "AGENTS.md": "## Build\n\nRun make.\n",
            "app/CLAUDE.md": "@../AGENTS.md\n",
        }
    )

    loaded = load(root)

    assert {one.name: one.text for one in loaded.documents} == {
        "AGENTS/Build": "## Build\n\nRun make.",
        "CLAUDE/Plans": "## Plans\n\nAsk @anna first.",
    }
    assert told(loaded, root) == [
        "GEMINI.md:2: ~/.gemini/mine.md is not imported; give it an entry of its own"
    ]


def test_an_agents_file_of_its_own_entry_has_what_it_imports_from_its_folder(write: Write) -> None:
    root = write(
        {
            "CLAUDE.md": "@AGENTS.md\n@docs/style.md\n\n## Plans\n\nAsk first.\n",
            "AGENTS.md": "---\ntitle: Shop\n---\n## Build\n\nRun make.\n\n@CLAUDE.md\n",
            "docs/style.md": "## Style\n\nUse types.\n",
        }
    )

    loaded = load(root / "CLAUDE.md")

    assert {one.name: one.text for one in loaded.documents} == {
        "CLAUDE/Build": "## Build\n\nRun make.",
        "CLAUDE/Style": "## Style\n\nUse types.",
        "CLAUDE/Plans": "## Plans\n\nAsk first.",
    }
    assert not loaded.findings
    assert str(root / "docs") in loaded.paths


def test_an_import_is_followed_only_to_visible_markdown_below_the_file_that_has_it(
    write: Write, tmp_path: Path
) -> None:
    (tmp_path / "secret.md").write_text("secret")
    root = (
        write({"p/CLAUDE.md": "", "p/.env.md": "secret", "p/key.pem": "secret", "p/real.md": "Fine."}) / "p"
    )
    (root / "link.md").symlink_to(tmp_path / "secret.md")
    (root / "folder").symlink_to(tmp_path)
    names = [
        "../secret.md",
        f"{tmp_path}/secret.md",
        ".env.md",
        "key.pem",
        "link.md",
        "folder/secret.md",
        "no.md",
        "~nobody-of-this-name/no.md",
    ]
    (root / "CLAUDE.md").write_text("".join(f"@{name}\n" for name in [*names, "real.md"]))

    loaded = load(root / "CLAUDE.md")

    assert only(loaded).text == "Fine."
    assert told(loaded, root) == [
        f"CLAUDE.md:{line}: {name} is not imported; give it an entry of its own"
        for line, name in enumerate(names, 1)
    ]


def test_an_import_of_a_file_with_an_entry_of_its_own_is_read_once(write: Write) -> None:
    root = write({"CLAUDE.md": "@AGENTS.md\n", "AGENTS.md": "## Build\n\nRun make.\n"})
    entries = [DocumentsConfig(path=root / name) for name in ("CLAUDE.md", "AGENTS.md")]

    loaded = load_documents(entries, Limits())

    assert [one.name for one in loaded.documents] == ["AGENTS/Build"]
    assert not loaded.findings


def test_a_decorator_in_code_of_an_agents_file_is_no_import(write: Write) -> None:
    text = "## Models\n\n```python\n@dataclass\nclass Order: ...\n```"

    assert only(load(write({"AGENTS.md": text}))).text == text


def test_a_document_that_search_does_not_look_at_as_a_whole_is_reported(write: Write) -> None:
    root = write(
        {"exact.md": "x" * 262_144, "over.md": "x" * 262_145, "AGENTS.md": f"# a\n{200_000 * 'x'}\n" * 2}
    )

    loaded = load(root, document_bytes=1_000_000)

    assert told(loaded, root) == ["over.md: search looks at its first 262,144 characters; divide it"]


def test_the_proxys_own_include_key_beats_those_of_cursor(write: Write) -> None:
    front = "include: manual\nalwaysApply: true"

    assert only(load(write({"a.mdc": f"---\n{front}\n---\nx"}))).include is IncludeMode.MANUAL


def test_the_folder_decides_where_a_cursor_rule_does_not_say_when_it_applies(write: Write) -> None:
    folder = write({"a.mdc": "x", "b.mdc": "---\ndescription: d\nalwaysApply: false\n---\nx"})

    by_name = {d.name: d.include for d in load(folder, include=IncludeMode.ALWAYS).documents}

    assert by_name == {"a": IncludeMode.ALWAYS, "b": IncludeMode.AGENT}


@pytest.mark.parametrize(
    ("globs", "patterns"),
    [
        ("*.ts", "*.ts"),
        ("**/*.js, **/*.ts", "**/*.js, **/*.ts"),
        ("src/*.{ts,tsx},*.css", "src/*.{ts,tsx}, *.css"),
        ("{src,lib}/**", "{src,lib}/**"),
        ("[id].tsx", "[id].tsx"),
        ('["a/*.ts", "b/*.ts"]', "a/*.ts, b/*.ts"),
        ("\n  - a/*.ts\n  - b/*.ts", "a/*.ts, b/*.ts"),
        ('"*.ts"', "*.ts"),
        ("*.ts # all of them", "*.ts"),
        ("*.ts,!*.test.ts", "*.ts"),
        # Lists that are no YAML, as people write them:
        ('"a/*.ts", "b/*.ts"', "a/*.ts, b/*.ts"),
        ('["a/*.ts", *.css]', "a/*.ts, *.css"),
        ("\n  - *.ts\n  - 'b/*.ts' # tests", "*.ts, b/*.ts"),
    ],
)
def test_the_files_of_a_cursor_rule_are_part_of_its_description(
    write: Write, globs: str, patterns: str
) -> None:
    front = f"# how it applies\ndescription: Types\nglobs: {globs}\nalwaysApply: false"
    loaded = load(write({"a.mdc": f"---\n{front}\n---\nUse types."}))

    assert only(loaded).description == f"Types (for files: {patterns})"
    assert not loaded.findings


@pytest.mark.parametrize("globs", ["", "*", "**/*", "**, *.*"])
def test_a_cursor_rule_for_all_files_does_not_say_so(write: Write, globs: str) -> None:
    loaded = load(write({"a.mdc": f"---\ndescription: Types\nglobs: {globs}\n---\nx"}))

    assert only(loaded).description == "Types"
    assert not loaded.findings


def test_a_cursor_rule_may_be_written_as_cursor_writes_it_and_not_as_yaml(write: Write) -> None:
    front = "description: WHEN writing tests: use @fixtures\nglobs: *.test.ts\nalwaysApply: false"
    loaded = load(write({"a.mdc": f"---\n{front}\n---\nx"}))

    assert only(loaded).description == "WHEN writing tests: use @fixtures (for files: *.test.ts)"
    assert not loaded.findings


def test_front_matter_that_cursor_could_not_read_either_is_reported_with_its_line(write: Write) -> None:
    folder = write(
        {
            "flag.mdc": "---\ndescription: d\nalwaysApply: sometimes\n---\nx",
            "quote.mdc": "---\nalwaysApply: true\ndescription: 'open\n---\nx",
        }
    )
    loaded = load(folder)

    assert [line.split(" (")[0] for line in told(loaded, folder)] == [
        "flag.mdc:3: 'alwaysApply' in the front matter must be true or false and is ignored",
        "quote.mdc:3: the front matter is not valid YAML",
    ]
    assert {d.name: d.include for d in loaded.documents} == {
        "flag": IncludeMode.AGENT,
        "quote": IncludeMode.ALWAYS,
    }


def test_a_cursor_rule_may_be_a_folder(write: Write) -> None:
    loaded = load(write({"react/RULE.md": "---\nalwaysApply: true\n---\nHooks first."}))

    assert (only(loaded).name, only(loaded).include) == ("react", IncludeMode.ALWAYS)
    assert only(loaded).kind is Kind.RULE


def test_a_skill_is_a_reference_with_its_name_and_description(write: Write) -> None:
    front = "name: pdf-tools\ndescription: Fill in PDF forms.\nlicense: MIT\nmetadata:\n  version: '1'"
    loaded = load(write({"pdf/SKILL.md": f"---\n{front}\n---\n# PDF\n\nSteps."}))
    skill = only(loaded)

    assert (skill.kind, skill.name, skill.description) == (Kind.REFERENCE, "pdf-tools", "Fill in PDF forms.")
    assert skill.text == "# PDF\n\nSteps."
    assert not loaded.findings


@pytest.mark.parametrize("configured", ["", "pdf", "pdf/SKILL.md"])
def test_a_skill_without_a_name_is_called_as_its_folder_is(write: Write, configured: str) -> None:
    folder = write({"pdf/SKILL.md": "---\ndescription: Fill in PDF forms.\n---\nx"})

    assert only(load(folder / configured)).name == "pdf"


def test_files_beside_a_skill_are_references_under_their_path(write: Write) -> None:
    skill = "---\nname: pdf\ndescription: d\n---\nSee references/forms.md."
    loaded = load(write({"pdf/SKILL.md": skill, "pdf/references/forms.md": "x", "pdf/scripts/run.py": "x"}))

    assert [d.name for d in loaded.documents] == ["pdf", "pdf/references/forms"]


def test_a_skill_without_a_description_is_reported_and_served(write: Write) -> None:
    folder = write({"pdf/SKILL.md": "---\nname: pdf\n---\nFills in forms. And more."})
    loaded = load(folder)

    assert only(loaded).description == "Fills in forms."
    assert told(loaded, folder)[0].startswith(
        "pdf/SKILL.md:1: the front matter of a skill needs a 'description'"
    )


def test_an_unquoted_sentence_with_a_colon_is_kept_and_reported(write: Write) -> None:
    folder = write({"pdf/SKILL.md": "---\nname: pdf\ndescription: Use when: a form is open\n---\nx"})
    loaded = load(folder)

    assert only(loaded).description == "Use when: a form is open"
    assert [line.split(" (")[0] for line in told(loaded, folder)] == [
        "pdf/SKILL.md:3: the front matter is not valid YAML"
    ]


def test_a_skill_that_only_a_user_may_invoke_is_not_found_by_search(write: Write) -> None:
    front = "name: deploy\ndescription: Deploys.\ndisable-model-invocation: true"

    assert only(load(write({"deploy/SKILL.md": f"---\n{front}\n---\nx"}))).include is IncludeMode.MANUAL


AGENTS = """# Guide for agents

Read this first.

## Setup commands

```sh
# Install everything
## twice
make install
```

- Node 22.

### On a Mac

Use brew.

## Style ##

Two spaces.

## Empty

"""


@pytest.mark.parametrize("name", ["AGENTS.md", "CLAUDE.md", "agents.md"])
def test_the_sections_of_an_agents_file_are_references(write: Write, name: str) -> None:
    loaded = load(write({name: AGENTS}))
    base = name.removesuffix(".md")

    assert [(d.name, d.description) for d in loaded.documents] == [
        (f"{base}/Guide for agents", "Read this first."),
        (f"{base}/Setup commands", "Node 22."),
        (f"{base}/Style", "Two spaces."),
    ]
    assert {d.kind for d in loaded.documents} == {Kind.REFERENCE}
    setup = loaded.documents[1].text
    assert setup.startswith("## Setup commands\n\n```sh\n# Install everything\n")
    assert setup.endswith("### On a Mac\n\nUse brew.")
    assert not loaded.findings


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (".cursorrules", "cursorrules"),
        (".windsurfrules", "windsurfrules"),
        (".clinerules", "clinerules"),
        (".github/copilot-instructions.md", "copilot-instructions"),
    ],
)
def test_a_file_of_rules_without_suffix_is_read_as_an_agents_file(write: Write, path: str, name: str) -> None:
    loaded = load(write({path: "# Shop\n\nBe kind.\n\n## Tests\n\nRun pytest."}) / path)

    assert [(d.kind, d.name) for d in loaded.documents] == [
        (Kind.REFERENCE, f"{name}/Shop"),
        (Kind.REFERENCE, f"{name}/Tests"),
    ]
    assert loaded.documents[0].full_name.count("/") == 2, "the label is the folder, not the file"


def test_what_says_when_a_skill_is_used_is_part_of_its_description(write: Write) -> None:
    front = "name: pdf\ndescription: Fill in forms.\nwhen_to_use: The user has a PDF."
    loaded = load(write({"pdf/SKILL.md": f"---\n{front}\n---\nx"}))

    assert only(loaded).description == "Fill in forms. The user has a PDF."


def test_an_agents_file_configured_as_a_rule_is_one_rule(write: Write) -> None:
    document = only(load(write({"AGENTS.md": AGENTS}), Kind.RULE))

    assert (document.name, document.text) == ("AGENTS", AGENTS.strip())


def test_an_agents_file_without_sections_is_one_reference(write: Write) -> None:
    document = only(load(write({"sub/CLAUDE.md": "Be brief. Test first."})))

    assert (document.name, document.description) == ("sub/CLAUDE", "Be brief.")


def test_sections_under_several_titles_have_distinct_names(write: Write) -> None:
    text = "# Web\n\n## Test\n\na\n\n# Server\n\nb\n\n## Test\n\nc\n\n## Test\n\nd\n"

    assert [d.name for d in load(write({"AGENTS.md": text})).documents] == [
        "AGENTS/Server",
        "AGENTS/Server/Test",
        "AGENTS/Server/Test (2)",
        "AGENTS/Web/Test",
    ]


def test_front_matter_of_an_agents_file_applies_to_all_its_sections(write: Write) -> None:
    front = "---\nname: team\ndescription: Ours\ninclude: manual\npriority: 7\ntags: [t]\n---\n"
    documents = load(write({"AGENTS.md": f"{front}Before.\n\n## A\n\nx"})).documents

    assert [(d.name, d.description) for d in documents] == [("team", "Ours"), ("team/A", "x")]
    assert {(d.include, d.priority, d.tags) for d in documents} == {(IncludeMode.MANUAL, 7, ("t",))}


def test_too_many_sections_are_reported_and_lose_no_text(write: Write) -> None:
    folder = write({"AGENTS.md": "".join(f"## S{n}\n\ntext {n}\n\n" for n in range(SECTIONS_LIMIT + 3))})
    loaded = load(folder)

    assert len(loaded.documents) == SECTIONS_LIMIT
    assert told(loaded, folder) == [
        f"AGENTS.md: it has over {SECTIONS_LIMIT} sections; 3 more are left in the last one"
    ]
    assert any(f"text {SECTIONS_LIMIT + 2}" in d.text for d in loaded.documents)


def test_sections_count_against_the_limit_of_documents(write: Write) -> None:
    folder = write({"AGENTS.md": "## A\n\nx\n\n## B\n\nx\n\n## C\n\nx\n"})
    loaded = load(folder, documents=2)

    assert [d.name for d in loaded.documents] == ["AGENTS/A", "AGENTS/B"]
    assert told(loaded, folder) == ["AGENTS.md: only 2 of its 3 sections fit into the limit 'documents'"]


def test_a_folder_of_one_kind_makes_everything_in_it_that_kind(write: Write) -> None:
    folder = write({"a.mdc": "x", "skill/SKILL.md": "---\ndescription: d\n---\nx", "c.md": "x"})

    assert {d.uri for d in load(folder, Kind.RULE).documents} == {"rule://a", "rule://skill", "rule://c"}
    assert {d.uri for d in load(folder).documents} == {"rule://a", "reference://skill", "reference://c"}


@given(st.text(alphabet="#a` ~\n\t", max_size=200))
def test_dividing_a_text_into_sections_loses_no_word(text: str) -> None:
    sections, left = divide(text)

    assert left == 0
    assert "\n".join(f"{s.heading}\n{s.body}" for s in sections).split() == text.split()
