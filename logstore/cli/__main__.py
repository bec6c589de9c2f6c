"""``python -m logstore.cli``: the same as the script ``logstore``."""

from logstore.cli import main

main()
