"""Entry point of `python -m dataprep_assets.cli`."""

import sys

from dataprep_assets.entry import main

sys.exit(main())
