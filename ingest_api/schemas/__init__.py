"""Shapes of requests and answers, a module for each resource.

FastAPI reads, checks, writes and documents administration and groups with them. Some models in ``records`` only
document: bodies of produce requests and of answers to reads are never objects.
"""
