"""What clients, the store and, later, followers say to each other: error codes, record batches, answers to fetches.

Both ends import it, so that a layout is written down once. It knows no HTTP, no socket and no disk.
"""
