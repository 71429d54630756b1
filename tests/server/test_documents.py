"""Rules and references as a model gets them: in answers, in parts, and once in a session."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.ledger import until
from support.proxies import Host, command, inside
from support.raw_client import OWN, PREFIX
from support.raw_client import text_of as text_in
from support.servers import Workshop, tool
from support.skills import write
from support.wires import stdio

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.context import ContextItem, Delivery
from mcp_context_proxy.embedding.embeddings import TokenCounter
from mcp_context_proxy.items import Kind

SEARCH = "search_available_tools"
READ = "read_document"
BILLING = "how is an invoice numbered"
COUNT = TokenCounter().count

HANDBOOK = "# Handbook\n\n" + "\n\n".join(
    f"## {title}\n\n{text}\n\n### Details\n\n{'More about it, in many words. ' * 60}"
    for title, text in (
        ("Travel", "Trips are booked by the office."),
        ("Holidays", "Employees get thirty days of vacation a year."),
        ("Equipment", "Laptops are replaced after four years."),
    )
)


@pytest.fixture
def folder(workshop: Workshop) -> Path:
    workshop.server("work", tools=[tool("clock", "Tell the time"), tool("dice", "Roll a die")])
    root = workshop.folder / "library"
    root.mkdir()
    return root


@asynccontextmanager
async def opened(
    workshop: Workshop, root: Path, kind: str = "reference", **tables: Any
) -> AsyncIterator[Proxy]:
    documents = [{"kind": kind, "path": str(root)}]
    tables.setdefault("limits", {"indexing_wait_seconds": 600.0})
    async with inside(workshop.config(documents=documents, **tables), patience=None) as proxy:
        yield proxy


async def text_of(host: Host, name: str, arguments: dict[str, Any], **meta: Any) -> str:
    result = await host.call(name, arguments, **meta)
    (block,) = result["content"]
    assert "structuredContent" not in result
    return str(block["text"])


async def recorded(proxy: Proxy) -> dict[str, ContextItem]:
    context = next(iter(proxy.records.recent()))
    return {item.name: item for item in context.items}


async def test_a_found_document_is_given_whole(workshop: Workshop, folder: Path, era: str) -> None:
    text = "# Billing\n\nAn invoice is numbered by year.\n\n```sh\nnumber --next\n```"
    write(folder, {"billing.md": text})
    async with opened(workshop, folder) as proxy:
        answer = await text_of(Host(proxy, era), SEARCH, {"query": BILLING})
        items = await recorded(proxy)

    told = answer.partition("reference://billing (reference):\n")[2]
    assert "\n".join(line.removeprefix("  ") for line in told.splitlines()).startswith(text)
    assert items["billing"].delivered is Delivery.WHOLE


async def test_copies_of_a_document_are_given_once(workshop: Workshop, folder: Path, era: str) -> None:
    """Many projects have one text as AGENTS.md and CLAUDE.md, and again in a package."""
    text = "An invoice is numbered by year, with the number of the customer before it.\n"
    write(folder, {"billing.md": text, "shop/invoices.md": text})
    async with opened(workshop, folder) as proxy:
        host = Host(proxy, era)
        answer = await text_of(host, SEARCH, {"query": BILLING})
        items = await recorded(proxy)
        read = await text_of(host, READ, {"name": "shop/invoices"})

    told = {item.delivered for item in items.values() if item.type is Kind.REFERENCE}
    assert answer.count("numbered by year") == 1
    assert "(reference): the same text as reference://" in answer
    assert told == {Delivery.WHOLE, Delivery.EARLIER}
    assert "numbered by year" in read


async def test_copies_of_a_rule_are_in_the_instructions_and_in_all_answers_once(
    workshop: Workshop, folder: Path
) -> None:
    text = "---\ninclude: always\n---\nBe polite to everybody.\n"
    write(folder, {"tone.md": text, "more/manners.md": text})
    async with opened(workshop, folder, kind="rule") as proxy:
        introduction = proxy.instructions()
        host = Host(proxy, "handshake")
        answers = [await text_of(host, SEARCH, {"query": query}) for query in (BILLING, "tell the time")]

    assert introduction.count("Be polite") == 1
    assert "".join(answers).count("Be polite") == 1


async def test_a_long_document_comes_as_an_outline_that_leads_to_its_sections(
    workshop: Workshop, folder: Path, era: str
) -> None:
    steps = "## Step 1: build it\n\nA.\n\n## Step 2: sign it\n\nB.\n\n## Step 20: tell others\n\nC."
    write(folder, {"handbook.md": HANDBOOK, "numbered.md": steps})
    async with opened(workshop, folder, context={"document_tokens": 300}) as proxy:
        host = Host(proxy, era)
        answer = await text_of(host, SEARCH, {"query": "how many days of vacation do employees get"})
        items = await recorded(proxy)
        section = await text_of(host, READ, {"name": "reference://handbook", "section": "holidays"})
        details = await text_of(host, READ, {"name": "handbook", "section": "Holidays/Details"})
        unclear = await text_of(host, READ, {"name": "handbook", "section": "Details"})
        wrong = await text_of(host, READ, {"name": "handbook", "section": "Holiday"})
        numbered = await text_of(host, READ, {"name": "numbered", "section": "step 2"})
        unclear_words = await text_of(host, READ, {"name": "numbered", "section": "Step"})

    assert (
        "found, and the outline:\n  ## Holidays\n\n  Employees get thirty days of vacation a year." in answer
    )
    assert numbered == "reference://numbered, section Step 2: sign it:\n\n## Step 2: sign it\n\nB."
    assert (
        "several sections of reference://numbered are called Step: name Step 1: build it or" in unclear_words
    )
    assert "- Holidays (" in answer
    assert READ in answer
    assert "More about it, in many words. More about it" not in answer.partition("- Handbook")[2]
    assert COUNT(answer) < 500
    assert items["handbook"].delivered is Delivery.OUTLINE
    assert section.startswith(
        "reference://handbook, section Handbook/Holidays:\n\n## Holidays\n\nEmployees get thirty"
    )
    assert "### Details" in section
    assert "Laptops" not in section
    assert details.partition("\n\n")[2].startswith("### Details")
    assert "name Handbook/Travel/Details or Handbook/Holidays/Details" in unclear
    assert "did you mean Holidays" in wrong


async def test_of_a_long_reference_a_model_gets_the_section_that_was_found(
    workshop: Workshop, folder: Path, era: str
) -> None:
    texts = {"Holidays": "Employees get thirty days of vacation.", "Laptops": "A lost one is reported."}
    sections = [f"## {name}\n\n{text}\n\n{'More of it. ' * 60}END-{name}" for name, text in texts.items()]
    handbook = "# Handbook\n\n" + "\n\n".join([*sections, "## Rest\n\n" + "Other things. " * 100])
    write(folder, {"handbook.md": handbook})
    async with opened(workshop, folder) as proxy:
        host = Host(proxy, era)
        answer = await text_of(host, SEARCH, {"query": "how many days of vacation do employees get"})
        items = await recorded(proxy)
        wanted = {
            "name": "with_context",
            "arguments": {"query": "how many days of vacation do employees get"},
        }
        given = await host.request("prompts/get", wanted)
        prompt, _ = (message["content"]["text"] for message in given["messages"])

    assert "END-Holidays" in prompt
    assert "END-Laptops" not in prompt
    assert READ in prompt
    assert 500 < items["handbook"].tokens < 1_500, "it would fit"
    assert items["handbook"].delivered is Delivery.OUTLINE
    assert (
        "), the section that was found, and the outline:\n  ## Holidays\n\n  Employees get thirty" in answer
    )
    assert "END-Holidays" in answer
    assert "END-Laptops" not in answer
    assert "- Laptops (" in answer
    assert READ in answer


async def test_a_long_rule_is_given_whole(workshop: Workshop, folder: Path, era: str) -> None:
    write(folder, {"style.md": HANDBOOK})
    async with opened(workshop, folder, "rule", context={"document_tokens": 20_000}) as proxy:
        answer = await text_of(
            Host(proxy, era), SEARCH, {"query": "how many days of vacation do employees get"}
        )
        items = await recorded(proxy)

    assert items["style"].delivered is Delivery.WHOLE
    assert HANDBOOK.strip().splitlines()[-1] in answer


async def test_the_documents_of_an_answer_stay_within_their_budget(
    workshop: Workshop, folder: Path, era: str
) -> None:
    for number in range(8):
        write(
            folder, {f"invoice{number}.md": f"# Invoices {number}\n\n" + "How an invoice is numbered. " * 60}
        )
    budget = 1000
    search = {"include_score": 0.1, "top_n": 8}
    async with opened(workshop, folder, context={"document_tokens": budget}, search=search) as proxy:
        answer = await text_of(Host(proxy, era), SEARCH, {"query": BILLING, "kinds": ["reference"]})
        items = await recorded(proxy)

    whole = [item for item in items.values() if item.delivered is Delivery.WHOLE]
    assert len(whole) == 2
    assert len(items) == 8
    assert all(f"reference://{name} (" in answer for name in items)
    assert COUNT(answer) < budget + 400


async def test_a_very_long_document_is_read_in_pages_that_are_all_of_it(
    workshop: Workshop, folder: Path, era: str
) -> None:
    lines = [f"Line {number} of the log, which goes on for a while." for number in range(2000)]
    write(folder, {"log.md": "# Log\n\n" + "\n".join(lines)})
    async with opened(workshop, folder) as proxy:
        host = Host(proxy, era)
        first = await host.data(READ, {"name": "log"})
        pages = [first] + [
            await host.data(READ, {"name": "log", "page": page}) for page in range(2, first["pages"] + 1)
        ]
        told = await text_of(host, READ, {"name": "log"})
        beyond = await text_of(host, READ, {"name": "log", "page": 99})

    assert first["pages"] > 3
    assert all(len(page["text"]) <= 20_000 for page in pages)
    assert "".join(page["text"] for page in pages) == "# Log\n\n" + "\n".join(lines)
    assert f"page 1 of {first['pages']}" in told
    assert told.endswith("Go on with page 2.")
    assert f"has no page 99: it has {first['pages']} pages" in beyond


async def test_an_unknown_document_is_answered_with_the_nearest_name(
    workshop: Workshop, folder: Path, era: str
) -> None:
    write(folder, {"billing.md": "Text."})
    async with opened(workshop, folder) as proxy:
        result = await Host(proxy, era).call(READ, {"name": "reference://biling"})

    assert result["isError"] is True
    assert "did you mean reference://billing?" in result["content"][0]["text"]


async def test_a_document_is_read_under_the_words_that_models_have_for_its_name(
    workshop: Workshop, folder: Path
) -> None:
    write(folder, {"billing.md": "Text."})
    async with opened(workshop, folder) as proxy:
        host = Host(proxy, "modern")
        known = [await text_of(host, READ, {word: "reference://billing"}) for word in ("uri", "document")]
        known += [await text_of(host, READ, {"name": name}) for name in ("billing.md", "Billing")]
        both = await text_of(host, READ, {"uri": "reference://billing", "path": "billing.md"})

    assert all(one.endswith("Text.") for one in known)
    # It cannot be told which is meant.
    assert "is not known" in both


async def test_a_file_of_sections_is_answered_with_its_sections(workshop: Workshop, folder: Path) -> None:
    write(folder, {"AGENTS.md": "# Tests\nRun them.\n# Deploying\nOn Tuesdays.\n"})
    async with opened(workshop, folder) as proxy:
        for name in ("AGENTS", "agents.md", "reference://AGENTS", "CLAUDE.md", "GEMINI"):
            result = await Host(proxy, "handshake").call(READ, {"name": name})
            told = result["content"][0]["text"]

            assert "did you mean reference://AGENTS%2F" in told
            assert "%2FTests" in told
            assert "%2FDeploying" in told


async def test_the_tool_that_reads_documents_is_listed_only_where_there_are_some(
    workshop: Workshop, folder: Path, era: str
) -> None:
    write(folder, {"billing.md": "Text."})
    async with opened(workshop, folder) as proxy:
        definitions = (await Host(proxy, era).request("tools/list"))["tools"]
    async with inside(workshop.config()) as proxy:
        without = await Host(proxy, era).names()

    (definition,) = [one for one in definitions if one["name"] == READ]
    assert READ not in without
    assert definition["annotations"]["readOnlyHint"] is True
    assert set(definition["inputSchema"]["properties"]) == {"name", "section", "page"}
    read = {name: definition[name] for name in ("name", "description", "inputSchema")}
    assert COUNT(json.dumps(read)) <= 120


RULES = {
    "tone.md": "---\ninclude: always\npriority: 900\n---\nBe polite to everybody.\n",
    "commits.md": "---\ninclude: manual\n---\nCommit messages say why.\n",
}


async def test_the_instructions_have_the_rules_in_the_order_of_their_priority(
    workshop: Workshop, folder: Path
) -> None:
    front = "---\ninclude: always\npriority: {}\n---\n"
    words = "word " * 300  # so that all are more than there is room for
    priorities = {"late": 900, "first": 1, "middle": 500}
    files = {
        f"{name}.md": front.format(number) + f"The {name} rule. {words[: number * 2]}\n"
        for name, number in priorities.items()
    }
    write(folder, files)
    async with opened(workshop, folder, "rule") as proxy:
        text = proxy.instructions()

    assert -1 < text.index("The first rule.") < text.index("The middle rule.")
    assert "The late rule." not in text
    assert "rule://late" in text


async def test_the_rules_of_a_session_are_in_its_first_answer_and_in_no_other(
    workshop: Workshop, folder: Path
) -> None:
    write(folder, RULES)
    async with opened(workshop, folder, "rule") as proxy:
        host = Host(proxy, "handshake")
        first = await text_of(host, SEARCH, {"query": "tell the time"})
        items = await recorded(proxy)
        second = await text_of(host, SEARCH, {"query": "roll a die"})
        later = await recorded(proxy)
        another = await text_of(Host(proxy, "handshake"), SEARCH, {"query": "tell the time"})

    assert "rule://tone (rule):\n  Be polite to everybody." in first
    assert items["tone"].delivered is Delivery.WHOLE
    assert "Be polite" not in second
    assert later["tone"].delivered is Delivery.EARLIER
    assert "Be polite to everybody." in another


async def test_a_rule_that_is_added_by_hand_comes_with_the_next_answer(
    workshop: Workshop, folder: Path, era: str
) -> None:
    write(folder, RULES)
    async with opened(workshop, folder, "rule", context={"manage_tool": True}) as proxy:
        host = Host(proxy, era)
        given = {"context_id": (await host.data("set_context", {"query": "time"}))["context_id"]}
        handle = proxy.handles.get(given["context_id"])
        assert handle is not None
        proxy.contexts.add(handle, Kind.RULE, "commits")
        answer = await text_of(host, SEARCH, {"query": "tell the time", **given})
        items = await recorded(proxy)
        again = await text_of(host, SEARCH, {"query": "roll a die", **given})

    assert "Commit messages say why." in answer
    assert items["commits"].delivered is Delivery.WHOLE
    assert "Be polite" not in answer
    assert "Commit messages" not in again


async def test_a_handle_is_given_the_rules_in_its_first_answer(
    workshop: Workshop, folder: Path, era: str
) -> None:
    write(folder, RULES)
    async with opened(workshop, folder, "rule") as proxy:
        host = Host(proxy, era)
        context = await text_of(host, "set_context", {"query": "tell the time"})
        context_id = context.rpartition(" ")[2]
        again = await text_of(host, SEARCH, {"query": "roll a die"}, **{OWN + "context": context_id})

    assert "Be polite to everybody." in context
    assert "Be polite" not in again


async def test_an_answer_outside_of_a_session_has_no_rules_but_those_that_were_found(
    workshop: Workshop, folder: Path
) -> None:
    write(folder, RULES)
    async with opened(workshop, folder, "rule") as proxy:
        host = Host(proxy, "modern")
        answers = [await text_of(host, SEARCH, {"query": query}) for query in ("tell the time", "roll a die")]
        items = await recorded(proxy)

    assert "Be polite" not in "".join(answers)
    assert items["tone"].delivered is None


@pytest.mark.parametrize("host", ["raw", "copilot-cli"])
async def test_a_modern_connection_is_given_once_the_rules_that_were_not_in_its_instructions(
    workshop: Workshop, folder: Path, host: str
) -> None:
    """One host gives its model the instructions, the other does not."""
    write(folder, RULES)
    front = "---\ninclude: always\n---\n"
    write(
        folder,
        {"long.md": f"{front}Sign off. {'Words of the rule. ' * 150}", "read.md": f"{front}{HANDBOOK}"},
    )
    config = workshop.config(documents=[{"kind": "rule", "path": str(folder)}], expose={"mode": "search"})
    info = {PREFIX + "clientInfo": {"name": host, "version": "1"}}
    async with stdio(command(config), "modern", opened=False) as client:
        told = str((await client.request("server/discover", **info))["instructions"])
        await client.call(READ, {"name": "rule://read"}, **info)
        queries = ("tell the time", "roll a die")
        answers = [text_in(await client.call(SEARCH, {"query": query}, **info)) for query in queries]

    assert "Be polite to everybody." in told
    assert "Sign off." not in told
    assert "rule://long" in told
    assert ("Be polite to everybody." in answers[0]) is (host == "copilot-cli")
    assert "Sign off." in answers[0]
    assert "Holidays" not in answers[0]
    assert "For the whole session" not in answers[1]


async def test_a_rule_that_changes_is_given_again(workshop: Workshop, folder: Path) -> None:
    write(folder, RULES)
    async with opened(workshop, folder, "rule") as proxy:
        host = Host(proxy, "handshake")
        await host.call(SEARCH, {"query": "tell the time"})
        write(folder, {"tone.md": RULES["tone.md"].replace("polite", "brief")})
        await proxy.refresh.reread()
        answer = await text_of(host, SEARCH, {"query": "tell the time"})

    assert "Be brief to everybody." in answer


async def test_rules_that_do_not_fit_into_one_answer_come_with_the_next(
    workshop: Workshop, folder: Path
) -> None:
    for name in "abc":
        text = f"---\ninclude: always\n---\nRule {name} begins. {'Words of the rule. ' * 40}"
        write(folder, {f"{name}.md": text})
    async with opened(workshop, folder, "rule", context={"document_tokens": 250}) as proxy:
        host = Host(proxy, "handshake")
        answers, delivered = [], []
        for query in ("tell the time", "roll a die", "read a clock", "throw dice"):
            answers.append(await text_of(host, SEARCH, {"query": query}))
            items = await recorded(proxy)
            delivered.append([name for name, item in items.items() if item.delivered is Delivery.WHOLE])

    assert delivered == [["a"], ["b"], ["c"], []]
    for name, answer in zip("abc", answers, strict=False):
        assert f"Rule {name} begins." in answer
    assert "rule://b (rule, " in answers[0]


async def test_a_rule_over_the_budget_comes_once_as_an_outline(workshop: Workshop, folder: Path) -> None:
    write(folder, {"style.md": f"---\ninclude: always\n---\n{HANDBOOK}"})
    async with opened(workshop, folder, "rule", context={"document_tokens": 300}) as proxy:
        host = Host(proxy, "handshake")
        first = await text_of(host, SEARCH, {"query": "tell the time"})
        items = await recorded(proxy)
        second = await text_of(host, SEARCH, {"query": "roll a die"})

    assert "- Holidays (" in first
    assert items["style"].delivered is Delivery.OUTLINE
    assert "Holidays" not in second


async def test_a_request_without_a_session_records_no_rule_that_it_does_not_give(
    workshop: Workshop, folder: Path
) -> None:
    write(folder, RULES)
    async with opened(workshop, folder, "rule") as proxy:
        host = Host(proxy, "handshake")
        await proxy.contexts.build("tell the time")
        built = await recorded(proxy)
        await host.request("tools/list", **{OWN + "query": "tell the time"})
        listed = await recorded(proxy)
        await host.request("prompts/get", {"name": "with_context", "arguments": {"query": "tell the time"}})
        prompted = await recorded(proxy)

    assert built["tone"].delivered is None
    assert "tone" not in listed or listed["tone"].delivered is None
    assert prompted["tone"].delivered is Delivery.WHOLE


async def test_an_outline_is_given_once_in_a_session_and_later_only_the_place_that_was_found(
    workshop: Workshop, folder: Path
) -> None:
    sections = [
        f"# Part {number}\n\n" + "An invoice of the billing is numbered by year. " * 40 for number in range(9)
    ]
    write(folder, {"billing.md": "\n\n".join(sections)})
    async with opened(workshop, folder) as proxy:
        host = Host(proxy, "handshake")
        first = await text_of(host, SEARCH, {"query": BILLING})
        second = await text_of(host, SEARCH, {"query": BILLING})
        write(folder, {"billing.md": "\n\n".join(sections[:8])})

        def is_reread() -> bool:  # a file that is being written may have been read before it was whole
            text = proxy.catalog.snapshot.documents["reference://billing"].text
            return "Part 7" in text and "Part 8" not in text

        await until(is_reread)
        changed = await text_of(host, SEARCH, {"query": BILLING})

    assert "tokens), outline:\n" in first
    assert "  - Part 7 (" in first
    assert "tokens), outline given earlier in this session:\n  ..." in second
    assert "Part 7 (" not in second
    assert "Read on with read_document" in second
    assert "  - Part 7 (" in changed


async def test_a_document_that_was_read_whole_is_not_given_again(workshop: Workshop, folder: Path) -> None:
    write(folder, {"billing.md": "# Billing\n\nAn invoice is numbered by year.\n"})
    async with opened(workshop, folder) as proxy:
        host = Host(proxy, "handshake")
        await host.call(READ, {"name": "billing"})
        answer = await text_of(host, SEARCH, {"query": BILLING})
        stranger = await text_of(Host(proxy, "handshake"), SEARCH, {"query": BILLING})

    assert "reference://billing (reference): given earlier in this session" in answer
    assert "numbered by year" not in answer
    assert "numbered by year" in stranger


async def test_an_explanation_tells_how_a_rule_reaches_the_model(workshop: Workshop, folder: Path) -> None:
    write(folder, RULES)
    async with opened(workshop, folder, "rule") as proxy:
        host = Host(proxy, "handshake")

        async def delivered(name: str) -> Delivery | None:
            explained = await proxy.contexts.explain("tell the time", Kind.RULE, name, session=host.session)
            return explained.delivered

        before = [await delivered("tone"), await delivered("commits")]
        await host.call(SEARCH, {"query": "tell the time"})
        after = [await delivered("tone"), await delivered("commits")]

    assert before == [Delivery.WHOLE, None]
    assert after == [Delivery.EARLIER, None]


async def test_the_data_of_an_answer_has_the_text_that_a_model_is_given(
    workshop: Workshop, folder: Path, era: str
) -> None:
    write(folder, {"billing.md": "# Billing\n\nAn invoice is numbered by year.\n"})
    async with opened(workshop, folder) as proxy:
        data = await Host(proxy, era).data(SEARCH, {"query": BILLING})

    (told,) = data["documents"]
    assert (told["uri"], told["delivered"]) == ("reference://billing", "whole")
    assert "numbered by year" in told["text"]
