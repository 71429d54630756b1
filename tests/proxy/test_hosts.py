"""The default list and a search answer as the model of each host gets them."""

from support.host_models import description_seen, model_sees, tools_seen
from support.proxies import Host, inside
from support.servers import Workshop, real_lists

from mcp_context_proxy.catalog.names import exposed_name
from mcp_context_proxy.config.host_profiles import HOSTS, room_given
from mcp_context_proxy.protocol import envelope

LONGEST = "update_merge_request_discussion_note"


async def test_list_instructions_and_a_found_name_reach_the_model_of_every_host(workshop: Workshop) -> None:
    tools = [tool for tool in real_lists()["zereight-gitlab"] if "discussion" in tool["name"]]
    workshop.server("zereight-gitlab", tools=tools)
    forms = [exposed_name("zereight-gitlab", LONGEST, room_given(host)) for host in HOSTS.values()]
    async with inside(workshop.config(expose={"mode": "search"})) as proxy:
        instructions = proxy.instructions()
        client = Host(proxy, "modern")
        for host in HOSTS.values():
            client.client_info = envelope.raw({"name": next(iter(host.clients.value), "a test")})
            listed = (await client.request("tools/list"))["tools"]
            answer = await client.call("search_available_tools", {"query": LONGEST.replace("_", " ")})
            name = max((form for form in forms if len(form) <= room_given(host)), key=len)
            called = await client.call("call_tool", {"name": name, "arguments": {}})

            assert "isError" not in called
            prefix = host.names.value.prefix_with(host.server)
            assert tools_seen(host, listed) == [{**tool, "name": prefix + tool["name"]} for tool in listed]
            assert description_seen(host, instructions) == instructions
            assert name in model_sees(host, answer), host.title
            assert len(name) <= host.name_characters
