"""Fetches: records of any number of partitions, from history and tail, with one wait for all of them."""
