"""Spark applications that keep topics small: retention, key compaction, vacuum.

They need the storage alone. Importing this package imports neither Spark nor starts a JVM; a job starts one when it has
work for it.
"""
