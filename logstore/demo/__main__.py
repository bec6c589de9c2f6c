"""``python -m logstore.demo``."""

import sys

from logstore.demo.main import main

sys.exit(main())
