"""The HTTP edge of the log store: a FastAPI application over one broker, and the listener that serves it.

Nothing below imports this package or a web framework. ``logstore.node`` puts both together. Installed with
``logstore``; needs its extra ``server``.
"""

from ingest_api.app import create_app
from ingest_api.http_listener import HttpListener

__all__ = ["HttpListener", "create_app"]
