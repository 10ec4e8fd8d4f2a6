"""Seeded generators of sessions, one module a family; every parameter names its source."""
