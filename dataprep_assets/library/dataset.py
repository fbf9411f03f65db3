"""An open dataset, which a command, a script or a notebook can check, build and read."""

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dataprep_assets.engine.artifact.build import find_ancestors
from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.staleness.rebuild import Rebuild, plan_rebuild
from dataprep_assets.engine.trace.trace import Trace, Tracer, trace_documents
from dataprep_assets.engine.yaml.declared_keys import find_nearest
from dataprep_assets.engine.yaml.mistakes import read_documents
from dataprep_assets.errors import ConfigError, DataprepError, NotFoundError, RunFailedError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle, ArtifactStore
from dataprep_assets.integrity.receipt import Verification
from dataprep_assets.integrity.verify import VerifiedArtifact, verify_place
from dataprep_assets.library.mistakes import Mistake, find_dataset_mistakes, require_sound_environment
from dataprep_assets.library.part import PartitionSelection, parse_split_names
from dataprep_assets.planning.cost import Machine
from dataprep_assets.stores.files import private_files

if TYPE_CHECKING:
    from dataprep_assets.engine.trace.document_table import DocumentRows
    from dataprep_assets.library.project import OpenProject
    from dataprep_assets.orchestration.build import BuildListener
    from dataprep_assets.orchestration.runs.runs import RunResult

_SHOWN = 12
"""Maximum number of names in a message."""


class OpenDataset:
    """A dataset of a project, opened by `OpenProject.dataset`."""

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
        return find_dataset_mistakes(self.project, self.component, self.project.declaration_of(self.name))

    def require_sound(self, *, is_whole: bool = True) -> list[Mistake]:
        """Return the hints. Raises ConfigError with all mistakes that prevent a run.

        The first run of the whole dataset also checks the source and runs the user's own taggers on it. Later runs do
        not, because a dataset may be up to date while its source cannot be reached.
        """
        from dataprep_assets.engine.staleness.status import is_never_built

        mistakes = self.check()
        blocking_mistakes = [mistake for mistake in mistakes if not mistake.hint and not mistake.of_source]
        if is_whole and not blocking_mistakes and is_never_built(self.specs, self.store):
            place = self.project.declaration_of(self.name)
            mistakes = find_dataset_mistakes(self.project, self.component, place, tried=True)
            # For sensitive data, do not stop at mistakes in the source, because the build step reports such a mistake
            # with its position.
            sensitive = self.component.declaration.sensitive
            blocking_mistakes = [
                mistake for mistake in mistakes if not mistake.hint and not (sensitive and mistake.of_source)
            ]
        if blocking_mistakes:
            raise ConfigError("\n".join(map(str, blocking_mistakes)))
        return [mistake for mistake in mistakes if mistake.hint]

    def status(self, *, until: str | None = None) -> Rebuild:
        """Return the artifacts that a run would build now, with reasons and costs.

        Reads local sources, and writes nothing. With `until`, only this artifact and the artifacts that it is built
        from are returned.
        """
        cores = self.component.declaration.workers or len(os.sched_getaffinity(0))
        specs = self.specs if until is None else PartitionSelection(until=until).select_specs(self.specs)
        return plan_rebuild(specs, self.store, Machine(cores=cores, bandwidth=125e6), self.project.step_times())

    def run(
        self,
        *,
        until: str | None = None,
        split: str | Sequence[str] | None = None,
        partitions: str | None = None,
        process_count: int | None = None,
        process_index: int | None = None,
    ) -> "RunResult":
        """Build the dataset and run its checks, in the project's Dagster instance. Current artifacts are kept.

        Args:
            until: Only this artifact, such as `documents`, and the artifacts that it is built from.
            split: Only partitions of this split, or of these splits.
            partitions: Only this range of partitions, `FIRST...LAST`, or this partition.
            process_count: Number of equal parts into which the selected partitions are divided.
            process_index: The part to build, from 0.

        Returns:
            The result, whose `checks` has the warnings.

        Raises ConfigError for mistakes in the declaration, and RunFailedError for all other failures. Finished work is
        kept, and the next run resumes from it.
        """
        part = PartitionSelection(
            until=until,
            splits=parse_split_names(split),
            bounds=partitions,
            option="partitions",
            count=process_count,
            index=process_index,
        )
        self.require_sound(is_whole=not part.limits_partitions)
        result = self.build() if not part.is_limited else self.build_part(part)
        if result.ended:
            lines = [*self.list_complaints(result), *result.failed_checks]
            error = ConfigError if result.ended == result.ended.MISCONFIGURED else RunFailedError
            raise error("\n".join(lines))
        return result

    def up_to_date(self) -> bool:
        """Return whether a run has nothing to do.

        This is so if every partition is current and recorded in Dagster, which is checked last.
        """
        from dataprep_assets.engine.staleness.decide import Action
        from dataprep_assets.engine.staleness.status import decide_checks, decide_dataset, find_retracted_leftovers

        specs, store = self.specs, self.store
        if find_retracted_leftovers(specs, store) or any(
            decision.action is not Action.KEEP for decision in decide_dataset(specs, store)
        ):
            return False
        from dataprep_assets.orchestration.runs.runs import DagsterEvents

        with self.project.instance() as instance:
            events = DagsterEvents(instance)
            spec_decisions = (decide_checks(spec, store, spec.slots(store), events) for spec in specs)
            return all(decision.action is Action.KEEP for of_spec in spec_decisions for decision in of_spec.values())

    def build(
        self,
        *,
        only: Mapping[ArtifactSpec, Sequence[str] | None] | None = None,
        listeners: "Sequence[BuildListener]" = (),
        part: str = "",
        verbose: bool = False,
        start_time: float | None = None,
    ) -> "RunResult":
        """Execute the dataset's job, or the part of it that builds `only` some partitions.

        Args:
            only: The artifacts to build, each with its selected partitions, or None for all of them; None builds
                everything.
            listeners: Listeners in this process that receive the events of the build.
            part: Description of the part, for the run's tag.
            verbose: Whether to print Dagster's own error messages on standard error.
            start_time: Start of the command, in seconds of `time.monotonic`; default: now.
        """
        import dagster as dg

        from dataprep_assets.code_location import bind_resources
        from dataprep_assets.orchestration.build import StepTimer, build_job
        from dataprep_assets.orchestration.partitions import PART
        from dataprep_assets.orchestration.runs.runs import execute_job
        from dataprep_assets.orchestration.runs.terminal import show_notebook_progress

        timer = StepTimer(time.monotonic() if start_time is None else start_time)
        job, part_instance = build_job(self.specs, only=only, listeners=[timer, *listeners]), self.project.project
        definitions = bind_resources(dg.Definitions(jobs=[job]), part_instance.root)
        is_new, opening_time = not self.project.home.exists(), time.monotonic()
        with self.project.instance() as instance, private_files(self.component.declaration.sensitive):
            if is_new:
                # Exclude the opening time, because only the first run creates the instance, which takes seconds.
                timer.exclude(time.monotonic() - opening_time)
            tags = {PART: part} if part else {}
            whole_job = definitions.resolve_job_def(job.name)
            with show_notebook_progress():
                result = execute_job(whole_job, instance, tags=tags, verbose=verbose)
            timer.keep(self.project.step_times(), self.specs, self.store, complete=only is None and not result.ended)
            return result

    def build_part(
        self, part: PartitionSelection, *, listeners: "Sequence[BuildListener]" = (), verbose: bool = False
    ) -> "RunResult":
        """Build the selected artifacts and partitions, after the artifacts that plan them and their inputs.

        Raises NotFoundError if this process has no partition, because there are fewer partitions than processes. Raises
        ConfigError if an out-of-date input, such as duplicates, is built from all partitions.
        """
        from dataprep_assets.engine.staleness.status import decide_slots

        specs = part.select_specs(self.specs)
        if not part.limits_partitions:
            return self.build(only=dict.fromkeys(specs), listeners=listeners, part=str(part), verbose=verbose)
        partitioned = part.list_partitioned_specs(specs)
        needed = find_ancestors(spec for spec in partitioned if part.includes(spec))
        # Refuse the build now, because a shard that needs an artifact of all shards would fail only after hours.
        for spec in specs:
            if spec.partitions is not None or not find_ancestors([spec]) & set(partitioned):
                continue
            if spec.name == part.until:
                raise ConfigError(
                    f"{part}: {'/'.join(spec.path)} is built from all partitions. Use --until without other options"
                )
            if spec in needed and decide_slots(spec, self.store, [None])[None].is_stale:
                raise ConfigError(
                    f"{part}: {'/'.join(spec.path)}, which this part needs, is built from all partitions and is out "
                    f"of date. Run `dataprep run {self.name}` first"
                )
        # First build the artifacts that do not depend on partitions, because one of them is the plan that determines
        # the partitions.
        first_specs = [spec for spec in find_ancestors(partitioned) if not find_ancestors([spec]) & set(partitioned)]
        no_partitions = {spec: () for spec in specs if spec in first_specs}
        result = self.build(only=no_partitions, listeners=listeners, part=str(part), verbose=verbose)
        if result.ended:
            return result
        if only := part.select_partitions(specs, self.store):
            return self.build(only=only, listeners=listeners, part=str(part), verbose=verbose)
        raise NotFoundError(
            f"{self.name}: this part has no partitions, because --process-count exceeds their number. Lower it"
        )

    def list_complaints(self, result: "RunResult") -> list[str]:
        """Return a line for each failure: the artifact and the reason.

        For a mistake in the declaration, the line also has the location of the first key that the reason names.
        """
        path, lines = self.project.declaration_of(self.name), []
        for failure in result.failures:
            location, fields = failure.where, type(self.component.declaration).model_fields
            # The key is at the beginning of the reason, or in backticks.
            named_keys = re.findall(r"^([a-z_.]+):|`([a-z_.]+)[`:]", failure.why) if failure.misconfigured else []
            key = next((key for pair in named_keys if (key := pair[0] or pair[1]).partition(".")[0] in fields), None)
            if key is not None:
                (document, *_) = read_documents(path)
                location = f"{location}: {path}:{document.find_line(key.split('.'))}"
            lines.append(f"{location}: {failure.why}")
        return lines

    def tracer(self) -> Tracer:
        """Return a tracer for the current artifacts. The files that it opens stay mapped.

        Raises ConfigError for a kind of dataset whose artifacts do not record the positions of documents.
        """
        return self.component.tracer(self.store)

    def trace(self, *, decode: bool = True, **question: Any) -> list[Trace]:
        """Return the documents at a position of the training data, each with its source row and all its positions.

        Args:
            decode: Whether to decode the texts; texts of sensitive data are never decoded.
            question: Fields of `TraceQuery`: exactly one query, within a split, shard or file, such as
                `trace(token=123, split="train")`.

        Raises NotFoundError if no document is found, and ConfigError for a query that this dataset cannot answer.
        """
        return trace_documents(self.tracer(), decode=decode, **question)

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
        table = self.component.documents(self.store)
        return table.rows(where=where, reason=reason, kept=kept, splits=parse_split_names(split), columns=columns)

    def verify(self, verification: Verification = "full") -> Iterator[VerifiedArtifact]:
        """Yield the verdict on each artifact: its bytes compared with its receipt, in full or only by `size`."""
        place = self.project.open_store(self.component.declaration.storage)
        return verify_place(place, verification, dataset=self.name)

    @property
    def artifacts(self) -> list[Artifact]:
        """Finished artifacts, inputs first."""
        matching_artifacts: list[Artifact] = []
        for spec in self.specs:
            with suppress(DataprepError):  # an artifact without a plan is not finished
                artifacts = spec.artifacts(self.store)
                receipts = self.store.receipts(artifacts)
                matching_artifacts += [
                    one for one, receipt in zip(artifacts, receipts, strict=True) if receipt is not None
                ]
        return list(dict.fromkeys(matching_artifacts))

    def artifact(self, name: str | None = None, partition: str | None = None) -> ArtifactHandle:
        """Return a finished artifact, which can be opened as paths, files, byte ranges or NumPy arrays.

        Args:
            name: Name such as `nanogpt_bins`; None for the artifact that the trainer reads.
            partition: Partition such as `train-00003` of `token_bins`, or the split of an artifact with one per split.

        Raises MissingArtifactError if it is not built yet, and ConfigError for an unknown name or partition.
        """
        if name is None:
            return ArtifactHandle.from_store(self.store, self.component.product(self.store))
        artifact = Artifact(dataset=self.name, name=name, partition=partition)
        if self.store.receipt(artifact) is None:
            self._require_planned_artifact(artifact)
        return ArtifactHandle.from_store(self.store, artifact)

    def _require_planned_artifact(self, requested_artifact: Artifact) -> None:
        """Raise ConfigError if no artifact of the dataset has this name and partition."""
        planned_partitions: dict[str, list[str | None]] = {}
        for spec in self.specs:
            try:
                for artifact in spec.artifacts(self.store):
                    planned_partitions.setdefault(artifact.name, []).append(artifact.partition)
            except DataprepError:
                # Accept any partition, because the partitions are unknown without a plan.
                planned_partitions.setdefault(spec.name, []).append(requested_artifact.partition)
        if requested_artifact.name not in planned_partitions:
            raise ConfigError(
                f"{self.name}: unknown artifact "
                f"{requested_artifact.name!r}{_suggest_name(requested_artifact.name, planned_partitions)}"
            )
        parts = planned_partitions[requested_artifact.name]
        if requested_artifact.partition not in parts:
            problem = (
                "partition is missing"
                if requested_artifact.partition is None
                else f"unknown partition {requested_artifact.partition!r}"
            )
            raise ConfigError(
                f"{self.name}/{requested_artifact.name}: "
                f"{problem}{_suggest_name(requested_artifact.partition, filter(None, parts))}"
            )


def _suggest_name(name: str | None, known_names: Iterable[str]) -> str:
    """Return the end of a message: the most similar name, or the available names."""
    names = list(known_names)
    suggestion = find_nearest(name or "", names)
    if suggestion is not None:
        return f". Did you mean {suggestion!r}?"
    return f". Available: {', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''}" if names else ""
