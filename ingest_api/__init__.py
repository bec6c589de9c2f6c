"""The HTTP edge of the log store: a FastAPI application over one broker, and the listener that serves it.

Only ``logstore.node``, which puts both together, imports this package; nothing else imports a web framework. It is
installed with ``logstore`` and needs its extra ``server``.
"""

from ingest_api.app import create_app
from ingest_api.http_listener import HttpListener

__all__ = ["HttpListener", "create_app"]
