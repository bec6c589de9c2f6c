"""Records as bytes and as Arrow: every format that comes in, is stored, or goes out. Pure functions, no I/O."""
