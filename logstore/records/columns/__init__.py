"""Typed columns of a topic's table, derived from the bytes of its values."""
