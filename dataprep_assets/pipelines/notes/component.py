"""`PackedCohorts` and `CombinedCohorts`: notes by birth month, packed into rows that MaxText reads; and mixtures."""

from collections.abc import Iterator
from functools import cached_property
from typing import Self

import dagster as dg
from dagster.components.scaffold.scaffold import scaffold_with
from pydantic import BaseModel

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.component import DatasetComponent
from dataprep_assets.orchestration.dataset import DatasetAssets, Step, partition_range
from dataprep_assets.orchestration.scaffold import CombinedCohortsScaffolder, PackedCohortsScaffolder
from dataprep_assets.pipelines.corpus.engine_certificate_asset import engine_certificate_asset
from dataprep_assets.pipelines.notes.cohort_shards import COHORT_SHARDS
from dataprep_assets.pipelines.notes.cohort_shards_asset import cohort_shards_asset
from dataprep_assets.pipelines.notes.cohorts_checks import cohorts_checks, combined_cohorts_checks
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration, ReplayDeclaration
from dataprep_assets.pipelines.notes.engine_certificate import build_engine_certificate, load_certificate
from dataprep_assets.pipelines.notes.packed_cohorts import PACKED_COHORTS, PackedCohortsFacts
from dataprep_assets.pipelines.notes.packed_cohorts_asset import packed_cohorts_asset
from dataprep_assets.pipelines.notes.status import stale, stale_replay, sweep_dataset, sweep_replay
from dataprep_assets.pipelines.notes.tfds_directory import DIRECTORIES, maxtext_settings
from dataprep_assets.pipelines.notes.tfds_directory_asset import combined_directory_asset, tfds_directory_asset


@scaffold_with(PackedCohortsScaffolder)
class PackedCohorts(DatasetComponent):
    """Clinical notes, one file a birth month, to packed rows, shards, and a directory that TFDS and grain open."""

    model = NotesDeclaration
    declaration: NotesDeclaration

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        # Dagster resolves each string of the YAML as a Jinja template, which loses the newline that ends it.
        if isinstance(attributes, NotesDeclaration) and attributes.template.header.endswith("\n"):
            template = attributes.template.model_copy(update={"header": attributes.template.header + "\n"})
            attributes = attributes.model_copy(update={"template": template})
        return super().load(attributes, context)

    @cached_property
    def assets(self) -> DatasetAssets:
        return DatasetAssets(self.declaration)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        notes, dataset = self.declaration, self.assets
        certificate = engine_certificate_asset(
            dataset,
            lambda store: build_engine_certificate(notes, store),
            lambda store: load_certificate(notes, store),
        )
        per_format = [
            make(dataset, notes, format)
            for format in notes.formats
            for make in (cohort_shards_asset, tfds_directory_asset)
        ]
        return dg.Definitions(
            assets=[certificate, packed_cohorts_asset(dataset, notes), *per_format],
            asset_checks=cohorts_checks(dataset, notes),
        )

    def steps(self, store: ArtifactStore) -> Iterator[Step]:
        """The certificate, then all cohorts as one range, then the directories."""
        key, months = self.assets.key, self.declaration.months.expected
        yield Step("engine certificate", [key("engine_certificate")])
        shards = [key(COHORT_SHARDS[format]) for format in self.declaration.formats]
        yield Step(f"{len(months)} cohorts packed and sharded", [key(PACKED_COHORTS), *shards], partition_range(months))
        yield Step("directories", [key(DIRECTORIES[format]) for format in self.declaration.formats])

    def stale(self, store: ArtifactStore) -> Iterator[str]:
        return stale(self.declaration, store)

    def sweep(self, store: ArtifactStore) -> None:
        sweep_dataset(self.declaration, store)

    @property
    def product(self) -> tuple[str, str | None]:
        return DIRECTORIES[self.declaration.formats[0]], None

    def summary(self, store: ArtifactStore) -> list[str]:
        notes = self.declaration
        months = notes.months.expected
        packed = [r for r in store.receipts([notes.artifact(PACKED_COHORTS, m) for m in months]) if r is not None]
        facts = [PackedCohortsFacts.of(r) for r in packed]
        patients = sum(f.patients for f in facts)
        documents = sum(r.ledger.documents for r in packed if r.ledger)
        tokens = sum(r.ledger.tokens for r in packed if r.ledger)
        rows = sum(split.rows for f in facts for split in f.splits.values())
        settings = maxtext_settings(notes, store, notes.formats[0])
        return [
            f"{len(packed):,} of {len(months):,} cohorts, {patients:,} patients",
            f"{documents:,} notes, {tokens:,} tokens",
            f"{rows:,} rows of {notes.capacity:,}, filled to {tokens / (rows * notes.capacity) if rows else 0:.4f}",
            "MaxText: " + " ".join(f"{k}={v}" for k, v in settings.items()),
        ]


@scaffold_with(CombinedCohortsScaffolder)
class CombinedCohorts(DatasetComponent):
    """Several datasets of packed rows as one directory, for training with replay."""

    model = ReplayDeclaration
    declaration: ReplayDeclaration

    @cached_property
    def assets(self) -> DatasetAssets:
        return DatasetAssets(self.declaration)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return dg.Definitions(
            assets=[combined_directory_asset(self.assets, self.declaration)],
            asset_checks=combined_cohorts_checks(self.assets, self.declaration),
        )

    def steps(self, store: ArtifactStore) -> Iterator[Step]:
        """One run: the sources are datasets of their own."""
        yield Step("combined directory", [self.assets.key(DIRECTORIES[self.declaration.format])])

    def stale(self, store: ArtifactStore) -> Iterator[str]:
        return stale_replay(self.declaration, store)

    def sweep(self, store: ArtifactStore) -> None:
        sweep_replay(self.declaration, store)

    @property
    def product(self) -> tuple[str, str | None]:
        return DIRECTORIES[self.declaration.format], None

    def summary(self, store: ArtifactStore) -> list[str]:
        sources = " + ".join(source.dataset for source in self.declaration.sources)
        return [f"{sources}, by {self.declaration.mode}"]
