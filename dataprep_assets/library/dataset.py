"""A dataset that is opened: what a person, a script or a notebook does with it."""

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
        """Its name, the key `dataset:`."""
        return self.component.declaration.dataset

    @property
    def specs(self) -> Sequence[ArtifactSpec]:
        """What it makes, inputs before what is made of them."""
        return self.component.specs

    @cached_property
    def store(self) -> ArtifactStore:
        """Where its artifacts are."""
        return self.component.store(self.project.storage)

    def check(self) -> list[Mistake]:
        """What is wrong with its declaration, its tokenizer and its local source, and what may be (`Mistake.hint`)."""
        require_sound_environment()
        return mistakes_of(self.project, self.component, self.project.declaration_of(self.name))

    def require_sound(self, *, whole: bool = True) -> list[Mistake]:
        """Raise ConfigError naming all that holds up a run; else return the hints.

        A first run of the whole is also held up by what only the source and the user's own taggers can tell. A later
        one is not, because a dataset may be up to date while its source is out of reach.
        """
        from dataprep_assets.engine.staleness.status import never_built

        mistakes = self.check()
        wrong = [mistake for mistake in mistakes if not mistake.hint and not mistake.of_source]
        if whole and not wrong and never_built(self.specs, self.store):
            place = self.project.declaration_of(self.name)
            mistakes = mistakes_of(self.project, self.component, place, tried=True)
            # of sensitive data the error of a step says more than a remark: it has the position
            sensitive = self.component.declaration.sensitive
            wrong = [mistake for mistake in mistakes if not mistake.hint and not (sensitive and mistake.of_source)]
        if wrong:
            raise ConfigError("\n".join(map(str, wrong)))
        return [mistake for mistake in mistakes if mistake.hint]

    def status(self) -> Rebuild:
        """What a run would make now, why, and what that costs. Nothing is written; local sources are read."""
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
        """Make it, with all checks; what is current is kept. The run is recorded in the project's Dagster instance.

        Args:
            split: Only the partitions of this split, or of several.
            partitions: Only this range of them, `FIRST...LAST`, or one.
            process_count: Cut what these leave into so many even parts, …
            process_index: … and make this one, from 0.

        Returns:
            The result, whose `checks` has the warnings.

        Raises ConfigError for what is wrong with the declaration, RunFailedError for anything else that failed; what
        was finished is kept, and the next run goes on from there.
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
        """Whether a run has nothing to do: each partition is kept, and Dagster, which is asked last, has all of it."""
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
        """Execute the dataset's job, or the part of it that makes `only` some partitions.

        Args:
            only: The artifacts to make, each with the partitions to make of it; None for everything.
            attendants: Who attends to the build.
            part: What the run's tag says of a part.
            verbose: Whether Dagster's own error messages go to standard error.
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
        """Make the chosen partitions, and before them what plans them and what they are made of.

        Raises NotFoundError if there are fewer partitions than processes, so that none is left for this one,
        ConfigError if what they are made of is made of all partitions, such as duplicates, and is not current.
        """
        from dataprep_assets.engine.staleness.status import decisions_of

        partitioned = part.partitioned(self.specs)
        needed = ancestors(spec for spec in partitioned if part.takes(spec))
        # refused at once: it would fail after hours, where a shard needs what all shards have to be there for
        for spec in self.specs:
            of_all = spec in needed and spec.partitions is None and ancestors([spec]) & set(partitioned)
            if of_all and decisions_of(spec, self.store, [None])[None].is_stale:
                raise ConfigError(
                    f"{part}: {'/'.join(spec.path)}, which this part needs, is built from all partitions and is out "
                    f"of date. Run `dataprep run {self.name}` first"
                )
        # what plans the partitions: only when it is made is it known which there are to choose from
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
        """A line for each failure: the artifact, of a mistake in the declaration the place of the first key that the
        reason names, and the reason."""
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
        """Finds documents in its artifacts as they are now; what it opened stays mapped.

        Raises ConfigError for a kind whose artifacts do not say where documents lie.
        """
        return self.component.tracer(self.store)

    def trace(self, *, decode: bool = True, **question: Any) -> list[Trace]:
        """The documents at a place of the training data, each with its source row and every place that holds it.

        Args:
            decode: Whether their texts are decoded; those of sensitive data never are.
            question: Exactly one way to ask, within a split, shard or file: `trace(token=123, split="train")`. The
                fields of `Question`.

        Raises NotFoundError if there is none, ConfigError for a question that this dataset cannot answer.
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
        """Return rows of its table of documents, in the order of the source, as `dataprep documents` lists them.

        Args:
            where: Only rows of which this is true, written as a rule is.
            reason: Only rows that were dropped for this reason: a rule, `duplicate`, `retracted`.
            kept: Only rows that were kept, or only those that were not.
            split: Only rows of this split, or of several.
            columns: Only these columns, in this order.

        Raises ConfigError for a dataset without a table or a sensitive one, whose rows are not listed, and for an
        invalid expression or an unknown reason, split or column; MissingArtifactError if there is no table yet.
        """
        if self.component.declaration.sensitive:
            raise ConfigError(
                f"{self.name} is sensitive, so its rows are not listed. Run `dataprep documents` to count them"
            )
        asked = self.component.documents(self.store)
        return asked.rows(where=where, reason=reason, kept=kept, splits=split_names(split), columns=columns)

    def verify(self, verification: Verification = "full") -> Iterator[Verified]:
        """The verdict on each of its artifacts: the bytes against the receipt. `verification`: `full` or `size`."""
        place = self.project.open_store(self.component.declaration.storage)
        return verify_place(place, verification, dataset=self.name)

    @property
    def artifacts(self) -> list[Artifact]:
        """The artifacts that are there, inputs before what is made of them."""
        found: list[Artifact] = []
        for spec in self.specs:
            with suppress(DataprepError):  # not planned yet
                artifacts = spec.artifacts(self.store)
                receipts = self.store.receipts(artifacts)
                found += [one for one, receipt in zip(artifacts, receipts, strict=True) if receipt is not None]
        return list(dict.fromkeys(found))

    def artifact(self, name: str | None = None, partition: str | None = None) -> ArtifactHandle:
        """An artifact that is there, to be opened as paths, files, ranges of bytes or NumPy arrays.

        Args:
            name: For example `nanogpt_bins`; None for what the trainer reads.
            partition: For example `train-00003` of `token_bins`; a split, of what is made for each.

        Raises MissingArtifactError if it is not there, ConfigError if the dataset has none of this name or partition.
        """
        if name is None:
            return ArtifactHandle.of(self.store, self.component.product(self.store))
        asked = Artifact(dataset=self.name, name=name, partition=partition)
        if self.store.receipt(asked) is None:
            self._require_planned(asked)
        return ArtifactHandle.of(self.store, asked)

    def _require_planned(self, asked: Artifact) -> None:
        """Raise ConfigError if no artifact of the dataset has the name, or has it with another partition alone."""
        planned: dict[str, list[str | None]] = {}
        for spec in self.specs:
            try:
                for artifact in spec.artifacts(self.store):
                    planned.setdefault(artifact.name, []).append(artifact.partition)
            except DataprepError:  # not planned yet
                # as long as nothing is planned, any partition may come
                planned.setdefault(spec.name, []).append(asked.partition)
        if asked.name not in planned:
            raise ConfigError(f"{self.name}: unknown artifact {asked.name!r}{_or(asked.name, planned)}")
        parts = planned[asked.name]
        if asked.partition not in parts:
            wrong = "partition is missing" if asked.partition is None else f"unknown partition {asked.partition!r}"
            raise ConfigError(f"{self.name}/{asked.name}: {wrong}{_or(asked.partition, filter(None, parts))}")


def _or(name: str | None, known: Iterable[str]) -> str:
    """What may have been meant, in words."""
    names = list(known)
    meant = nearest(name or "", names)
    if meant is not None:
        return f". Did you mean {meant!r}?"
    return f". Available: {', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''}" if names else ""
