"""The store: everything that is kept between two starts, in one SQLite file, in memory, or in PostgreSQL."""
