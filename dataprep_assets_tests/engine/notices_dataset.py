"""The dataset of `engine.notices` with a data card, as a `Dataset`."""

from collections.abc import Sequence
from functools import cached_property

from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.card import build_data_card_spec
from dataprep_assets.engine.card.contents import CardSubject
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets_tests.engine.notices import Notices, make_notices_specs


class NoticesDataset(Dataset):
    """A dataset of notices, whose data card counts its documents."""

    component = "Notices"
    pipeline = "notices"
    model = Notices
    declaration: Notices

    @cached_property
    def _specs(self) -> Sequence[ArtifactSpec]:
        specs = make_notices_specs(self.declaration)
        subject = CardSubject(
            declaration=self.declaration,
            specs=specs,
            products=[spec for spec in specs if spec.name == "board"],
            counted=[],
            sources=lambda _store, _receipts: [],
        )
        return [*specs, build_data_card_spec(subject)]

    @property
    def specs(self) -> Sequence[ArtifactSpec]:
        return self._specs

    def product(self, store: ArtifactStore) -> Artifact:
        return self.declaration.artifact("board")

    def summary(self, store: ArtifactStore) -> list[str]:
        return []
