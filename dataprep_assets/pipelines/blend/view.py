"""Views of a blend (`<dataset>/<view>`): the rows of a finished run in the file formats of other trainers.

A view is built after the run, from the shards that the run uses. Its key covers their content and order, but not the
run's location. Each stage except `pretrain` has one kind of view (`sft/view.py`, `pairs/view.py`, `rl/view.py`), which
defines how a split's rows are read, the fields and facts of its views, and how a view is compared with the run.
`stage_views.py` lists the kinds.

Entry points: `RunSplit`, `UsedShard`, `BlendView`, `BlendViewFacts`, `BlendViewWriter`; `build_view`,
`build_view_spec`, `list_view_lines`; `OpenedBlendView`, `matches_run`, `compare_rows`; `ViewRows` for `trace`.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest
from dataprep_assets.engine.artifact.view import (
    REBUILD_VIEW,
    StagedView,
    View,
    catch_errors,
    layout_valid,
    load_view,
    locate_for_trainer,
    view_recipe,
)
from dataprep_assets.engine.checks.check import Check, Finding, OpenedArtifact, build_verdict, describe_artifact
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.errors import DataprepError, IntegrityError
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.extensions import Extensions
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore, FileRef
from dataprep_assets.integrity.receipt import Content, Ledger, Receipt, find_damage
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.finished_shards import FinishedShard
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.runs import RUNS, RunFacts

F = TypeVar("F", bound=Facts)


class BlendViewFacts(Facts):
    """Facts of a view: its name, and its number of rows by split."""

    writer_fields: ClassVar[frozenset[str]] = frozenset()
    """Names of facts that only the writer of the view knows, so that they cannot be compared with the run."""

    view: str
    rows: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class BlendViewWriter(StagedView):
    """Writer of a blend's view, which is under construction."""

    blend: BlendDeclaration


@dataclass(frozen=True, kw_only=True)
class UsedShard(Generic[F]):
    """A use of a shard in a split: the shard's dataset, artifact and facts, and the file with its rows.

    A shard that the split repeats has several uses. The file belongs to the run or, if the run has no file per shard,
    to the shard.
    """

    dataset: str
    artifact: Artifact
    receipt: Receipt
    file: FileRef
    facts: F

    @property
    def partition(self) -> str:
        """The shard's partition key."""
        return str(self.artifact.partition)

    @property
    def content(self) -> Content:
        """The content of the shard's artifact."""
        return self.receipt.content

    @property
    def key(self) -> str:
        """The key of the shard's artifact."""
        return self.receipt.key

    def fetch_file(self, store: ArtifactStore) -> Path:
        """Return the path of the file with the shard's rows. The file is downloaded if necessary."""
        name = self.file.record.path
        return store.local(self.file.artifact, [name]) / name


@dataclass(frozen=True, kw_only=True)
class RunSplit(Generic[F]):
    """A split of a finished run, with its shards in the order of their rows."""

    shards_name: ClassVar[str]
    """Name of the artifact that contains the stage's shards."""
    shard_facts: ClassVar[type[Facts]]
    """Class of the shards' facts."""
    documents_fact: ClassVar[str]
    """Name of the fact with the number of a shard's documents."""

    split: str
    run: Artifact
    shards: tuple[UsedShard[F], ...]

    @classmethod
    def from_run(
        cls, blend: BlendDeclaration, run: Artifact, receipt: Receipt, split: str, shards: Sequence[FinishedShard]
    ) -> Self:
        """Return a split of `run`, whose `receipt` lists a file for each of the split's `shards`."""
        # Sort the files by name to match the order of the shards, because the names begin with the shard's position in
        # the split.
        records = sorted((r for r in receipt.files if r.path.startswith(f"splits/{split}/")), key=lambda r: r.path)
        files = [FileRef(run, record) for record in records]
        return cls(split=split, run=run, shards=cls.build_used_shards(shards, files))

    @classmethod
    def build_used_shards(cls, shards: Sequence[FinishedShard], files: Sequence[FileRef]) -> tuple[UsedShard[Any], ...]:
        """Return the shards, each with the file that contains its rows."""
        return tuple(
            UsedShard(
                dataset=shard.unit.dataset.name,
                artifact=shard.artifact,
                receipt=shard.receipt,
                file=file,
                facts=cls.shard_facts.from_receipt(shard.receipt),
            )
            for shard, file in zip(shards, files, strict=True)
        )

    def sum_fact(self, fact: str) -> int:
        """Return the sum of a fact over the shards."""
        return sum(getattr(shard.facts, fact) for shard in self.shards)

    @property
    def tokens(self) -> int:
        """Total number of tokens in the shards; 0 for RL records."""
        return self.sum_fact("tokens")


S = TypeVar("S", bound=RunSplit[Any])


def load_run_splits(blend: BlendDeclaration, store: ArtifactStore, kind: type[S]) -> list[S]:
    """Return the splits of the committed plan's run.

    Raises MissingArtifactError if the run or a shard is missing, and IntegrityError if the run was not built from the
    current shards.
    """
    plan = load_blend_plan(blend, store)
    run = blend.artifact(RUNS, plan.run_hash)
    receipt = store.require(run)
    splits = []
    for split, partitions in RunFacts.from_receipt(receipt).used.items():
        shards = []
        for partition in partitions:
            shard = store.require(artifact := blend.artifact(kind.shards_name, partition))
            if receipt.inputs.get(partition) != shard.content:
                raise IntegrityError(f"{run}: was not built from the current shard {partition}. Rebuild the blend")
            unit, planned_shard = plan.find_shard(partition)
            shards.append(FinishedShard(unit=unit, index=planned_shard.index, artifact=artifact, receipt=shard))
        splits.append(kind.from_run(blend, run, receipt, split, shards))
    return splits


@dataclass(frozen=True, kw_only=True)
class BlendView(View, ABC, Generic[S]):
    """A trainer's format for the rows of a run; the artifact has the view's name.

    Attributes:
        trainer: Yields a line with the settings of each trainer, given the view's location and facts.
    """

    available: ClassVar[Extensions]
    """Views of this kind, by name."""
    split_type: ClassVar[type[RunSplit[Any]]]
    facts_type: ClassVar[type[BlendViewFacts]]
    contents: ClassVar[str]
    """Noun for the rows of the run in messages, such as `packed rows`."""
    shown_facts: ClassVar[tuple[str, ...]]
    """Names of the facts by split that are shown as metadata."""

    trainer: Callable[[str, Any], Iterator[str]]

    @classmethod
    def load(cls, name: str) -> Self:
        """Return the view with this name, from this or a different package. Raises the errors of `load_view`."""
        return load_view(cls.available, name, cls)

    @property
    @abstractmethod
    def checks(self) -> "tuple[Check[OpenedBlendView[Any]], ...]":
        """Checks of the view."""

    @classmethod
    def load_splits(cls, blend: BlendDeclaration, store: ArtifactStore) -> list[S]:
        """Return the splits of the committed plan's run. Raises the errors of `load_run_splits`."""
        splits: list[Any] = load_run_splits(blend, store, cls.split_type)
        return splits

    def require_writable(self, blend: BlendDeclaration, splits: Sequence[S]) -> None:
        """Raise ConfigError if the format cannot express all rows."""

    def identify_rows(self, shard: UsedShard[Any]) -> Any:
        """Return a JSON value that identifies the rows of a shard for this view."""
        return shard.content

    @abstractmethod
    def write_files(self, splits: Sequence[S], writer: BlendViewWriter) -> None:
        """Write the files of the view; finished files that are already in the folder may be kept."""

    @abstractmethod
    def measure(self, splits: Sequence[S], store: ArtifactStore) -> BlendViewFacts:
        """Return the facts that the view must have, computed from the run."""

    @abstractmethod
    def find_differences(self, opened: "OpenedBlendView[S]", split: S) -> Iterator[str]:
        """Yield differences between the view and a split of the run."""

    @abstractmethod
    def find_layout_defects(self, opened: "OpenedBlendView[S]") -> Iterator[str]:
        """Yield a sentence for each part of the finished layout that a trainer would not accept."""

    @abstractmethod
    def describe(self, facts: Any) -> tuple[str, Mapping[str, int]]:
        """Return the sentence and the counts of a passed check, for a view with these facts that equals the run."""

    @abstractmethod
    def compute_row_offsets(self, shard: UsedShard[Any], store: ArtifactStore) -> Sequence[int]:
        """Return, for each row of a shard, the number of the view's rows from earlier rows; then their total number."""

    @abstractmethod
    def find_file(self, split: S, index: int) -> tuple[str, int]:
        """Return the view's file with the rows of shard `index` of a split, and the index of the file's first shard."""

    def format_lines(self, location: str, facts: Any) -> Iterator[str]:
        """Yield lines with the settings of each trainer, and notes about the view."""
        yield from self.trainer(location, facts)

    def build_recipe(self, blend: BlendDeclaration, splits: Sequence[S]) -> Recipe:
        """Return the recipe of the view for these splits."""
        shards = [shard for split in splits for shard in split.shards]
        return view_recipe(
            self,
            blend.artifact(self.name),
            blend,
            content=[[split.split, [self.identify_rows(shard) for shard in split.shards]] for split in splits],
            upstream={f"{self.split_type.shards_name}/{shard.partition}": shard.content for shard in shards},
            ledger=Ledger(
                rows_in=(documents := sum(split.sum_fact(split.documents_fact) for split in splits)),
                documents=documents,
                tokens=sum(split.tokens for split in splits),
            ),
        )


V = TypeVar("V", bound=BlendView[Any])


def build_view(
    blend: BlendDeclaration, store: ArtifactStore, view: BlendView[Any], *, threads: int = 1
) -> tuple[Receipt, bool]:
    """Build a view of the committed plan's run.

    Args:
        blend: The declaration.
        store: The store of the blend's artifacts.
        view: The view to build.
        threads: Number of threads that write files.

    Returns:
        The receipt, and whether the view was reused.

    Raises ConfigError or BadRecordError if the format cannot express all rows.
    """
    splits = view.load_splits(blend, store)
    view.require_writable(blend, splits)
    recipe = view.build_recipe(blend, splits)

    def write(staged: Path) -> WrittenFiles:
        writer = BlendViewWriter(blend=blend, store=store, target=staged, threads=threads)
        view.write_files(splits, writer)
        return WrittenFiles(
            inputs={shard.partition: shard.content for split in splits for shard in split.shards},
            facts=view.measure(splits, store).model_copy(update=writer.facts),
            ledger=recipe.ledger,
            digests=writer.digests,
            joined=tuple(writer.joined),
        )

    return ensure_built(recipe, store, write, blend.verify, resumes=True)


def build_view_spec(blend: BlendDeclaration, view: BlendView[Any], *, run: ArtifactSpec) -> ArtifactSpec:
    """Return the spec of a view, which is built from `run`."""
    return ArtifactSpec(
        declaration=blend,
        name=view.name,
        version=view.version,
        columns=view.columns,
        column_descriptions=view.column_descriptions,
        description=view.description,
        kinds=view.kinds,
        inputs=(run,),
        recipes=lambda store, _: [view.build_recipe(blend, view.load_splits(blend, store))],
        build=partial(_build_views, blend, view),
        rows=lambda receipt: sum(view.facts_type.from_receipt(receipt).rows.values()),
        metadata=lambda _, receipt: _build_metadata(view, receipt),
        check_groups=(WholeArtifactChecks(checks=view.checks, open=partial(open_view, blend, view)),),
    )


def _build_views(blend: BlendDeclaration, view: BlendView[Any], request: BuildRequest) -> Iterator[Outcome]:
    yield Outcome.from_receipt(*build_view(blend, request.store, view, threads=request.workers))


def _build_metadata(view: BlendView[Any], receipt: Receipt) -> Mapping[str, Any]:
    facts = view.facts_type.from_receipt(receipt)
    return {f"{name}_{split}": n for name in view.shown_facts for split, n in getattr(facts, name).items()}


def list_view_lines(blend: BlendDeclaration, store: ArtifactStore, views: Iterable[BlendView[Any]]) -> Iterator[str]:
    """Yield the lines with trainers' settings of each view that is built."""
    for view in views:
        artifact = blend.artifact(view.name)
        if (receipt := store.receipt(artifact)) is not None:
            yield from view.format_lines(locate_for_trainer(store, artifact), view.facts_type.from_receipt(receipt))


@dataclass(frozen=True)
class OpenedBlendView(OpenedArtifact, Generic[S]):
    """A view that is opened for checks, with the splits of its run and the declaration."""

    view: BlendView[S]
    splits: Sequence[S]
    blend: BlendDeclaration

    def defects(self) -> Iterator[str]:
        """Yield a sentence for each defect of the view's layout."""
        yield from catch_errors(partial(self.view.find_layout_defects, self))


def open_view(
    blend: BlendDeclaration, view: BlendView[Any], store: ArtifactStore, _: Sequence[str] = ()
) -> OpenedBlendView[Any]:
    """Return a view that is opened for checks.

    Raises MissingArtifactError if the view is not built, and the errors of `load_run_splits`.
    """
    artifact, splits = blend.artifact(view.name), view.load_splits(blend, store)
    return OpenedBlendView(artifact, store, view, splits, blend).with_local_files()


def matches_run(subject: OpenedBlendView[Any]) -> Finding:
    """Check that the view's files are intact, its facts match the run, and it has the run's rows in the same order."""
    view, receipt = subject.view, subject.receipt
    name, facts = describe_artifact(receipt), view.measure(subject.splits, subject.store)
    defects = [f"{name}: {defect}" for defect in find_damage(subject.directory, receipt)]
    left_out = set(facts.writer_fields)
    if view.facts_type.from_receipt(receipt).model_dump(exclude=left_out) != facts.model_dump(exclude=left_out):
        defects.append(f"{name}: its receipt does not match the run's {view.contents}")
    if not defects:  # do not compare rows after other defects, because a damaged file may be unreadable
        defects += [f"{name}: {defect}" for split in subject.splits for defect in _find_differences(subject, split)]
    sentence, counts = view.describe(facts)
    return build_verdict(defects, sentence, REBUILD_VIEW, facts=counts)


def _find_differences(subject: OpenedBlendView[S], split: S) -> Iterator[str]:
    try:
        yield from subject.view.find_differences(subject, split)
    except DataprepError as error:
        yield str(error)
    # Other packages' readers may raise any of these errors for a damaged file.
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        yield f"{split.split}: cannot be read ({type(error).__name__}: {error})"


def compare_rows(
    split: str, noun: str, rows: Iterable[Any], run_rows: Iterable[Any], compare: Callable[[Any, Any], str | None]
) -> Iterator[str]:
    """Yield the first difference between the rows of a view and the rows of the run, if there is one.

    Args:
        split: Name of the split.
        noun: Noun for a row in messages.
        rows: Rows of the view.
        run_rows: Rows of the run, to which the view's rows must be equal.
        compare: Returns the name of the part in which two rows differ; None if they are equal.
    """
    for number, (row, run_row) in enumerate(zip_longest(rows, run_rows)):
        if row is None or run_row is None:
            yield f"{split}: has {'fewer' if row is None else 'more'} {noun}s than the run"
            return
        if (part := compare(row, run_row)) is not None:
            yield f"{split}: {noun} {number} differs from the run's {noun}: {part}"
            return


LAYOUT_VALID: Check[OpenedBlendView[Any]] = Check(
    "layout_valid", "The files have the names and columns that the trainer reads.", layout_valid
)
"""Check of the layout of the files, which every view has."""


class ShardRow(NamedTuple):
    """Location of a row in a shard: the shard's partition key, and the row's number in the shard."""

    partition: str
    number: int


class ViewPlace(NamedTuple):
    """Location of a row in a view: its file, its number in the file, and its number in the split (`sample`)."""

    file: str
    row: int
    sample: int


class ViewRows(Generic[V]):
    """Lookup of the rows of a finished view for `trace`: from a row of a split to the shard's row, and back."""

    def __init__(self, blend: BlendDeclaration, store: ArtifactStore, view: V) -> None:
        """Open a view. Raises MissingArtifactError if it is not built, and IntegrityError if it is out of date."""
        self.view, self.artifact, self._store = view, blend.artifact(view.name), store
        self._splits = {split.split: split for split in view.load_splits(blend, store)}
        self.receipt = store.require(self.artifact)
        if self.receipt.key != view.build_recipe(blend, [*self._splits.values()]).key:
            raise IntegrityError(
                f"{self.artifact}: was not built from the current {view.contents}. Rebuild the dataset"
            )

    @cached_property
    def _offsets(self) -> dict[str, list[Sequence[int]]]:
        """The row offsets (`BlendView.compute_row_offsets`) of each shard, by split."""
        return {
            name: [self.view.compute_row_offsets(shard, self._store) for shard in split.shards]
            for name, split in self._splits.items()
        }

    @cached_property
    def _starts(self) -> dict[str, list[int]]:
        """The number of each shard's first row in the split, followed by the number of rows, by split."""
        return {
            name: list(accumulate((offsets[-1] for offsets in shards), initial=0))
            for name, shards in self._offsets.items()
        }

    @property
    def counts(self) -> dict[str, int]:
        """Number of rows by split."""
        return {split: starts[-1] for split, starts in self._starts.items()}

    def find_row(self, split: str, sample: int) -> ShardRow:
        """Return the location in a shard of the row `sample` of a split, which must be in range."""
        starts = self._starts[split]
        index = bisect_right(starts, sample) - 1
        number = bisect_right(self._offsets[split][index], sample - starts[index]) - 1
        return ShardRow(self._splits[split].shards[index].partition, number)

    def find(self, partition: str, number: int) -> Iterator[ViewPlace]:
        """Yield the locations in the view of a shard's row, which may be repeated or written as several rows."""
        for name, split in self._splits.items():
            starts = self._starts[name]
            for index, shard in enumerate(split.shards):
                if shard.partition == partition:
                    file, first_shard = self.view.find_file(split, index)
                    offsets = self._offsets[name][index]
                    for sample in range(starts[index] + offsets[number], starts[index] + offsets[number + 1]):
                        yield ViewPlace(file, sample - starts[first_shard], sample)
