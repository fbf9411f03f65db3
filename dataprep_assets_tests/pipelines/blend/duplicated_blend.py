"""A blend of conversations, pairs or RL records whose questions have near-duplicates in both of its datasets."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dataprep_assets.curation.duplicates.removed_file import DUPLICATES
from dataprep_assets.pipelines.blend.duplicates.duplicates import prepare_signed_rows
from dataprep_assets.pipelines.blend.duplicates.signed_rows import open_signed_rows
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.table.row_table import DOCUMENTS
from dataprep_assets_tests.engine.building import build_all
from dataprep_assets_tests.pipelines.blend.ruled_blend import RuledBlend, make_row
from dataprep_assets_tests.pipelines.blend.screened_blend import make_answer

GROUPS, WORDS = 12, 60
"""Number of groups of similar questions, and number of words per question."""


def write_words(random_numbers: random.Random, count: int = WORDS) -> list[str]:
    """Return invented words."""
    return ["".join(random_numbers.choices("abdegiklmnorstuv", k=6)) for _ in range(count)]


def edit_words(random_numbers: random.Random, words: Sequence[str], share: float) -> list[str]:
    """Return the words with about a share of them replaced."""
    return [write_words(random_numbers, 1)[0] if random_numbers.random() < share else word for word in words]


def make_rows(stage: str, seed: int = 1) -> list[dict[str, Any]]:
    """Return rows in groups of similar questions, each with its own id and its own answer."""
    random_numbers, rows = random.Random(seed), list[dict[str, Any]]()
    for group in range(GROUPS):
        words = write_words(random_numbers)
        for variant in range(1 + group % 4):
            # The first two variants are equal except for the case and the signs.
            edited = words if variant < 2 else edit_words(random_numbers, words, 0.02)
            question = " ".join(edited)
            text = question.upper() + "?" if variant == 1 else question
            answer = make_answer(" ".join(write_words(random_numbers, 12)))
            rows.append({"id": f"row{len(rows)}", **make_row(stage, text, answer)})
    return rows


class DuplicatedBlend(RuledBlend):
    """A blend with `duplicates`, by questions unless the settings in `duplicates` have another `text`."""

    def __init__(self, folder: Path, stage: str, duplicates: dict[str, Any] | None = None, **changes: Any) -> None:
        super().__init__(folder, stage)
        # Remove the rules, so that only duplicates are dropped.
        self.changes = {name: value for name, value in self.changes.items() if name in (stage, "tolerance")}
        self.changes |= {"duplicates": {"text": "questions", **(duplicates or {})}, "id_field": "id", **changes}
        self.lay_out(make_rows(stage))

    def lay_out(self, rows: Sequence[dict[str, Any]], files: int = 2, first_share: float = 0.5) -> None:
        """Write the rows into both datasets, each with a number of files."""
        for path in (self.folder / "sources").glob("*/*"):
            path.unlink()
        border = max(files, min(len(rows) - files, round(first_share * len(rows))))
        for dataset, part_rows in (("first", rows[:border]), ("second", rows[border:])):
            for part in range(files):
                self.write(dataset, part, part_rows[part::files])

    def build_duplicates(self) -> None:
        """Build everything up to the duplicates."""
        specs = self.dataset.specs
        build_all(specs[: [spec.name for spec in specs].index(DUPLICATES) + 1], self.store)

    def read_table(self) -> list[dict[str, Any]]:
        """Return the rows of the document tables of all shards."""
        plan = load_blend_plan(self.declaration, self.store)
        folders = [self.store.directory(self.declaration.artifact(DOCUMENTS, name)) for name in plan.partitions]
        return [row for folder in folders for row in pq.read_table(folder / "documents.parquet").to_pylist()]

    def list_removed(self) -> set[tuple[str, int]]:
        """Return the file and row of each removed row, from the built duplicates."""
        declaration, removed = self.declaration, set[tuple[str, int]]()
        plan, folder = load_blend_plan(declaration, self.store), self.store.directory(declaration.artifact(DUPLICATES))
        for rows in prepare_signed_rows(declaration, self.store, plan.partitions):
            _ = open_signed_rows(rows)
            labels = {source.ordinal: source.label for source in rows.sources}
            table = pq.read_table(folder / f"{rows.artifact.partition}.parquet").to_pylist()
            removed |= {(labels[row["ordinal"]], row["row"]) for row in table}
        return removed

    def list_kept_ids(self) -> set[str]:
        """Return the ids of the rows that are not removed, from the sources and the built duplicates."""
        import orjson

        removed = self.list_removed()
        return {
            orjson.loads(line)["id"]
            for path in (self.folder / "sources").glob("*/*")
            for number, line in enumerate(path.read_bytes().splitlines(), 1)
            if (path.name, number) not in removed
        }
