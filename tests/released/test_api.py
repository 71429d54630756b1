"""The REST API takes and answers the same as when it was released."""

from typing import Any

import httpx2
from support.proxies import http_proxy
from support.servers import Workshop

from .conftest import AsReleased

IN_WORDS = {"description", "summary", "title", "version"}


def without_words(value: Any, document: dict[str, Any]) -> Any:
    """A part of the document, with schemas in place of the names they have: the forms sent and taken."""
    if isinstance(value, list):
        return [without_words(item, document) for item in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return without_words(document["components"]["schemas"][name], document)
    return {
        # The order of required names means nothing, like that of parameters below.
        key: sorted(item) if key == "required" and isinstance(item, list) else without_words(item, document)
        for key, item in value.items()
        if not (key in IN_WORDS and isinstance(item, str))
    }


def problems(responses: dict[str, Any]) -> dict[str, str]:
    """The media type of each answer that is a problem; they all look alike."""
    return {
        status: " ".join(response.get("content", {}))
        for status, response in responses.items()
        if status != "200"
    }


def test_the_rest_api_is_as_released(workshop: Workshop, as_released: AsReleased) -> None:
    with http_proxy(workshop.config()) as proxy:
        document = httpx2.get(f"{proxy.base}/api/v1/openapi.json", timeout=60).json()
    operations = {
        f"{method.upper()} {path}": {
            "name": operation["operationId"],
            # Their order means nothing.
            "parameters": sorted(
                without_words(operation["parameters"], document), key=lambda each: (each["in"], each["name"])
            ),
            "body": without_words(operation.get("requestBody"), document),
            "answer": without_words(operation["responses"]["200"], document),
            "problems": problems(operation["responses"]),
        }
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    problem = without_words(document["components"]["schemas"]["Problem"], document)

    as_released("api.json", {"operations": operations, "problem": problem})
