"""The API takes and answers the examples of docs/api.md."""

import msgspec
import pytest

from mcp_context_proxy.web.contexts import ContextWanted, RequestResponse, SessionChanges
from mcp_context_proxy.web.search import SearchResponse


@pytest.mark.parametrize(
    ("position", "form"),
    list(enumerate([ContextWanted, RequestResponse, SessionChanges, SearchResponse])),
)
def test_an_example_has_the_form_of_the_api(api, position, form):
    examples = list(api.blocks("json"))

    assert len(examples) == 4
    read = msgspec.json.decode(examples[position], type=form)
    assert msgspec.json.decode(examples[position]).keys() <= set(form.__struct_fields__)
    assert read == msgspec.json.decode(msgspec.json.encode(read), type=form)
