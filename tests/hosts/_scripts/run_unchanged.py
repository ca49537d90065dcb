"""The runner, in a rank that was forked with torch in memory."""

import sys

from sla_accelerate.run import main

main(sys.argv[1:])
