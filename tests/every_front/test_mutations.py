"""Messages of which one value, at whatever depth, is of another kind than the protocol says."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from support.raw_client import RawClient, RpcError
from support.tables import each

VALUES: tuple[Any, ...] = (None, True, -1, 10**30, "", [None], {"a": [{}]})

REQUESTS: dict[str, dict[str, Any]] = {
    "tools/list": {"cursor": "c"},
    "tools/call": {"name": "old__echo", "arguments": {"a": 1}, "_meta": {"progressToken": "t"}},
    "resources/read": {"uri": "note://old/1"},
    "prompts/get": {"name": "old__greet", "arguments": {"who": "x"}},
    "completion/complete": {
        "ref": {"type": "ref/prompt", "name": "old__greet"},
        "argument": {"name": "who", "value": "a"},
        "context": {"arguments": {"b": "c"}},
    },
}


def mutations(whole: Any) -> Iterator[Any]:
    """Yield a value with each of its parts in turn replaced by each of the others, or left out."""
    yield from VALUES
    if isinstance(whole, dict):
        for key, part in whole.items():
            yield {name: value for name, value in whole.items() if name != key}
            for changed in mutations(part):
                yield {**whole, key: changed}


@each("method", REQUESTS)
async def test_each_request_with_one_value_of_another_kind_is_answered(
    client: RawClient, method: str
) -> None:
    for changed in mutations(REQUESTS[method]):
        if isinstance(changed, dict) and isinstance(changed.get("_meta", {}), dict):
            with suppress(RpcError):
                await client.request(method, changed)

    assert "isError" not in await client.call("old__echo", {"text": "still"})
