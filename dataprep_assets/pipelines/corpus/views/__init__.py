"""Views of a corpus: one module per trainer format, each with a `VIEW` (see `pipelines/corpus/view.py`).

A new view needs a module in this folder, named as in `views:` in YAML, and a format. Views of other packages are found
by their entry points in the group `dataprep_assets.views` (docs/how-to/own-view.md).
"""

import pkgutil

from dataprep_assets.extensions import Extensions

VIEWS = Extensions(
    "view",
    "dataprep_assets.views",
    own_modules={module.name: f"{__name__}.{module.name}:VIEW" for module in pkgutil.iter_modules(__path__)},
)
"""The available views, by name."""
