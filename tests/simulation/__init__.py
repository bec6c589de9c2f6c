"""A whole store in one process, run by a seed. Its code is real; time, threads, chance, disks and the network are
simulated.

``docs/simulated-world.md`` says how to write a fault and how to replay a seed.
"""
