"""Topics: which ones are served, how they are made, changed and deleted, and requests for their tables."""
