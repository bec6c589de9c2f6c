"""Data loss, in the sense of Spark's Kafka source: requested records are gone, or their topic is."""

import logging

from logstore.errors import LogStoreError

log = logging.getLogger(__name__)


class DataLossError(LogStoreError):
    """Raised if records of a range are gone, and the option ``failOnDataLoss`` is true."""

    kafka_name, kafka_code = "OFFSET_OUT_OF_RANGE", 1


def report_data_loss(reason: str, *, fail: bool) -> None:
    """Raise DataLossError if ``fail``; else log a warning, and the caller continues with what is left."""
    lost = f"Some data may have been lost, because they are not available any more: {reason}"
    if fail:
        raise DataLossError(
            f"{lost}. If you don't want your query to fail on such cases, set the source option failOnDataLoss to false"
        )
    log.warning("%s. If you want your query to fail on such cases, set the source option failOnDataLoss to true", lost)


def beyond_history(topic: str, partition: int, start: int, end: int, sealed: int) -> str:
    """Return the text for the loss of offsets ``start <= offset < end`` from the table, which ends at ``sealed``."""
    return (
        f"topic {topic}, partition {partition}: offsets {max(start, sealed)} to {end - 1} are no longer in the table, "
        f"which ends at {sealed}: another writer overwrote a commit; a store commits it again"
    )
