"""``python -m docs.demo``."""

import logging
import sys

from docs.demo.main import main

# Ctrl-C while Spark works: py4j logs a traceback before the exception comes to us.
logging.getLogger().addHandler(logging.NullHandler())
sys.exit(main())
