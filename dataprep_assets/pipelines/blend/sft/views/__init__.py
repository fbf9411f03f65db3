"""Views of conversations: one module per trainer format, each with a `VIEW` (see `pipelines/blend/sft/view.py`).

A new view needs a module in this folder, named as in `views:` in YAML. Views of other packages are found by their entry
points in the group `dataprep_assets.conversation_views`.
"""

import pkgutil

from dataprep_assets.extensions import Extensions

VIEWS = Extensions(
    "view",
    "dataprep_assets.conversation_views",
    own_modules={module.name: f"{__name__}.{module.name}:VIEW" for module in pkgutil.iter_modules(__path__)},
)
"""The available views, by name."""
