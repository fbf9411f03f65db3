"""Views of a blend, with one kind for each stage that has views.

Entry points: `VIEW_KINDS`, `load_declared_views`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.pairs.view import PreferenceView
from dataprep_assets.pipelines.blend.rl.view import RecordView
from dataprep_assets.pipelines.blend.sft.view import ConversationView
from dataprep_assets.pipelines.blend.view import BlendView

VIEW_KINDS: Mapping[str, type[BlendView[Any]]] = {"sft": ConversationView, "pairs": PreferenceView, "rl": RecordView}
"""Stage → kind of its views."""


def load_declared_views(blend: BlendDeclaration) -> Iterator[BlendView[Any]]:
    """Yield the declared views of a blend. Raises the errors of `load_view`."""
    for name in blend.views:
        yield VIEW_KINDS[blend.stage].load(name)
