"""The declared columns of a topic."""

from typing import Annotated

from msgspec import Meta

from logstore.protocol.messages.base import Int64, Query, Request, Response

_DDL = "Columns, as `carrier STRING, city STRING FROM user.city`."


class ColumnsRequest(Request, frozen=True):
    columns: Annotated[str, Meta(min_length=1, description=_DDL)]
    dry_run: Annotated[bool, Meta(description="Say what would change, and change nothing.")] = False


class RetireColumnsRequest(Request, frozen=True):
    columns: Annotated[tuple[str, ...], Meta(min_length=1, description="Names of columns.")]
    dry_run: Annotated[bool, Meta(description="Say what would change, and change nothing.")] = False


class Column(Response, frozen=True):
    name: str
    field: Annotated[str, Meta(description="The path of the field in the value.")]
    conversion: Annotated[str, Meta(examples=["string"])]
    retired: Annotated[bool, Meta(description="The column is not filled any more; its name and type stay.")]


class TopicColumns(Response, frozen=True):
    """The numbers are those of the Delta table: records that are not rolled yet are not counted."""

    topic: str
    mode: Annotated[str, Meta(description="`table.columns.mode`.", examples=["declared"])]
    ddl: Annotated[str, Meta(description="The declared columns that are not retired.")]
    columns: tuple[Column, ...]
    misfits: Annotated[Int64, Meta(description="Records that have a `value_error` in place of columns.")]
    unfilled_files: Annotated[int, Meta(description="Files without one of the columns, from before it was declared.")]
    unfilled_records: Int64
    problems: Annotated[tuple[str, ...], Meta(description="What of the table's schema cannot be followed.")]


class ChangedColumns(Response, frozen=True):
    topic: str
    added: Annotated[tuple[str, ...], Meta(description="Declarations of the columns that are derived from now on.")]
    retired: tuple[str, ...]
    ddl: Annotated[str, Meta(description="All declared columns that are not retired.")]


class ProposalQuery(Query, frozen=True):
    records: Annotated[
        str | None, Meta(description="The newest records to look at, 1 to 100000 (default: 10000).", examples=["1000"])
    ] = None


class FieldLeftOut(Response, frozen=True):
    field: str
    reason: str


class Misfit(Response, frozen=True):
    reason: str
    records: Int64


class ColumnProposal(Response, frozen=True):
    topic: str
    ddl: Annotated[str, Meta(description="The columns to declare; empty if there are none.")]
    records: Annotated[int, Meta(description="The records that were looked at.")]
    fitting: Annotated[int, Meta(description="Those that would have columns, and tombstones.")]
    misfits: Annotated[tuple[Misfit, ...], Meta(description="The most frequent reasons of the others.")]
    left_out: tuple[FieldLeftOut, ...]
    plain_bytes: Annotated[Int64, Meta(description="Their values in Parquet.")]
    typed_bytes: Annotated[Int64, Meta(description="Their values and columns in Parquet.")]
