"""The messages of the HTTP interface, each declared once: its fields, their bounds, and what they mean.

The client encodes requests and decodes responses as these Structs, routes get and return them, and the events of groups
are requests of members with what the coordinator knows of their sender. ``ingest_api.message_models`` makes of them the
models by which FastAPI checks and describes requests, so the classes' docstrings and the descriptions of ``Meta`` are
for readers of ``/docs``.

The routes of records read and write their bodies by hand. Their messages are here for the description alone.
"""
