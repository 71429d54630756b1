"""The PostgreSQL server of these tests, and replicas that share it."""

from support.postgres import postgres  # noqa: F401 - a fixture
from support.replicas import cluster  # noqa: F401 - a fixture
