"""The promises of SECURITY.md and README.md as data: each sentence with the tests that prove it."""

from promises.clients import CLIENTS
from promises.promise import Promise
from promises.readme import README, README_REMARKS, README_SECTIONS
from promises.servers import SERVERS
from promises.trust import TRUST

SECURITY = (*SERVERS, *CLIENTS, *TRUST)
"""In the order of the page."""

__all__ = ["README", "README_REMARKS", "README_SECTIONS", "SECURITY", "Promise"]
