"""Programs that load a server, each a process of its own: a specification as JSON on stdin, a result on stdout.

``confluent`` runs in .venv-bench, where nothing of this project is installed: it imports ``result`` and no more.
"""
