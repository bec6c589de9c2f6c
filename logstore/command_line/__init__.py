"""The part of the command line that ``logstore.cli`` and ``compaction_jobs`` share: options, profiles, exit codes."""
