"""Describes a shard of packed chat data: its sources and settings, its key, its files, and the facts of its receipt.

`packed_sft.py` builds it; `packing.py` writes its files.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dataprep_assets.engine.artifact.build import Facts
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.commit import SPOOLS
from dataprep_assets.packing.algorithms import ALGORITHMS, Algorithm
from dataprep_assets.pipelines.blend.sft import spool
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, ChatSource

VERSION = 4
PACKED = "packed.parquet"
QUARANTINE = spool.QUARANTINE


@dataclass(frozen=True, kw_only=True)
class PackPlan:
    """Settings by which sequences become rows. The longest row has `pack_size` tokens.

    Raises ConfigError for impossible settings.
    """

    algorithm: Algorithm = "first_fit_shuffle"
    seed: int = 42
    row_group_bins: int = 1000
    compression: Literal["zstd", "snappy", "gzip", "none"] = "zstd"

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ConfigError(f"packing: unknown algorithm {self.algorithm!r}. Available: {', '.join(ALGORITHMS)}")
        if self.seed < 0 or self.row_group_bins < 1:
            raise ConfigError(
                f"packing: seed {self.seed} must not be negative, row_group_bins {self.row_group_bins} at least 1"
            )


@dataclass(frozen=True, kw_only=True)
class SftShard:
    """One shard to build: its artifact, and its sources in order. Picklable.

    `budget` is the largest share of rows that may be dropped as bad. Changing `salt` changes the key, which forces a
    new build.
    """

    artifact: Artifact
    store: ArtifactStore
    sources: tuple[ChatSource, ...]
    plan: ChatPlan
    packing: PackPlan
    budget: float
    salt: str = ""

    @property
    def partition(self) -> str:
        """The shard's partition key."""
        return self.artifact.partition or ""

    @property
    def key(self) -> str:
        """Digest of everything that decides the shard's bytes."""
        return self.recipe.key

    @property
    def recipe(self) -> Recipe:
        """Everything that decides the shard's bytes, with names."""
        settings, packing = self.plan.key_parts(), self.packing
        tokenizer, template = settings.pop("tokenizer"), settings.pop("template")
        return Recipe.made_of(
            self.artifact,
            VERSION,
            settings={
                **settings,
                "algorithm": packing.algorithm,
                "seed": packing.seed,
                "row_group_size": packing.row_group_bins,
                "compression": packing.compression,
                "bad_records.budget": self.budget,
                "formats": [[source.format, source.compression] for source in self.sources],
                **{name: limit for source in self.sources for name, limit in source.limits.items()},
                "force": self.salt,
            },
            sources={
                "tokenizer": tokenizer,
                "chat_template": template,
                **{_name(source): source.sha256 for source in self.sources},
            },
        )

    @property
    def source_bytes(self) -> int:
        """Bytes of the sources."""
        return sum(source.size for source in self.sources)

    @property
    def scratch(self) -> Path:
        """The folder of the shard's spools."""
        return self.store.root / self.artifact.dataset / SPOOLS


def _name(source: ChatSource) -> str:
    """A source file, or a range of its rows."""
    is_complete = source.rows.first == 1 and source.rows.stop is None
    return source.label if is_complete else f"{source.label}[{source.rows.first}:{source.rows.stop}]"


class PackedSourceFacts(Facts):
    """One source file: the range of its rows, and their outcomes. `dropped` counts rows by reason."""

    file: str
    ordinal: int
    sha256: str
    rows: tuple[int, int | None]
    rows_in: int
    conversations: int
    dropped: dict[str, int]
    sequences: int
    tokens: int
    unknown_tokens: int = 0
    dropped_characters: int = 0
    changed_characters: int = 0


class PackedSftFacts(Facts):
    """`bins` are packed rows; `fill` is their share of `pack_size` tokens; `packing_factor` sequences a row.

    `truncated` and `truncated_to_pack_size` count sequences that were cut and stayed, `sequences_dropped` those that
    were left out of conversations that stayed, by reason, `conversations_cut` conversations of which a part is left
    out. `stop_ids` are the tokens that end an answer, `turn_end` ids that are trained after one. `template_writes` is
    the table of the template's capabilities.
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
    sources: tuple[PackedSourceFacts, ...]
