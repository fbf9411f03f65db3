"""A shard of packed chat data: its sources and settings, its key, its files, and the facts of its receipt.

`packed_sft.py` builds the shard, and `packing.py` writes its files.
"""

from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from dataprep_assets.curation.retractions import describe_ids
from dataprep_assets.engine.artifact.build import Facts
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.checks.check import Level
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.commit import SPOOLS
from dataprep_assets.packing.algorithms import ALGORITHMS, Algorithm
from dataprep_assets.pipelines.blend.duplicates.duplicate_rows import DuplicateRows
from dataprep_assets.pipelines.blend.removal.row_ids import ReadRows, RowRetractions, find_current_retractions
from dataprep_assets.pipelines.blend.sft import spool
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, ChatSource
from dataprep_assets.pipelines.blend.sft.source_rows import SourceRows
from dataprep_assets.stream.declaration import find_exceeded_budget
from dataprep_assets.tokenization.chat.messages import Conversation, Preference, Refusal, read_conversation
from dataprep_assets.tokenization.chat.row_forms import Form

VERSION = 7
PACKED = "packed.parquet"
QUARANTINE = spool.QUARANTINE


@dataclass(frozen=True, kw_only=True)
class PackPlan:
    """Settings for packing sequences into rows of at most `pack_size` tokens.

    With `pad_to_multiple` above 1, the labels of each sequence are padded with `pad_id` to this multiple, and
    `pack_size` is a number of labels. Raises ConfigError for invalid settings.
    """

    algorithm: Algorithm = "first_fit_shuffle"
    seed: int = 42
    row_group_bins: int = 1000
    compression: Literal["zstd", "snappy", "gzip", "none"] = "zstd"
    pad_to_multiple: int = 1
    pad_id: int | None = None

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ConfigError(f"packing: unknown algorithm {self.algorithm!r}. Available: {', '.join(ALGORITHMS)}")
        if self.seed < 0 or self.row_group_bins < 1:
            raise ConfigError(
                "packing: seed must be at least 0 and row_group_bins at least 1, not "
                f"{self.seed} and {self.row_group_bins}"
            )


@dataclass(frozen=True, kw_only=True)
class ChatShard:
    """A shard of chat data, ready to build: its artifact, and its sources in order. Instances are picklable.

    `budget` is the maximum share of rows that may be dropped as bad. A changed `salt` changes the key, which forces a
    rebuild. `retracted` are the listed ids whose rows the shard has read. Before the build, they are known only from an
    existing shard. The key of the finished shard covers the actual ids. `exceeded_budget` is the budget, if the
    existing shard exceeds it.
    """

    read_row: ClassVar[Callable[..., Conversation | Preference | Refusal]]
    """Function that returns the content of a row, or its refusal."""

    artifact: Artifact
    store: ArtifactStore
    sources: tuple[ChatSource, ...]
    plan: ChatPlan
    budget: float
    salt: str = ""
    retracted: tuple[str, ...] = ()
    exceeded_budget: float | None = None

    def compare_existing(self) -> Self:
        """Return a copy with the listed ids that the existing shard has read, and the budget if that exceeds it."""
        return replace(
            self,
            retracted=find_current_retractions(self.store, self.artifact, self.plan.retractions),
            exceeded_budget=find_exceeded_budget(
                self.plan.bad_rows, self.budget, self.store, self.artifact, self.plan.is_bad
            ),
        )

    def finish(self, retracted: tuple[str, ...]) -> Recipe:
        """Return the recipe of the finished shard, given the listed ids whose rows it has read."""
        return replace(self, retracted=retracted, exceeded_budget=None).recipe

    @property
    def partition(self) -> str:
        """The shard's partition key."""
        return self.artifact.partition or ""

    @property
    def source_bytes(self) -> int:
        """Total size of the sources in bytes."""
        return sum(source.size for source in self.sources)

    @property
    def level(self) -> Level:
        """The number of rows that checks rebuild."""
        return self.plan.level

    @property
    def retractions(self) -> RowRetractions:
        """The kind of row ids, and the retraction list."""
        return self.plan.retractions

    @property
    def reads_json(self) -> bool:
        """Whether rows are read as JSON."""
        return self.plan.choices.reads_json

    @property
    def duplicates(self) -> DuplicateRows | None:
        """The rows that are dropped as duplicates; None without `duplicates`."""
        return self.plan.duplicates

    @property
    def reading_key_parts(self) -> Mapping[str, Any]:
        """The values that decide which rows of the sources are read, and their contents."""
        return self.plan.reading_key_parts

    def read_kept_rows(
        self, source: ChatSource, ids: ReadRows, only: Collection[int] | None = None
    ) -> Iterator[Mapping[int, Conversation | Preference]]:
        """Yield the rows of a source that are not dropped before rendering, in blocks, by number.

        `ids` records the ids of all rows. If `only` some rows are read, the digest of the source is not verified.
        """
        source_rows: SourceRows[Any] = SourceRows(self.plan, source, self.read_row, ids)
        partial_reader = None if only is None else source.read_rows(only=only, as_json=self.reads_json)
        with nullcontext(partial_reader) if partial_reader is not None else source_rows.open() as reader:
            for block in reader:
                results = zip(block.numbers, source_rows.read(block.rows, block.numbers), strict=True)
                yield {number: row for number, row in results if not isinstance(row, Refusal)}

    def open_reader(self) -> Callable[[Mapping[str, Any], str], Conversation | Preference | str]:
        """Return a function that returns the content of a row at a location, or the reason for refusing the row."""
        return partial(_read_chat_row, self.read_row, self.plan)

    @property
    def key(self) -> str:
        """Digest of everything that determines the shard's bytes."""
        return self.recipe.key

    @property
    def recipe(self) -> Recipe:
        """The named inputs and settings that determine the shard's bytes."""
        raise NotImplementedError

    def build_recipe(self, version: int, settings: Mapping[str, Any], omitted: Container[str] = ()) -> Recipe:
        """Return the recipe of a shard with additional `settings`, and without the `omitted` settings of its plan."""
        plan_settings = self.plan.key_parts()
        tokenizer, template = plan_settings.pop("tokenizer"), plan_settings.pop("template")
        return Recipe.from_ingredients(
            self.artifact,
            version,
            settings={
                **{name: value for name, value in plan_settings.items() if name not in omitted},
                **settings,
                # Add the budget only if it is exceeded, because it does not change the shard's bytes.
                **({} if self.exceeded_budget is None else {"bad_records.budget": self.exceeded_budget}),
                "formats": [[source.format, source.compression] for source in self.sources],
                **{name: limit for source in self.sources for name, limit in source.limits.items()},
                "force": self.salt,
                # Add the ids only if there are any, so that shards without retracted rows keep their keys.
                **({"retracted": describe_ids(self.retracted)} if self.retracted else {}),
            },
            sources={
                "tokenizer": tokenizer,
                "chat_template": template,
                **{_format_source_name(source): source.sha256 for source in self.sources},
            },
        )


@dataclass(frozen=True, kw_only=True)
class SftShard(ChatShard):
    """A shard of packed conversations, ready to build."""

    read_row = staticmethod(read_conversation)

    packing: PackPlan

    @property
    def recipe(self) -> Recipe:
        packing = self.packing
        settings: dict[str, Any] = {
            "algorithm": packing.algorithm,
            "seed": packing.seed,
            "row_group_size": packing.row_group_bins,
            "compression": packing.compression,
        }
        # Add the padding only if it is used, so that shards without padding keep their keys.
        if packing.pad_to_multiple > 1:
            settings |= {"pad_to_multiple": packing.pad_to_multiple, "pad_id": packing.pad_id}
        return self.build_recipe(VERSION, settings)

    @property
    def scratch(self) -> Path:
        """The folder of the shard's spools."""
        return self.store.root / self.artifact.dataset / SPOOLS


def _read_chat_row(
    read_row: Callable[..., Conversation | Preference | Refusal], plan: ChatPlan, row: Mapping[str, Any], _: str
) -> Conversation | Preference | str:
    content = read_row(row, plan.fields, plan.choices)
    return content.reason if isinstance(content, Refusal) else content


def _format_source_name(source: ChatSource) -> str:
    """Return the label of a source file; for a range of its rows, the label followed by the range."""
    is_complete = source.rows.first == 1 and source.rows.stop is None
    return source.label if is_complete else f"{source.label}[{source.rows.first}:{source.rows.stop}]"


class PackedSourceFacts(Facts):
    """Facts of a source file: the range of rows that were read, and their outcomes.

    `dropped` and `cuts` count rows by reason. `form` is the form of the rows; None if there are no conversations.
    """

    file: str
    ordinal: int
    sha256: str
    rows: tuple[int, int | None]
    rows_in: int
    conversations: int
    dropped: dict[str, int]
    sequences: int
    tokens: int
    form: Form | None
    unknown_tokens: int = 0
    dropped_characters: int = 0
    changed_characters: int = 0
    cuts: dict[str, int] = Field(default_factory=dict)


class ChatSourceFacts(Facts):
    """Facts that source files of packed conversations and of pairs have in common: the form of their rows."""

    form: Form | None


class ChatFacts(Facts):
    """Facts that shards of packed conversations and of pairs have in common, for messages."""

    unread_keys: dict[str, int]
    template: str
    template_digest: str
    template_writes: dict[str, str]
    template_differences: tuple[str, ...]
    sources: tuple[ChatSourceFacts, ...]


class PackedSftFacts(Facts):
    """Facts of a shard of packed chat data.

    With `pad_to_multiple` above 1, sequences are padded with `pad_id`. Padding does not count as tokens.

    Attributes:
        bins: Number of packed rows.
        fill: Average share of `pack_size` that the tokens of a row fill.
        packing_factor: Average number of sequences per row.
        truncated: Number of kept sequences that were truncated to `max_doc_tokens`.
        truncated_to_pack_size: Number of kept sequences that were truncated to `pack_size`.
        sequences_dropped: Number of sequences dropped from kept conversations, by reason.
        conversations_cut: Number of incomplete conversations, by reason.
        unread_keys: Number of rows per key that is not read; the key is empty if names are hidden.
        stop_ids: Ids of the tokens that end an answer.
        turn_end: Ids of the text after a stop token that is also trained.
        template_writes: The parts of a conversation that the template writes, as a table of its capabilities.
        retracted: The ids (16 hex digits) on the retraction list whose rows were left out.
        benchmarks: Benchmark → its numbers of items (`Coverage`), if benchmarks are declared.
    """

    format: str
    empty: bool
    conversations: int
    sequences: int
    bins: int
    tokens: int
    trained_tokens: int
    truncated: int
    truncated_to_pack_size: int
    sequences_dropped: dict[str, int]
    conversations_cut: dict[str, int]
    unread_keys: dict[str, int]
    pack_size: int
    fill: float
    packing_factor: float
    algorithm: str
    seed: int
    row_group_bins: int
    compression: str
    template: str
    template_digest: str
    tokenizer_digest: str
    stop_ids: tuple[int, ...]
    stop_token: str
    template_writes: dict[str, str]
    template_differences: tuple[str, ...]
    turn_end: tuple[int, ...] = ()
    certificate: dict[str, Any]
    pad_to_multiple: int = 1
    pad_id: int | None = None
    retracted: tuple[str, ...] = ()
    benchmarks: dict[str, dict[str, int]] = Field(default_factory=dict)
    sources: tuple[PackedSourceFacts, ...]
