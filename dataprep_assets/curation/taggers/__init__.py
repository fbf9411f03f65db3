"""The built-in taggers, one module each with a `TAGGER`.

To add a tagger, add a module to this folder; `tag:` in the YAML accepts its name. Taggers of other packages are found
by their entry points in the group `dataprep_assets.taggers`.
"""

import pkgutil

from dataprep_assets.extensions import Extensions

TAGGERS = Extensions(
    "tagger",
    "dataprep_assets.taggers",
    own_modules={module.name: f"{__name__}.{module.name}:TAGGER" for module in pkgutil.iter_modules(__path__)},
)
"""The available taggers, by name."""
