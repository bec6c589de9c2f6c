"""``python -m logstore.cli`` does the same as the script ``logstore``."""

from logstore.cli import main

main()
