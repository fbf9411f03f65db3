"""The taggers that are built in, one module each, which has a `TAGGER`.

A module in this folder is all that a new one needs: `tag:` in the YAML takes its name. Those of other packages are
found by their entry points in the group `dataprep_assets.taggers`.
"""

import pkgutil

from dataprep_assets.extensions import Extensions

TAGGERS = Extensions(
    "tagger",
    "dataprep_assets.taggers",
    own={module.name: f"{__name__}.{module.name}:TAGGER" for module in pkgutil.iter_modules(__path__)},
)
"""The available taggers, by name."""
