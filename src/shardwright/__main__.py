"""`python -m shardwright`: the command line."""

import sys

from shardwright.cli import main

sys.exit(main())
