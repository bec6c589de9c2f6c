"""True if tests run in their long forms: ``LOGSTORE_TORTURE=1``, as ``make torture`` sets it."""

import os

TORTURE = os.environ.get("LOGSTORE_TORTURE") == "1"
