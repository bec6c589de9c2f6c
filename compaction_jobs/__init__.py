"""Spark applications that keep topics small: retention, key compaction, vacuum.

They need only the storage. Importing this package imports no Spark and starts no JVM; a job starts one when it has work
for it. ``logstore job`` and ``spark-submit compaction_jobs/__main__.py`` run them. They are installed with ``logstore``
and need its extra ``spark``.
"""
