"""What the data card of migrated task folders says in addition to receipts: a source and a license for each task."""

from collections.abc import Sequence
from functools import partial

from dataprep_assets.graph.card import data_card_spec
from dataprep_assets.graph.card_contents import CardSource, CardSubject, Receipts, SplitCounts, attributed
from dataprep_assets.graph.spec import ArtifactSpec
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.tasks.declaration import TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.migration import TaskFolderFacts


def tasks_card(declaration: TaskMigrationDeclaration, specs: Sequence[ArtifactSpec]) -> ArtifactSpec:
    """The data card of a migration. Its artifacts describe the files, which are in the new project's own tree."""
    return data_card_spec(
        CardSubject(
            declaration=declaration,
            specs=specs,
            products=specs,
            counted=specs,
            sources=partial(_sources, declaration),
            splits=_splits,
        )
    )


def _sources(declaration: TaskMigrationDeclaration, _: ArtifactStore, receipts: Receipts) -> list[CardSource]:
    facts = _facts(receipts)
    return [
        attributed(
            CardSource(name=task, kind="task folder", files=sum(len(f.rows) for f in facts if f.task == task)), declared
        )
        for task, declared in declaration.tasks.items()
    ]


def _splits(receipts: Receipts) -> list[SplitCounts]:
    facts = _facts(receipts)
    names = dict.fromkeys(split for found in facts for split in found.rows)
    return [
        SplitCounts(
            split=split,
            files=sum(split in found.rows for found in facts),
            rows=sum(found.rows.get(split, 0) for found in facts),
        )
        for split in names
    ]


def _facts(receipts: Receipts) -> list[TaskFolderFacts]:
    return [TaskFolderFacts.of(receipt) for every in receipts.values() for receipt in every]
