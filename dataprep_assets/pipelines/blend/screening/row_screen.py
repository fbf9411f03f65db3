"""The search for benchmark items in the rows of a blend before they are rendered or written.

Entry points: `RowScreen`, `load_row_screen`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dataprep_assets.curation.benchmarks.decontamination import RowDecontaminateDeclaration
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.rl.record_parts import PartPaths
from dataprep_assets.pipelines.blend.screening.row_texts import VERSION, select_record_texts, select_row_texts
from dataprep_assets.tokenization.chat.messages import Conversation, Preference

# Import the module only for type checking, because it loads slowly and most blends search for no items.
if TYPE_CHECKING:
    from dataprep_assets.curation.benchmarks.benchmarks import BenchmarkTagger, FoundItem


@dataclass(frozen=True, kw_only=True)
class RowScreen:
    """The declared search of a blend. Instances are picklable.

    Attributes:
        tagger: The search for items in texts.
        declaration: The declared choice of texts, share and action.
        paths: Locations of the prompt and the expected answer in RL records; None for other stages.
    """

    tagger: "BenchmarkTagger"
    declaration: RowDecontaminateDeclaration
    paths: PartPaths | None = None

    @property
    def drops_rows(self) -> bool:
        """Whether rows with an item are dropped. If not, a check fails."""
        return self.declaration.action == "drop"

    def key_parts(self) -> dict[str, Any]:
        """Return the values that are part of a shard's key, under one name."""
        parts = {"version": VERSION, "items": self.tagger.version, **self.declaration.key_parts()}
        if self.paths is not None:
            parts["answer"] = self.paths.answer
        return {"decontaminate": parts}

    def record_facts(self) -> dict[str, Any]:
        """Return the numbers of benchmark items as a fact of a receipt."""
        from dataprep_assets.curation.benchmarks.coverage import record_coverage

        return {"benchmarks": record_coverage(self.tagger)}

    def select_texts(self, row: Conversation | Preference | dict[str, Any]) -> list[str]:
        """Return the texts of a row in which items are searched for."""
        if isinstance(row, dict):
            assert self.paths is not None, "only RL has records"
            return select_record_texts(row, self.paths, self.declaration.text)
        return select_row_texts(row, self.declaration.text)

    def find_best_items(self, rows: Sequence[Sequence[str]]) -> "list[FoundItem]":
        """Return the best matching item of each row, which is given by its texts."""
        return self.tagger.benchmarks.find_best_items(rows)

    def find_leaks(self, rows: Sequence[Conversation | Preference | dict[str, Any]]) -> list[str | None]:
        """Return the name of the item that each row contains; None for rows without one, and if rows are not dropped.

        The results do not depend on the order and the number of the rows.
        """
        if not self.drops_rows:
            return [None] * len(rows)
        items = self.find_best_items([self.select_texts(row) for row in rows])
        return [item.name if self.is_leak(item) else None for item in items]

    def is_leak(self, item: "FoundItem") -> bool:
        """Return whether a text contains enough of an item."""
        return item.name is not None and item.share >= self.declaration.share


def load_row_screen(blend: BlendDeclaration) -> RowScreen | None:
    """Return the declared search of a blend; None if it has none."""
    declaration = blend.decontaminate
    if declaration is None:
        return None
    paths = PartPaths.from_options(blend.rl_options) if blend.stage == "rl" else None
    return RowScreen(
        tagger=declaration.build_tagger(blend.folder, blend.rewriting), declaration=declaration, paths=paths
    )
