"""The check that no row of a shard contains a benchmark item, which each stage reads from the shard's own files.

Entry points: `NO_BENCHMARK_CONTAMINATION`, `list_screen_checks`, `KeptRowSearch`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from dataprep_assets.bounds import report_progress
from dataprep_assets.curation.benchmarks.columns import BENCHMARK
from dataprep_assets.engine.checks.check import SHOWN, Check, Finding, require_ledger
from dataprep_assets.formats.row_origins import Origins
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.screening.row_screen import RowScreen
from dataprep_assets.pipelines.blend.screening.row_texts import HOSTS
from dataprep_assets.table import format_share

# Import the module only for type checking, because it loads slowly and most blends search for no items.
if TYPE_CHECKING:
    from dataprep_assets.curation.benchmarks.benchmarks import FoundItem

BATCH = 256
"""Number of rows that are searched together."""


class ScreenedShard(Protocol):
    """A shard of conversations, pairs or records that is opened for checks."""

    @property
    def name(self) -> str: ...
    @property
    def receipt(self) -> Receipt: ...
    @property
    def screen(self) -> RowScreen | None:
        """The declared search."""
        ...

    def search_kept_rows(self, search: "KeptRowSearch") -> None:
        """Search the rows in the shard's files."""
        ...


@dataclass(kw_only=True)
class KeptRowSearch:
    """Search for items in the kept rows of a shard.

    Attributes:
        screen: The declared search.
        phrases: Number of rows that contain less of an item than `containment`.
        leaks: Number of each row that contains an item, and the item. Rows are numbered from 0.
        locations: Locations of the first rows that contain an item, by number.
    """

    screen: RowScreen
    phrases: int = 0
    leaks: dict[int, "FoundItem"] = field(default_factory=dict)
    locations: dict[int, str] = field(default_factory=dict)
    _row_count: int = 0
    _texts: list[Sequence[str]] = field(default_factory=list)

    def add(self, texts: Sequence[str]) -> None:
        """Add the texts of the next row."""
        self._texts.append(texts)
        if len(self._texts) >= BATCH:
            self.flush()
            report_progress()

    def flush(self) -> None:
        """Search the rows that were added since the last search."""
        for number, item in enumerate(self.screen.find_best_items(self._texts), self._row_count):
            if self.screen.is_leak(item):
                self.leaks[number] = item
            elif item.name is not None:
                self.phrases += 1
        self._row_count += len(self._texts)
        self._texts = []

    def locate_leaks(self, locate_row: Callable[[int], str]) -> None:
        """Record the location of the first rows with an item."""
        self.locations = {number: locate_row(number) for number in [*self.leaks][:SHOWN]}

    def describe_leaks(self) -> Iterator[str]:
        """Yield a sentence for each of the first rows with an item."""
        for number, location in self.locations.items():
            item = self.leaks[number]
            yield f"{location} contains {format_share(item.share)} of {item.name}"


def describe_origin(labels: Mapping[int, str], origins: Origins, number: int) -> str:
    """Return the source file and the row of a shard's row, from `origins.npy` and the labels of its source files."""
    if number >= len(origins):
        return f"row {number} of the shard"
    ordinal, row = origins[number, :2].tolist()
    return f"{labels.get(ordinal, f'source file {ordinal}')}: row {row}"


def find_contamination(shard: ScreenedShard) -> Finding:
    """Check that no row of a shard contains an item, and that items are found wherever they are planted in a row."""
    from dataprep_assets.curation.benchmarks.verdict import KeptTexts, judge_kept_texts

    screen = shard.screen
    assert screen is not None, "only for blends with `decontaminate`"
    search = KeptRowSearch(screen=screen)
    shard.search_kept_rows(search)
    search.flush()
    kept_texts = KeptTexts(
        contaminated=[f"{shard.name}: {sentence}" for sentence in search.describe_leaks()],
        contaminated_kept=len(search.leaks),
        dropped_count=require_ledger(shard.receipt).dropped.get(BENCHMARK, 0),
        phrases=search.phrases,
    )
    return judge_kept_texts(
        screen.tagger.benchmarks,
        screen.declaration,
        kept_texts,
        noun="row",
        remedy=(
            "Rebuild the shard with `dataprep run`"
            if screen.drops_rows
            else "Declare `decontaminate.action: drop`, or remove the rows from the source"
        ),
        hosts=HOSTS[screen.declaration.text],
    )


NO_BENCHMARK_CONTAMINATION: Check[ScreenedShard] = Check(
    "no_benchmark_contamination",
    "No row of the shard contains a benchmark item. At least `coverage` of the items are searched for. Planted items "
    "are found in every form and message, and look-alikes are not reported.",
    find_contamination,
)


def list_screen_checks(blend: BlendDeclaration) -> tuple[Check[ScreenedShard], ...]:
    """Return the check for benchmark items if the blend declares `decontaminate`."""
    if blend.decontaminate is None:
        return ()
    return (replace(NO_BENCHMARK_CONTAMINATION, limit=blend.decontaminate.least_covered),)
