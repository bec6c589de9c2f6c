"""A whole store in one process, by a seed: its real code. Time, threads, chance, disks and the network are played.

``docs/simulated-world.md`` tells how to write a fault and how to replay a seed.
"""
