"""A member of a group: a consumer of ours, or an instance that the store holds for an HTTP client.

Pure machines without clock, socket or thread: they return the next request, and the partitions to give up or take.
"""
