"""The expressions of ``--where`` and ``?where=``: which records of a topic are meant.

``parser`` reads them, ``expression`` is what was read, ``evaluation`` applies it to columns, and ``json_paths`` finds
fields in JSON values.
"""
