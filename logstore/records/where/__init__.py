"""The expressions of ``--where`` and ``?where=``, which select records of a topic.

``parser`` reads them, ``expression`` represents a parsed one, ``evaluation`` applies it to columns, and ``json_paths``
finds fields in JSON values.
"""
