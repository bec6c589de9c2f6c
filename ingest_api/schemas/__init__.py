"""Shapes of requests and responses, with a module for each resource.

FastAPI reads, checks, writes and documents administration and groups with them. Some models in ``records`` only
document: bodies of produce requests and of responses to reads are never objects.
"""
