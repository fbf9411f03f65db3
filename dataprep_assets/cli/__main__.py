"""`python -m dataprep_assets.cli`: the command without its entry point."""

import sys

from dataprep_assets.cli import main

sys.exit(main())
