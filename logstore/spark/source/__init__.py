"""``format("logstore")``: topics as a batch and streaming source of Spark, in the terms of Spark's Kafka source.

Options (``options``) name topics and offsets; ``topics`` looks the topics up in the store or the tables; ``positions``
turns both into offset ranges; ``planning`` divides ranges into slices, one for each task; ``slice_reader`` reads a
slice in an executor. ``batch_reader`` and ``stream_reader`` combine these for Spark's Python Data Source API.
"""

from logstore.spark.worker import require_packages

# Workers import this first: one line names all missing packages, before the first of them fails an import.
require_packages()
