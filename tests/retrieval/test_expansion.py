"""Context expansion finds items by the same vectors as search, compared item by item."""

from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel, QueryEmbedder
from mcp_context_proxy.items import Item
from mcp_context_proxy.library import Catalog, reference, tool
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.expansion import Expander, ExpansionOptions
from mcp_context_proxy.store.opening import open_store

PARTS = {
    "bread": "Bread is baked in an oven from flour, water, salt and yeast. ",
    "stars": "A telescope shows the moons of Jupiter and the rings of Saturn. ",
    "mars": "Mars is a planet with two small moons and a thin atmosphere. ",
    "comet": "A comet is a body of ice that grows a tail near the Sun. ",
    "galaxy": "The galaxy has a hundred billion stars, and most of them have planets. ",
    "moon": "The Moon turns around the Earth and shows it always the same side. ",
    "tax": "The tax office wants an income declaration from every citizen in April. ",
    "ships": "A ship in the harbour is loaded with containers by a crane. ",
    "bees": "Bees carry pollen from flower to flower and make honey in a hive. ",
    "chess": "In chess the bishop moves along the diagonals of the board. ",
    "snow": "Snow that falls in the mountains feeds the rivers in spring. ",
}
"""More about the sky than stands for an item, so that nothing else does where that is asked for."""
ALMANAC = reference("almanac", "\n\n".join(text * 7 for text in PARTS.values()))
BAKE = tool("bake", "Bake bread in an oven from flour, water and yeast")
LOOK = tool("look", "Look at Jupiter and Saturn through a telescope")
TOOLS = (BAKE, LOOK)
NEAR = ExpansionOptions(depth=1, threshold=0.5, top_n=1)


def brought(items: tuple[Item, ...], selected: Item, query: str) -> list[str]:
    catalog, model = Catalog(items), LazyModel()
    queries = QueryEmbedder(model)
    with open_store("memory") as store:
        engine = Engine(CachedEmbedder(model, store.vectors), queries)
        engine.index(catalog.snapshot)
        expander = Expander(engine.index_of, queries)
        found = expander.expand([selected], query, catalog.snapshot, NEAR, lambda _item: True)
    return [one.item.name for one in found]


def test_expansion_compares_the_chunks_of_a_document_that_the_query_is_about() -> None:
    assert brought((ALMANAC, *TOOLS), ALMANAC, "bread from the oven") == ["bake"]
    assert brought((ALMANAC, *TOOLS), ALMANAC, "moons of Jupiter") == ["look"]


def test_an_item_is_never_its_own_neighbour() -> None:
    catalog, model = Catalog([BAKE, ALMANAC]), LazyModel()
    with open_store("memory") as store:
        engine = Engine(CachedEmbedder(model, store.vectors), QueryEmbedder(model))
        engine.index(catalog.snapshot)
        related = Expander(engine.index_of, None).related(BAKE, catalog.snapshot, 0.0, 10)

    assert [one.item.name for one in related] == ["almanac"]


def test_without_a_model_expansion_finds_nothing() -> None:
    catalog = Catalog([BAKE, ALMANAC])
    engine = Engine(None)
    engine.index(catalog.snapshot)
    expander = Expander(engine.index_of, None)

    assert expander.related(BAKE, catalog.snapshot, 0.0, 10) == []
    assert expander.expand([BAKE], "bread", catalog.snapshot, NEAR, lambda _item: True) == []
    assert expander.suggested("bread", catalog.snapshot, NEAR, lambda _item: True) == []
