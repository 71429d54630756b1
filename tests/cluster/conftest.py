"""The PostgreSQL server of these tests."""

from support.postgres import postgres  # noqa: F401 - a fixture
