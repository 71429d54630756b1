"""The PostgreSQL servers of these tests."""

from support.postgres import other_postgres, postgres  # noqa: F401 - fixtures
