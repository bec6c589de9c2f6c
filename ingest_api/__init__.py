"""The HTTP edge of the log store: a FastAPI application over one broker, and the process that serves it.

Nothing below imports this package or a web framework. ``create_app`` gives the application, ``serve`` runs it; they are
what ``logstore serve`` starts. Installed with ``logstore``; needs its extra ``server``.
"""

from ingest_api.app import create_app
from ingest_api.server import serve

__all__ = ["create_app", "serve"]
