"""``python -m docs.demo``."""

import logging
import sys

from docs.demo.main import main

# If Ctrl-C comes while Spark works, py4j logs a traceback before the exception reaches this program.
logging.getLogger().addHandler(logging.NullHandler())
sys.exit(main())
