"""Documents are divided at their topics."""

from support.tables import each

from mcp_context_proxy.retrieval.item_metadata import TOPICS_CHARACTERS, topics

LEAVE = "Holidays are asked for two weeks ahead, in the calendar of the team."
TRAVEL = "Trips are booked by the office, and paid back within a month of the receipt."


@each(
    ("text", "expected"),
    [
        (f"{LEAVE}\n\n{TRAVEL}", (LEAVE, TRAVEL)),
        (f"# Leave\n\n{LEAVE}\n\n## Travel\n\n{TRAVEL}", (f"# Leave\n\n{LEAVE}", f"## Travel\n\n{TRAVEL}")),
        (f"# Leave\n\n{LEAVE}\n\n{TRAVEL}", (f"# Leave\n\n{LEAVE}", f"# Leave\n\n{TRAVEL}")),
        (f"Team\n====\n\n## Leave\n\n{LEAVE}", (f"Team\n====\n\n## Leave\n\n{LEAVE}",)),
        (f"```sh\n# {LEAVE}\n```\n\n{TRAVEL}", (f"```sh\n# {LEAVE}\n```", TRAVEL)),
        (f"{LEAVE}\n\nAsk Maria.", (f"{LEAVE}\n\nAsk Maria.",)),
        ("Ask Maria.", ("Ask Maria.",)),
        ("", ("",)),
    ],
)
def test_each_topic_is_a_chunk_with_its_heading(text: str, expected: tuple[str, ...]) -> None:
    assert topics(text) == expected


def test_no_chunk_is_longer_than_the_limit_and_nothing_is_lost() -> None:
    headings = "\n".join(f"## {number} {TRAVEL * 3}" for number in range(20))
    text = f"# Rules\n\n{LEAVE * 20}\n\n{TRAVEL}\n\nEnd\n\n{headings}"
    divided = topics(text)
    assert max(map(len, divided)) <= 500
    assert "".join("".join(divided).replace("# Rules", "").split()) == "".join(text[7:].split())


def test_a_large_document_is_packed_within_its_sections() -> None:
    text = "\n\n".join([LEAVE] * (TOPICS_CHARACTERS // len(LEAVE) + 1))
    assert len(topics(text)) < text.count("\n\n") / 4
    assert topics(f"{text}\n\n# Travel\n\n{TRAVEL}")[-1] == f"# Travel\n\n{TRAVEL}"


def test_short_sections_of_a_large_document_share_chunks() -> None:
    """A reference of an interface has thousands of them, and each chunk is embedded."""
    text = "\n\n".join(f"## Setting {number}\n\n{TRAVEL}" for number in range(TOPICS_CHARACTERS // 50))

    assert len(topics(text)) <= 2 * len(text) / 500
