from mcp_context_proxy.library import (
    Catalog as Catalog,
)
from mcp_context_proxy.library import (
    Config as Config,
)
from mcp_context_proxy.library import (
    ContextEngine as ContextEngine,
)
from mcp_context_proxy.library import (
    ContextItem as ContextItem,
)
from mcp_context_proxy.library import (
    DomainOverrides as DomainOverrides,
)
from mcp_context_proxy.library import (
    Embeddings as Embeddings,
)
from mcp_context_proxy.library import (
    IncludeMode as IncludeMode,
)
from mcp_context_proxy.library import (
    Interaction as Interaction,
)
from mcp_context_proxy.library import (
    Interactions as Interactions,
)
from mcp_context_proxy.library import (
    Item as Item,
)
from mcp_context_proxy.library import (
    Kind as Kind,
)
from mcp_context_proxy.library import (
    MessageTable as MessageTable,
)
from mcp_context_proxy.library import (
    Mode as Mode,
)
from mcp_context_proxy.library import (
    Overrides as Overrides,
)
from mcp_context_proxy.library import (
    RequestContext as RequestContext,
)
from mcp_context_proxy.library import (
    SelectedItem as SelectedItem,
)
from mcp_context_proxy.library import (
    Session as Session,
)
from mcp_context_proxy.library import (
    reference as reference,
)
from mcp_context_proxy.library import (
    rule as rule,
)
from mcp_context_proxy.library import (
    tool as tool,
)

__version__: str
