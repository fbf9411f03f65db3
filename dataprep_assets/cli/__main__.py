"""`python -m dataprep_assets.cli`: the command where its script is not on the path."""

import sys

from dataprep_assets.entry import main

sys.exit(main())
