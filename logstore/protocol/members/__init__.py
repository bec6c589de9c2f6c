"""A member of a group, whoever it is: a consumer of ours, or an instance that the store holds for a client of HTTP.

Pure machines without clock, socket or thread: they say which request is next, and what is to be given up or taken.
"""
