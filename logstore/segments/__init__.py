"""Segments: the Parquet files of a topic's history. One writer, shared by the roll and by the Spark jobs."""
