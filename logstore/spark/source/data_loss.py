"""Data loss, in the sense of Spark's Kafka source: records that were asked for are gone, or their topic is."""

import logging

from logstore.errors import LogStoreError

log = logging.getLogger(__name__)


class DataLossError(LogStoreError):
    """Records of a range are gone, and the option ``failOnDataLoss`` is true."""

    kafka_name, kafka_code = "OFFSET_OUT_OF_RANGE", 1


def report_data_loss(reason: str, *, fail: bool) -> None:
    """DataLossError where ``fail``; else a warning in the log, and the caller goes on with what is left."""
    lost = f"Some data may have been lost, because they are not available any more: {reason}"
    if fail:
        raise DataLossError(
            f"{lost}. If you don't want your query to fail on such cases, set the source option failOnDataLoss to false"
        )
    log.warning("%s. If you want your query to fail on such cases, set the source option failOnDataLoss to true", lost)


def beyond_history(topic: str, partition: int, start: int, end: int, sealed: int) -> str:
    """The loss of offsets ``start <= offset < end`` that were in the table, which ends at ``sealed`` now."""
    return (
        f"topic {topic}, partition {partition}: offsets {max(start, sealed)} to {end - 1} are no longer in the table, "
        f"which ends at {sealed}: another writer overwrote a commit; a store commits it again"
    )
