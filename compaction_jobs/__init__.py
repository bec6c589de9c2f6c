"""Spark applications that keep topics small: retention, key compaction, vacuum.

They need the storage alone. Importing this package imports neither Spark nor starts a JVM; a job starts one when it has
work for it. They are what ``logstore job`` and ``spark-submit compaction_jobs/__main__.py`` run. Installed with
``logstore``; needs its extra ``spark``.
"""
