"""The command line, one file per command. Knows arguments, terminals and exit codes; does no work itself."""

import time

STARTED = time.monotonic()
"""When the command line began to be loaded."""
