"""Options of a request override those of its session, and these the agent's."""

import pytest

from mcp_context_proxy.config import Config
from mcp_context_proxy.config.settings import EmbeddingConfig, SearchConfig
from mcp_context_proxy.context import DomainOverrides, Overrides, configured, overridden

OTHER = EmbeddingConfig(model="another")
AGGRESSIVE = Overrides(tools=DomainOverrides(preset="aggressive"))


def test_a_preset_of_a_session_brings_all_its_numbers_with_the_packaged_model() -> None:
    tools = overridden(configured(Config()), AGGRESSIVE).tools

    assert (tools.top_k, tools.top_n, tools.include_score) == (10, 3, 0.8)


@pytest.mark.parametrize("search", [SearchConfig(), SearchConfig(include_score=0.4)])
def test_with_another_model_a_preset_brings_no_include_score(search: SearchConfig) -> None:
    """The presets' bounds of cosines were measured for the packaged model."""
    options = overridden(configured(Config(embedding=OTHER, search=search)), AGGRESSIVE)

    assert (options.tools.top_k, options.tools.top_n, options.tools.include_score) == (10, 3, None)
    assert not configured(Config(embedding=OTHER, search=search)).tools.by_fit
    assert options.documents.include_score == search.include_score


def test_with_another_model_a_score_that_is_given_counts() -> None:
    given = Overrides(tools=DomainOverrides(preset="aggressive", include_score=0.5))

    assert overridden(configured(Config(embedding=OTHER)), given).tools.include_score == 0.5
    assert overridden(configured(Config(embedding=OTHER)), given, AGGRESSIVE).tools.include_score is None
