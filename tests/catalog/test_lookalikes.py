from support.servers import real_lists
from support.tables import each

from mcp_context_proxy.catalog.names import lookalikes


@each(
    "other",
    ["Create_Issue", "create-issue", "create.issue", "cre\u0430te_issue", "ｃreate_issue", "create_1ssue"],
)
def test_tool_names_that_look_alike_are_reported(other: str) -> None:
    name = "create_issue" if other != "create_1ssue" else "create_lssue"

    assert list(lookalikes([name, "close_issue", other])) == [
        f"tools whose names look alike: {name!r}, {other!r}"
    ]


def test_a_large_group_of_lookalikes_is_shortened() -> None:
    (told,) = lookalikes(["get-it", "get.it", "get/it", "get it", "get_it", "GET_IT"])

    assert told == "tools whose names look alike: 'get-it', 'get.it', 'get/it', 'get it', 'get_it', ..."


def test_no_real_server_has_lookalikes() -> None:
    for tools in real_lists().values():
        assert not list(lookalikes(tool["name"] for tool in tools))
