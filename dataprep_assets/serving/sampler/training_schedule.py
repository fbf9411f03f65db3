"""Schedule of a training run: a data structure that determines the data of each step.

A schedule is a list of revisions in the order of their creation. Each revision has its first step, its sources (with
the content digests of their shards), their shares, the sample length, the batch and the seed. A revision may begin
before steps that were trained under earlier revisions, because the run returned to a checkpoint. It then takes these
steps back. The data of each step depends only on this file (`sampler`).

Entry points: `ScheduleHistory`, `Revision`, `Source`, `SourceShard`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, get_args

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import ConfigError, FormatError, NotFoundError, count_of
from dataprep_assets.formats.document_index import TOKEN_BINS
from dataprep_assets.serving.sampler.mixture import PLACES
from dataprep_assets.stores.files import digest_value

SCHEDULE = "schedule.json"
SCHEMA = 1
Ranges = tuple[tuple[int, int], ...]
"""Ranges `[start, stop)` of a shard's tokens, ascending."""
Samples = Literal["windows", "documents"]
"""Kind of samples: `windows` of consecutive tokens, or whole `documents` packed together."""


@dataclass(frozen=True, kw_only=True)
class SourceShard:
    """A shard of a source.

    Attributes:
        name: Name of its partition.
        content: Digest of its files.
        tokens: Number of tokens.
        samples: Number of samples of the revision's length.
        removed: Token ranges `[start, stop)` of this shard in the previous revision that were removed since; previous
            positions, ascending.
        added: Token ranges that were added since the previous revision; current positions, ascending.
    """

    name: str
    content: str
    tokens: int
    samples: int
    removed: Ranges = ()
    added: Ranges = ()

    def follows(self, other_shard: "SourceShard") -> bool:
        """Return whether this shard is `other_shard` or another version of it, not a different shard with its name."""
        # If the other shard kept no tokens, all tokens of this shard are new, and the current epoch reads them.
        is_gone = not other_shard.tokens or self.removed == ((0, other_shard.tokens),)
        return self.content == other_shard.content or not is_gone


@dataclass(frozen=True, kw_only=True)
class Source:
    """One source of a revision.

    Attributes:
        name: Name in the schedule; the next revision continues the order of the source with this name.
        dataset: Name of its dataset.
        split: Split of the dataset.
        artifact: Artifact whose partitions are the shards; `indexed_bins` for a blend.
        dtype: Dtype of its tokens.
        tokenizer: SHA-256 of the tokenizer.
        share: Number of samples per 65,536.
        shards: Its shards, in the order of the dataset.
        epochs: Maximum number of passes over the source; None means no limit.
    """

    name: str
    dataset: str
    split: str
    dtype: str
    tokenizer: str
    share: int
    shards: tuple[SourceShard, ...]
    epochs: int | None = None
    artifact: str = TOKEN_BINS

    @property
    def lock(self) -> str:
        """Digest of the shards' names and contents."""
        return digest_value([[shard.name, shard.content] for shard in self.shards])


@dataclass(frozen=True, kw_only=True)
class Revision:
    """Settings and sources of a run, starting at `first_step`.

    Attributes:
        first_step: First step that the revision determines.
        trained: Number of steps trained when it was created; steps at or after `first_step` are taken back.
        steps: Total number of steps; None if the run ends when a source reaches its epoch limit.
        batch: Samples per step, across all ranks.
        sequence_length: Tokens per sample.
        seed: Seed for the sample order.
        samples: Kind of samples.
        sources: Sources of the data.
    """

    first_step: int
    batch: int
    sequence_length: int
    seed: int
    sources: tuple[Source, ...]
    samples: Samples = "windows"
    steps: int | None = None
    trained: int = 0

    def __post_init__(self) -> None:
        location = f"the revision from step {self.first_step}"
        for name, least in (("first_step", 0), ("batch", 1), ("sequence_length", 1), ("seed", 0), ("trained", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{location}: {name} must be at least {least}, not {getattr(self, name)}")
        if self.samples not in get_args(Samples):
            raise ConfigError(
                f"{location}: samples must be one of {', '.join(get_args(Samples))}, not {self.samples!r}"
            )
        if not self.sources:
            raise ConfigError(f"{location} has no sources. Declare at least one")
        if self.trained < self.first_step:
            raise ConfigError(
                f"{location}: only {count_of(self.trained, 'step')} had been trained, so steps {self.trained} to "
                f"{self.first_step - 1} would be skipped. Raise `trained`, or begin the revision at step {self.trained}"
            )
        if (total := sum(source.share for source in self.sources)) != PLACES:
            raise ConfigError(f"{location}: the shares of the sources must sum to {PLACES}, not {total}")
        if self.steps is None and all(source.epochs is None for source in self.sources):
            raise ConfigError(f"{location} never ends. Set `steps`, or `epochs` for one of its sources")
        if self.steps is not None and self.steps <= self.first_step:
            raise ConfigError(f"{location}: `steps` must be more than {self.first_step}, not {self.steps}")
        names = [source.name for source in self.sources]
        if repeated_names := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(
                f"{location}: two sources have the name {repeated_names[0]}. Give every source a different name"
            )
        read_sources: dict[str, str] = {}
        for source in self.sources:
            if not any(shard.samples for shard in source.shards):
                raise ConfigError(f"{location}: source {source.name} has no tokens. Remove the source")
            for shard in source.shards:
                # Shards without tokens may be equal in several sources, because they have nothing that could be read
                # twice.
                if not shard.tokens:
                    continue
                if (other_source := read_sources.setdefault(shard.content, source.name)) != source.name:
                    raise ConfigError(
                        f"{location}: sources {other_source} and {source.name} both have the shard {shard.name} "
                        f"(content {shard.content[:12]}), so its samples would be read twice. Declare the data once, "
                        "with the sum of the weights"
                    )

    def source(self, name: str) -> Source | None:
        """Return the source with this name, or None if the revision does not read it."""
        return next((source for source in self.sources if source.name == name), None)


@dataclass(frozen=True, kw_only=True)
class RevisionInterval:
    """Steps `[first, stop)` that a revision determines, and its number; `stop` is None for the last revision."""

    revision: int
    first: int
    stop: int | None


@dataclass(frozen=True, kw_only=True)
class ScheduleHistory:
    """Revisions of a schedule; the module docstring describes them."""

    name: str
    revisions: tuple[Revision, ...] = field(default=())

    @cached_property
    def digest(self) -> str:
        """Digest of the schedule, which a checkpoint stores with the step."""
        return digest_value(self.to_json())

    @cached_property
    def intervals(self) -> tuple[RevisionInterval, ...]:
        """Steps that each revision determines, without steps that were taken back."""
        starts: list[tuple[int, int]] = []
        for number, revision in enumerate(self.revisions):
            # This revision takes back all revisions that begin at or after its first step, so they no longer determine
            # any step.
            starts = [(n, first_step) for n, first_step in starts if first_step < revision.first_step]
            starts.append((number, revision.first_step))
        stops = [*(first_step for _, first_step in starts[1:]), None][: len(starts)]
        return tuple(
            RevisionInterval(revision=n, first=first_step, stop=stop)
            for (n, first_step), stop in zip(starts, stops, strict=True)
        )

    @property
    def withdrawn_intervals(self) -> tuple[RevisionInterval, ...]:
        """Steps that were trained under a revision and then taken back, because the run returned to a checkpoint."""
        intervals = []
        for number, revision in enumerate(self.revisions[1:], 1):
            earlier_revisions = self.take_first_revisions(number)
            for interval in earlier_revisions.intervals:
                first_step = max(interval.first, revision.first_step)
                stop = min(interval.stop or revision.trained, revision.trained)
                if first_step < stop:
                    intervals.append(RevisionInterval(revision=interval.revision, first=first_step, stop=stop))
        return tuple(intervals)

    def source_before(self, step: int, name: str) -> Source | None:
        """Return the source with this name in the last revision that read it before `step`."""
        revisions = [self.revisions[reign.revision] for reign in self.intervals if reign.first < step]
        return next((source for revision in reversed(revisions) if (source := revision.source(name)) is not None), None)

    def take_first_revisions(self, revisions: int) -> "ScheduleHistory":
        """Return a schedule with only the first `revisions` revisions."""
        return ScheduleHistory(name=self.name, revisions=self.revisions[:revisions])

    def find_interval(self, step: int) -> RevisionInterval:
        """Return the interval of the revision that determines a step; raise NotFoundError for a step below 0."""
        if step < 0:
            raise NotFoundError(f"step must be at least 0, not {step}")
        return next(interval for interval in reversed(self.intervals) if interval.first <= step)

    def to_json(self) -> dict[str, Any]:
        """Return the schedule as a dictionary of builtins."""
        revisions = [asdict(entry) for entry in self.revisions]
        for source in (source for revision in revisions for source in revision["sources"]):
            # Leave out default values, because existing checkpoints contain digests without these keys.
            if source["artifact"] == TOKEN_BINS:
                del source["artifact"]
            for shard in source["shards"]:
                if not shard["added"]:
                    del shard["added"]
        return {"dataprep_schedule": SCHEMA, "name": self.name, "revisions": revisions}

    def to_bytes(self) -> bytes:
        """Return the file's content: indented JSON, so that differences can be read."""
        text = json.dumps(self.to_json(), indent=1, sort_keys=True, ensure_ascii=False)
        return text.encode() + b"\n"

    @classmethod
    def from_json(cls, value: Mapping[str, Any], location: str = "schedule") -> Self:
        """Return the schedule for a value of `to_json`.

        Raises FormatError, naming `location`, if it is not a schedule.
        """
        try:
            if value["dataprep_schedule"] != SCHEMA:
                raise FormatError(
                    f"{location}: schema {value['dataprep_schedule']} is not supported (only {SCHEMA}). Use the "
                    "version of dataprep-assets that wrote it"
                )
            history = cls(name=value["name"], revisions=tuple(_parse_revision(entry) for entry in value["revisions"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"{location}: not a schedule: {type(error).__name__}: {error}") from error
        except ConfigError as error:
            raise FormatError(f"{location}: {error}") from error
        if not history.revisions or history.revisions[0].first_step:
            raise FormatError(f"{location}: not a schedule: the first revision must begin at step 0")
        return history

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the schedule of a file; raise FormatError, naming the file, if it is not a schedule."""
        try:
            return cls.from_json(load_untrusted_json(path.read_bytes()), str(path))
        except ValueError as error:
            raise FormatError(f"{path}: invalid JSON: {error}") from error


def _parse_revision(value: Mapping[str, Any]) -> Revision:
    return Revision(**{**value, "sources": tuple(_parse_source(source) for source in value["sources"])})


def _parse_source(value: Mapping[str, Any]) -> Source:
    return Source(**{**value, "shards": tuple(_parse_shard(shard) for shard in value["shards"])})


def _parse_shard(value: Mapping[str, Any]) -> SourceShard:
    # Convert JSON's lists to tuples, because `follows` compares the ranges with tuples.
    ranges = {name: tuple((int(a), int(b)) for a, b in value.get(name, ())) for name in ("removed", "added")}
    return SourceShard(**{**value, **ranges})


def join_ranges(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """Return the ranges after merging adjacent ones."""
    spans: list[tuple[int, int]] = []
    for start, stop in ranges:
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], stop)
        elif stop > start:
            spans.append((start, stop))
    return tuple(spans)
