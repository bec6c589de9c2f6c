"""The journal: one write-ahead log per broker and disk, shared by all its partitions (docs/journal-format.md)."""
