"""An open dataset: checks, builds and reads it for a command, a script or a notebook."""

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dataprep_assets.engine.artifact.build import ancestors
from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.staleness.rebuild import Rebuild, rebuild_of
from dataprep_assets.engine.trace.trace import Trace, Tracer, trace
from dataprep_assets.engine.yaml.declared_keys import nearest
from dataprep_assets.engine.yaml.mistakes import read_documents
from dataprep_assets.errors import ConfigError, DataprepError, NotFoundError, RunFailedError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle, ArtifactStore
from dataprep_assets.integrity.receipt import Verification
from dataprep_assets.integrity.verify import Verified, verify_place
from dataprep_assets.library.mistakes import Mistake, mistakes_of, require_sound_environment
from dataprep_assets.library.part import PartitionSelection, split_names
from dataprep_assets.planning.cost import Machine
from dataprep_assets.stores.files import private_files

if TYPE_CHECKING:
    from dataprep_assets.engine.trace.asked_documents import DocumentRows
    from dataprep_assets.library.project import OpenProject
    from dataprep_assets.orchestration.build import BuildListener
    from dataprep_assets.orchestration.runs.runs import RunResult

_SHOWN = 12
"""Maximum number of names in a message."""


class OpenDataset:
    """A dataset of a project, as `OpenProject.dataset` opens it."""

    def __init__(self, project: "OpenProject", component: Dataset) -> None:
        self.project, self.component = project, component

    def __repr__(self) -> str:
        return f"{self.project!r}.dataset({self.name!r})"

    @property
    def name(self) -> str:
        """Name of the dataset, from the key `dataset:`."""
        return self.component.declaration.dataset

    @property
    def specs(self) -> Sequence[ArtifactSpec]:
        """Specs of the artifacts, inputs first."""
        return self.component.specs

    @cached_property
    def store(self) -> ArtifactStore:
        """Store of the artifacts."""
        return self.component.store(self.project.storage)

    def check(self) -> list[Mistake]:
        """Return the mistakes and hints (`Mistake.hint`) about the declaration, its tokenizer and its local source."""
        require_sound_environment()
        return mistakes_of(self.project, self.component, self.project.declaration_of(self.name))

    def require_sound(self, *, whole: bool = True) -> list[Mistake]:
        """Return the hints; raise ConfigError with all mistakes that prevent a run.

        The first run of the whole dataset also checks the source and runs the user's own taggers on it. Later runs do
        not, because a dataset may be up to date while its source cannot be reached.
        """
        from dataprep_assets.engine.staleness.status import never_built

        mistakes = self.check()
        wrong = [mistake for mistake in mistakes if not mistake.hint and not mistake.of_source]
        if whole and not wrong and never_built(self.specs, self.store):
            place = self.project.declaration_of(self.name)
            mistakes = mistakes_of(self.project, self.component, place, tried=True)
            # for sensitive data, the error of a step is more useful than a remark, because it has the position
            sensitive = self.component.declaration.sensitive
            wrong = [mistake for mistake in mistakes if not mistake.hint and not (sensitive and mistake.of_source)]
        if wrong:
            raise ConfigError("\n".join(map(str, wrong)))
        return [mistake for mistake in mistakes if mistake.hint]

    def status(self) -> Rebuild:
        """Return what a run would build now, why, and the cost. Reads local sources, and writes nothing."""
        cores = self.component.declaration.workers or len(os.sched_getaffinity(0))
        return rebuild_of(self.specs, self.store, Machine(cores=cores, bandwidth=125e6), self.project.step_times())

    def run(
        self,
        *,
        split: str | Sequence[str] | None = None,
        partitions: str | None = None,
        process_count: int | None = None,
        process_index: int | None = None,
    ) -> "RunResult":
        """Build the dataset and run its checks, in the project's Dagster instance. Current artifacts are kept.

        Args:
            split: Only partitions of this split, or of these splits.
            partitions: Only this range of partitions, `FIRST...LAST`, or this partition.
            process_count: Number of even parts into which the selected partitions are cut.
            process_index: The part to build, from 0.

        Returns:
            The result, whose `checks` has the warnings.

        Raises ConfigError for mistakes in the declaration, and RunFailedError for all other failures. Finished work is
        kept, and the next run resumes from it.
        """
        part = PartitionSelection(
            splits=split_names(split), bounds=partitions, option="partitions", count=process_count, index=process_index
        )
        self.require_sound(whole=not part.is_some)
        result = self.build() if not part.is_some else self.build_part(part)
        if result.ended:
            lines = [*self.complaints(result), *result.failed_checks]
            error = ConfigError if result.ended == result.ended.MISCONFIGURED else RunFailedError
            raise error("\n".join(lines))
        return result

    def up_to_date(self) -> bool:
        """Return whether a run has nothing to do: every partition is current, and Dagster (checked last) has it."""
        from dataprep_assets.engine.staleness.decide import Action
        from dataprep_assets.engine.staleness.status import check_decisions, decisions, retracted_left

        specs, store = self.specs, self.store
        if retracted_left(specs, store) or any(one.action is not Action.KEEP for one in decisions(specs, store)):
            return False
        from dataprep_assets.orchestration.runs.runs import Recorded

        with self.project.instance() as instance:
            events = Recorded(instance)
            found = (check_decisions(spec, store, spec.slots(store), events) for spec in specs)
            return all(one.action is Action.KEEP for of_spec in found for one in of_spec.values())

    def build(
        self,
        *,
        only: Mapping[ArtifactSpec, Sequence[str]] | None = None,
        attendants: "Sequence[BuildListener]" = (),
        part: str = "",
        verbose: bool = False,
        began: float | None = None,
    ) -> "RunResult":
        """Execute the dataset's job, or the part of it that builds `only` some partitions.

        Args:
            only: The artifacts to build, each with its selected partitions; None builds everything.
            attendants: Listeners in this process that receive the events of the build.
            part: Description of the part, for the run's tag.
            verbose: Whether to print Dagster's own error messages on standard error.
            began: Start of the command that builds it, in seconds of `time.monotonic`; default: now.
        """
        import dagster as dg

        from dataprep_assets.code_location import bind_resources
        from dataprep_assets.library.step_timer import StepTimer
        from dataprep_assets.orchestration.build import job_of
        from dataprep_assets.orchestration.partitions import PART
        from dataprep_assets.orchestration.runs.runs import execute
        from dataprep_assets.orchestration.runs.terminal import watched_in_notebook

        timer = StepTimer(time.monotonic() if began is None else began)
        job, here = job_of(self.specs, only=only, attendants=[timer, *attendants]), self.project.project
        definitions = bind_resources(dg.Definitions(jobs=[job]), here.root)
        with self.project.instance() as instance, private_files(self.component.declaration.sensitive):
            tags = {PART: part} if part else {}
            whole = definitions.resolve_job_def(job.name)
            with watched_in_notebook():
                result = execute(whole, instance, tags=tags, verbose=verbose)
            timer.keep(self.project.step_times(), self.specs, self.store, complete=only is None and not result.ended)
            return result

    def build_part(
        self, part: PartitionSelection, *, attendants: "Sequence[BuildListener]" = (), verbose: bool = False
    ) -> "RunResult":
        """Build the selected partitions, after the artifacts that plan them and their inputs.

        Raises NotFoundError if this process has no partition, because there are fewer partitions than processes. Raises
        ConfigError if an out-of-date input, such as duplicates, is built from all partitions.
        """
        from dataprep_assets.engine.staleness.status import decisions_of

        partitioned = part.partitioned_specs(self.specs)
        needed = ancestors(spec for spec in partitioned if part.includes(spec))
        # refused now, because a shard that needs an artifact of all shards would fail after hours
        for spec in self.specs:
            of_all = spec in needed and spec.partitions is None and ancestors([spec]) & set(partitioned)
            if of_all and decisions_of(spec, self.store, [None])[None].is_stale:
                raise ConfigError(
                    f"{part}: {'/'.join(spec.path)}, which this part needs, is built from all partitions and is out "
                    f"of date. Run `dataprep run {self.name}` first"
                )
        # the artifacts that plan the partitions are built first, because only they determine the partitions
        first = [spec for spec in ancestors(partitioned) if not ancestors([spec]) & set(partitioned)]
        before = {spec: () for spec in self.specs if spec in first}
        result = self.build(only=before, attendants=attendants, part=str(part), verbose=verbose)
        if result.ended:
            return result
        if only := part.select_partitions(self.specs, self.store):
            return self.build(only=only, attendants=attendants, part=str(part), verbose=verbose)
        raise NotFoundError(
            f"{self.name}: nothing to build in this part, because there are fewer partitions than processes"
        )

    def complaints(self, result: "RunResult") -> list[str]:
        """Return a line for each failure: the artifact and the reason.

        For a mistake in the declaration, the line also has the location of the first key that the reason names.
        """
        path, lines = self.project.declaration_of(self.name), []
        for failure in result.failures:
            where, fields = failure.where, type(self.component.declaration).model_fields
            # the key that the reason begins with, or one in backticks
            named = re.findall(r"^([a-z_.]+):|`([a-z_.]+)[`:]", failure.why) if failure.misconfigured else []
            key = next((key for pair in named if (key := pair[0] or pair[1]).partition(".")[0] in fields), None)
            if key is not None:
                (document, *_) = read_documents(path)
                where = f"{where}: {path}:{document.line_of(key.split('.'))}"
            lines.append(f"{where}: {failure.why}")
        return lines

    def tracer(self) -> Tracer:
        """Return a tracer for the present artifacts. Files that it opened stay mapped.

        Raises ConfigError for a kind of dataset whose artifacts do not record the positions of documents.
        """
        return self.component.tracer(self.store)

    def trace(self, *, decode: bool = True, **question: Any) -> list[Trace]:
        """Return the documents at a position of the training data, each with its source row and all its positions.

        Args:
            decode: Whether to decode the texts; texts of sensitive data are never decoded.
            question: Fields of `Question`: exactly one query, within a split, shard or file, such as
                `trace(token=123, split="train")`.

        Raises NotFoundError if no document is found, and ConfigError for a query that this dataset cannot answer.
        """
        return trace(self.tracer(), decode=decode, **question)

    def documents(
        self,
        *,
        where: str | None = None,
        reason: str | None = None,
        kept: bool | None = None,
        split: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> "DocumentRows":
        """Return rows of the document table in source order, as `dataprep documents` lists them.

        Args:
            where: Only rows that match this rule expression.
            reason: Only rows dropped for this reason: a rule's name, `duplicate` or `retracted`.
            kept: True: only kept rows; False: only dropped rows.
            split: Only rows of this split, or of these splits.
            columns: Only these columns, in this order.

        Raises ConfigError if the dataset has no table or is sensitive (its rows are not listed), and for an invalid
        expression or an unknown reason, split or column. Raises MissingArtifactError if the table is not built yet.
        """
        if self.component.declaration.sensitive:
            raise ConfigError(
                f"{self.name} is sensitive, so its rows are not listed. Run `dataprep documents` to count them"
            )
        asked = self.component.documents(self.store)
        return asked.rows(where=where, reason=reason, kept=kept, splits=split_names(split), columns=columns)

    def verify(self, verification: Verification = "full") -> Iterator[Verified]:
        """Yield the verdict on each artifact: its bytes compared with its receipt, in full or only by `size`."""
        place = self.project.open_store(self.component.declaration.storage)
        return verify_place(place, verification, dataset=self.name)

    @property
    def artifacts(self) -> list[Artifact]:
        """Finished artifacts, inputs first."""
        found: list[Artifact] = []
        for spec in self.specs:
            with suppress(DataprepError):  # not planned yet
                artifacts = spec.artifacts(self.store)
                receipts = self.store.receipts(artifacts)
                found += [one for one, receipt in zip(artifacts, receipts, strict=True) if receipt is not None]
        return list(dict.fromkeys(found))

    def artifact(self, name: str | None = None, partition: str | None = None) -> ArtifactHandle:
        """Return a finished artifact, which can be opened as paths, files, byte ranges or NumPy arrays.

        Args:
            name: Name such as `nanogpt_bins`; None for the artifact that the trainer reads.
            partition: Partition such as `train-00003` of `token_bins`, or a split of an artifact per split.

        Raises MissingArtifactError if it is not built yet, and ConfigError for an unknown name or partition.
        """
        if name is None:
            return ArtifactHandle.of(self.store, self.component.product(self.store))
        asked = Artifact(dataset=self.name, name=name, partition=partition)
        if self.store.receipt(asked) is None:
            self._require_planned(asked)
        return ArtifactHandle.of(self.store, asked)

    def _require_planned(self, asked: Artifact) -> None:
        """Raise ConfigError if no artifact of the dataset has this name and partition."""
        planned: dict[str, list[str | None]] = {}
        for spec in self.specs:
            try:
                for artifact in spec.artifacts(self.store):
                    planned.setdefault(artifact.name, []).append(artifact.partition)
            except DataprepError:  # not planned yet
                # before the plan exists, any partition is possible
                planned.setdefault(spec.name, []).append(asked.partition)
        if asked.name not in planned:
            raise ConfigError(f"{self.name}: unknown artifact {asked.name!r}{_suggestion(asked.name, planned)}")
        parts = planned[asked.name]
        if asked.partition not in parts:
            wrong = "partition is missing" if asked.partition is None else f"unknown partition {asked.partition!r}"
            raise ConfigError(f"{self.name}/{asked.name}: {wrong}{_suggestion(asked.partition, filter(None, parts))}")


def _suggestion(name: str | None, known: Iterable[str]) -> str:
    """Return the end of a message: the most similar name, or the available names."""
    names = list(known)
    meant = nearest(name or "", names)
    if meant is not None:
        return f". Did you mean {meant!r}?"
    return f". Available: {', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''}" if names else ""
