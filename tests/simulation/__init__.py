"""The whole store in one process, by a seed: its real code, on time, threads, chance and a disk that are played.

``docs/simulated-world.md`` tells how to write a fault and how to replay a seed.
"""
