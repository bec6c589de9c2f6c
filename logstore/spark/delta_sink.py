"""A Delta table to which each batch is written once, by Delta's own transaction versions.

Invariants:

- Records and the statement that they are in the table are one commit: ``txnAppId`` and ``txnVersion`` make Delta accept
  a version of an application once, ``userMetadata`` describes it.
- The table's log, read back, decides: a write that raised may have been committed, and one that did not raise may have
  been left out by Delta because another run had this version first.
- If the log has no commit of the transaction, nothing is guessed: Delta refuses a version that it has had, as long as
  it forgets none (``delta.setTransactionRetentionDuration``).

Only Spark's public interfaces are used, so that any sink that this Spark can write to will do.
"""

import logging
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, get_args

from logstore.errors import CommitStateUnknownError, InvalidRequestError
from logstore.spark.sink_commits import C, SinkOffsetsUnknownError, parse_user_metadata, user_metadata

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

SaveMode = Literal["append", "overwrite"]

#: The number of commits of the history that are read first, and the factor by which each further read grows.
HISTORY_FIRST, HISTORY_FACTOR = 100, 8

_FORGETS = "delta.setTransactionRetentionDuration"
_OWN_OPTIONS = {"txnappid", "txnversion", "usermetadata", "path"}
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
_MISSING = {"DELTA_MISSING_DELTA_TABLE", "TABLE_OR_VIEW_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST"}


def reached(step: str) -> None:
    """Do nothing: tests stop a run at these steps."""


class DeltaSink:
    """A Delta table, by its full path or by its name in Spark's catalog."""

    def __init__(self, spark: "SparkSession", path_or_table: str | os.PathLike[str]) -> None:
        """Open a sink. Raises InvalidRequestError for what is neither."""
        given: object = path_or_table
        if not isinstance(given, (str, os.PathLike)) or not os.fspath(path_or_table).strip():
            raise InvalidRequestError(
                f'a sink is the path of a Delta table ("/lake/report") or a table\'s name, and not {path_or_table!r}'
            )
        self._spark = spark
        self._is_path = not isinstance(path_or_table, str) or "/" in path_or_table
        self.name = os.fspath(path_or_table)
        if self._is_path and not _ABSOLUTE.match(self.name):
            raise InvalidRequestError(
                f'sink {self.name}: Spark\'s working directory may be another: give the whole path ("/lake/report")'
            )
        quoted = self.name.replace("`", "``")
        self._sql_name = f"delta.`{quoted}`" if self._is_path else self.name

    def table_id(self) -> str | None:
        """Return Delta's id of the table, or None if it does not exist yet.

        Raises InvalidRequestError if it is not a Delta table, is a topic's table, or forgets transactions.
        """
        from pyspark.errors import AnalysisException

        try:
            row = self._spark.sql(f"DESCRIBE DETAIL {self._sql_name}").select("format", "id", "properties").first()
        except AnalysisException as error:
            if error.getCondition() in _MISSING:
                return None
            raise InvalidRequestError(f"{self.name} cannot be a sink: {_line(error)}") from None
        assert row is not None
        if row.format != "delta":
            raise InvalidRequestError(f"{self.name} is a table of format {row.format}; the sink must be a Delta table")
        if _FORGETS in row.properties:
            raise InvalidRequestError(
                f"the table {self.name} has the property {_FORGETS}: it forgets which batches it has; take it away "
                f"with ALTER TABLE {self._sql_name} UNSET TBLPROPERTIES ('{_FORGETS}')"
            )
        if "logstore.topic" in row.properties:
            raise InvalidRequestError(
                f'{self.name} is the table of topic {row.properties["logstore.topic"]}: write with format("logstore")'
            )
        return str(row.id)

    def commits(self, kind: type[C], app_id: str) -> list[C]:
        """Return up to ten of the newest commits of ``app_id`` in the table's log, newest first. The table exists."""
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        found = self._newest_metadata(F.get_json_object("userMetadata", f"$.logstore.{kind.APP_ID_KEY}") == app_id)
        return [parse_user_metadata(text, kind) for text in found]

    def write_once(
        self, df: "DataFrame", commit: C, mode: SaveMode = "append", options: Mapping[str, str] | None = None
    ) -> list[C]:
        """Write ``df`` as ``commit``, unless the table has its version. Return the log's commits from this version on.

        They are at least one, newest first; the caller checks whether ``commit`` is among them. Raises Spark's error if
        nothing was written; CommitStateUnknownError if that cannot be found out; SinkOffsetsUnknownError if the table
        has had this version, in a commit that its log no longer has.
        """
        failure: Exception | None = None
        try:
            self._write(df, commit.app_id, commit.txn_version, user_metadata(commit), mode, options)
        except Exception as error:  # noqa: BLE001 - whatever it is, the log says what happened
            failure = error
        reached("written")
        try:
            found = [] if failure and self.table_id() is None else self.commits(type(commit), commit.app_id)
        except Exception as error:  # noqa: BLE001 - Spark raises many kinds
            raise CommitStateUnknownError(
                f"cannot find out whether transaction {commit.txn_version} of {commit.app_id} is in {self.name}: "
                f"{_line(error)}; begin again: the next run continues from what is there"
            ) from (failure or error)
        commits = [c for c in found if c.txn_version >= commit.txn_version]
        if not commits and failure is not None:
            raise failure
        if not commits:
            raise SinkOffsetsUnknownError(
                f"{self.name} has had transaction {commit.txn_version} of {commit.app_id}, and its log no longer has "
                f"that commit, so what is in it is not known: nothing was written; {commit.WAY_ON}"
            )
        if failure is not None:
            is_own = any(c.writer == commit.writer for c in commits)
            told = "was committed nevertheless" if is_own else "gave way to another commit of this transaction"
            log.warning("a write to %s %s: %s", self.name, told, _line(failure))
        return commits

    def _write(
        self,
        df: "DataFrame",
        app_id: str,
        txn_version: int,
        user_metadata: str,
        mode: SaveMode,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Make one commit, or none if the table has had ``txn_version`` or a later one of ``app_id``."""
        if not self._is_path and not self._spark.catalog.tableExists(self.name):
            # Delta leaves userMetadata out of a commit that creates a table by name, so create it first, without rows.
            df.limit(0).write.format("delta").mode("ignore").options(**(options or {})).saveAsTable(self.name)
        writer = df.write.format("delta").mode(mode).options(**(options or {}))
        writer = writer.option("txnAppId", app_id).option("txnVersion", str(txn_version))
        writer = writer.option("userMetadata", user_metadata)
        if self._is_path:
            writer.save(self.name)
        else:
            writer.saveAsTable(self.name)

    def _newest_metadata(self, condition: "Column") -> list[str]:
        """Return ``userMetadata`` of up to ten commits that meet a condition, newest first."""
        wanted = HISTORY_FIRST
        while True:
            # Spark has run this when it returns, and what follows needs no job. The newest commit comes first.
            commits = self._spark.sql(f"DESCRIBE HISTORY {self._sql_name} LIMIT {wanted}")
            rows = commits.where(condition).select("userMetadata").head(10)
            if rows or len(commits.select("version").collect()) < wanted:
                return [row.userMetadata for row in rows]
            wanted *= HISTORY_FACTOR


def check_write(mode: str, options: Mapping[str, str] | None) -> None:
    """Raise InvalidRequestError for a mode or an option that a write of one batch cannot have."""
    if mode not in get_args(SaveMode):
        raise InvalidRequestError(f'mode={mode!r}: give "append" or "overwrite"')
    if own := sorted(key for key in options or {} if key.lower() in _OWN_OPTIONS):
        raise InvalidRequestError(f"options: {', '.join(own)} is set by this write itself")


def _line(error: Exception) -> str:
    """Return the first informative line of an error: errors of Java begin with the call."""
    lines = (line for line in str(error).splitlines() if line and "An error occurred while calling" not in line)
    return f"{type(error).__name__}: {next(lines, '').removeprefix(': ')}"
