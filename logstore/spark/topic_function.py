"""The table function ``logstore_topic`` of Spark's SQL: a topic's records by offset range, in one task.

It is an Arrow UDTF, which has one schema and evaluates its arguments in the task. So "latest" is decided whenever a
query runs, and nothing is read past what a query takes, as with LIMIT. It has no headers, because they cost each query.
"""

import json
from collections.abc import Iterator
from datetime import date, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

from logstore.errors import InvalidRequestError
from logstore.spark.worker import one_line_errors, require_packages

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.udtf import UserDefinedTableFunction

    from logstore.spark.offset_ranges import OffsetSpec
    from logstore.spark.topic_view import TopicView

_ARGUMENTS = ("topic", "starting", "ending", "bootstrap", "storage")
_CLIENT_ID = "spark logstore_topic"


def topic_function(default_bootstrap: str) -> "UserDefinedTableFunction":
    """Return the function to register; ``default_bootstrap`` is the store that is read when a query names none."""
    from pyspark.sql.functions import arrow_udtf

    from logstore.spark.column_types import struct_of
    from logstore.spark.source.columns import COLUMNS

    class LogStoreTopic:
        """A class made in a function, so that Spark pickles it by value, with the address in it."""

        # Names of parameters are names of arguments in SQL; each is an array with one value.
        def eval(
            self,
            topic: "pa.Array",
            starting: "pa.Array" = ("earliest",),
            ending: "pa.Array" = ("latest",),
            bootstrap: "pa.Array" = (None,),
            storage: "pa.Array" = (None,),
            **unknown: "pa.Array",
        ) -> Iterator["pa.RecordBatch"]:
            given = [_value(argument) for argument in (topic, starting, ending, bootstrap, storage)]
            return topic_records(*given, default_bootstrap=default_bootstrap, unknown=tuple(unknown))

    function = arrow_udtf(LogStoreTopic, returnType=struct_of(COLUMNS))
    return cast("UserDefinedTableFunction", function)


def _value(argument: Any) -> Any:
    value = argument[0]
    return value.as_py() if hasattr(value, "as_py") else value


def topic_records(
    topic: Any,
    starting: Any,
    ending: Any,
    bootstrap: Any,
    storage: Any,
    *,
    default_bootstrap: str,
    unknown: tuple[str, ...] = (),
) -> Iterator["pa.RecordBatch"]:
    """Yield records with ``starting <= offset < ending``, as ``columns.arrow_schema()``, partition by partition.

    Arguments are SQL's; ``unknown`` are the names of those that the function does not have. Raises InvalidRequestError,
    and as ``read_offsets``, before the first batch.
    """
    with one_line_errors():
        require_packages()
        for name in unknown:
            near = get_close_matches(name, _ARGUMENTS, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise InvalidRequestError(f"There is no argument '{name}': {hint}The function has {', '.join(_ARGUMENTS)}")
        for name, value in {"topic": topic, "bootstrap": bootstrap or "", "storage": storage or ""}.items():
            if not isinstance(value, str):
                raise InvalidRequestError(f"{name} => {value!r}: give text")
        specs = offset_spec("starting", starting), offset_spec("ending", ending)
        yield from _read(topic, *specs, bootstrap or ("" if storage else default_bootstrap), storage or "")


def _read(
    topic: str, starting: "OffsetSpec", ending: "OffsetSpec", bootstrap: str, storage: str
) -> Iterator["pa.RecordBatch"]:
    from logstore.spark.offset_ranges import resolve
    from logstore.spark.source.options import ReadOptions, Subscription
    from logstore.spark.source.planning import plan_slices
    from logstore.spark.source.slice_reader import read_slice
    from logstore.spark.source.slices import TopicRange

    options = ReadOptions(Subscription((topic,)), bootstrap=bootstrap, storage=storage, client_id=_CLIENT_ID)
    view = _view(topic, bootstrap, storage)
    names = ("starting", "ending")
    ranges = resolve(topic, starting, ending, view.bounds, view.offsets_of_times, names=names)
    view.require_whole(ranges)
    wanted = [TopicRange(topic, view.topic_id, r.partition, r.start, r.end) for r in ranges]
    for part in plan_slices({topic: view}, wanted, options):
        yield from read_slice(part, options)


def _view(topic: str, bootstrap: str, storage: str) -> "TopicView":
    from logstore.spark.topic_view import check_source, connect, view_of_storage, view_through_store

    check_source(bootstrap or None, storage or None)
    if storage:
        return view_of_storage(storage, topic)
    with connect(bootstrap, _CLIENT_ID) as store:
        return view_through_store(store, topic)


def offset_spec(name: str, value: Any) -> "OffsetSpec":
    """Return an argument of SQL as an ``OffsetSpec``: a word, a time, or JSON by partition: ``{"0": 100, "1":
    "latest"}``.

    Raises InvalidRequestError, also for a TIMESTAMP_NTZ: it means the session's zone, which a task does not know.
    """
    if isinstance(value, datetime) and value.tzinfo is None:
        raise InvalidRequestError(
            f"{name} => TIMESTAMP_NTZ '{value}' has no time zone: give TIMESTAMP '{value}', or text, which is UTC "
            f"without a zone: '{value.isoformat()}Z'"
        )
    if isinstance(value, date) or (isinstance(value, str) and not value.lstrip().startswith("{")):
        return value
    wrong = InvalidRequestError(
        f'{name} => {value!r}: give "earliest", "latest", a time, or JSON that names every partition, such as '
        '{"0": 100, "1": "earliest"}'
    )
    if not isinstance(value, str):
        raise wrong
    try:
        by_partition = json.loads(value)
        return {int(partition): offset for partition, offset in by_partition.items()}
    except ValueError:
        raise wrong from None
