"""Shapes of requests and answers, a module for each resource.

FastAPI reads, checks, writes and documents administration and groups with them. Of the models in ``records`` some only
document: the bodies that produce requests and answers of reads have are never objects.
"""
