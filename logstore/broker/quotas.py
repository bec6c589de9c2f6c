"""Quotas of clients: how much of a kind each principal may use in a time. Today no client has a quota.

The guard charges requests, admission charges bytes (``admission.require_quota`` refuses a principal over its quota).
"""

from enum import StrEnum

from logstore.broker.context import RequestContext


class QuotaKind(StrEnum):
    """The kinds of quota (Kafka's ``ClientQuotaType``)."""

    REQUESTS = "REQUESTS"
    PRODUCED_BYTES = "PRODUCED_BYTES"
    FETCHED_BYTES = "FETCHED_BYTES"


class Quotas:
    """Charges clients. It belongs to the broker's event loop, as do its callers."""

    def charge(self, context: RequestContext, kind: QuotaKind, amount: int) -> float:  # noqa: ARG002 - no quotas yet
        """Count ``amount`` (requests, bytes) for the principal. Return the seconds to wait before more; 0 within the
        quota.
        """
        return 0.0
