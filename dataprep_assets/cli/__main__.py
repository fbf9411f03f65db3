"""Entry point of `python -m dataprep_assets.cli`."""

import sys

from dataprep_assets.cli import main

sys.exit(main())
