"""``format("logstore")``: topics as a batch and streaming source of Spark, in the terms of Spark's Kafka source.

Options (``options``) name topics and offsets; ``topics`` asks the store, or the tables, what there is; ``positions``
turns both into offset ranges; ``planning`` divides ranges into slices, one for each task; ``slice_reader`` reads a
slice in an executor. ``batch_reader`` and ``stream_reader`` put these together for Spark's Python Data Source API.
"""

from logstore.spark.worker import require_packages

# Workers come by here first: one line for all that they lack, before the first module of them is missed.
require_packages()
