"""Programs that load a server, each in a separate process: a specification as JSON on stdin, a result on stdout.

``confluent_client`` runs in .venv-bench, where nothing of this project is installed: it imports only ``result``.
"""
