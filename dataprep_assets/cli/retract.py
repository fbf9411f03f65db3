"""`dataprep retract`: add documents to a dataset's retraction list, and list the artifacts to rebuild."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli.status import describe_leftover
from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import Name
from dataprep_assets.errors import ConfigError, count_of

if TYPE_CHECKING:
    from dataprep_assets.engine.artifact.dataset import Dataset
    from dataprep_assets.engine.artifact.spec import ArtifactSpec
    from dataprep_assets.engine.privacy import Privacy
    from dataprep_assets.engine.trace.retraction import RetractionResult
    from dataprep_assets.integrity.artifacts import ArtifactStore

MAX_SHOWN = 20
_WIDTHS = (20, 22)
"""Widths of the two columns of counts, in characters."""


def command(
    dataset: Name,
    ids: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Retract the documents in this file. Each line (text or JSON) is a document id, an index hash (16 "
            "hex digits), FILE:ROW (in a blend also DATASET/FILE:ROW), or a patient id for notes.",
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION",
            help="Retract all documents, kept or dropped, that match this expression, instead of --ids.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="If an entry is not found, write nothing and exit with code 1.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing, but print the same lines, and exit with the same code.")
    ] = False,
) -> int:
    """Add documents, rows of blends or patients of notes to a retraction list, and list the artifacts to rebuild."""
    declared_dataset = project.use_dataset(dataset)
    store = declared_dataset.store(project.open_storage())
    if (ids is None) == (where is None):
        raise ConfigError("pass exactly one of --ids FILE and --where EXPRESSION")
    rehearsed = _rehearse(declared_dataset) if dry_run else nullcontext(declared_dataset)
    with rehearsed as component, _list_ids(component, store, ids, where) as id_list:
        return _retract(declared_dataset, component, store, id_list, strict=strict)


def _retract(
    selected_dataset: "Dataset", component: "Dataset", store: "ArtifactStore", ids_path: Path, *, strict: bool
) -> int:
    """Retract the listed documents from `component`, and print the consequences; return the exit code.

    For a dry run, `component` is `selected_dataset` with a temporary copy of its retraction list.
    """
    dataset, is_rehearsed = selected_dataset.declaration.dataset, component is not selected_dataset
    result = component.retract(store, ids_path, strict=strict)
    training_lines = [] if strict and result.not_found else list(_format_trained_lines(component, ids_path))
    _print_result(dataset, result, is_written=not (strict and result.not_found))
    listing = getattr(selected_dataset.declaration, "retractions", result.list)
    if strict and result.not_found:
        print(f"--strict: nothing {'would be' if is_rehearsed else 'was'} written to {listing}")
        return 1
    entries = "the entries" if project.get_privacy().closed else count_of(result.added, "entry", "entries")
    if is_rehearsed:
        print(f"Dry run: {entries} would be added to {listing}", flush=True)
    else:
        print(
            f"Added {entries} to {listing}. Run `dataprep run {dataset}` to rebuild the affected artifacts", flush=True
        )
    if result.found or result.held:
        print()
        for line in _describe_affected(component, store, result.artifact):
            print(line)
    for line in _describe_leftovers(component, store, result):
        print(line)
    if result.found or result.held:
        for line in _describe_copies(component, result.files):
            print(line)
    for line in training_lines:
        print(line)
    return 0


@contextmanager
def _rehearse(component: "Dataset") -> "Iterator[Dataset]":
    """Yield the dataset with a temporary copy of its retraction list."""
    listing: Path | None = getattr(component.declaration, "retractions", None)
    with tempfile.TemporaryDirectory(prefix="dataprep-retract-") as folder:
        copy = Path(folder) / "retracted.jsonl"
        if listing is not None and listing.exists():
            copy.write_bytes(listing.read_bytes())
        # If the dataset kind has no retraction list, yield the component itself, whose `retract` raises an error with
        # the reason.
        yield component if listing is None else component.with_list(copy)


@contextmanager
def _list_ids(component: "Dataset", store: "ArtifactStore", ids: Path | None, where: str | None) -> Iterator[Path]:
    """Yield the path of the list of ids; for an expression, a temporary list of the hashes of matching documents."""
    if ids is not None:
        yield ids
        return
    table = component.documents(store)
    if "id" not in table.columns:
        raise ConfigError(
            f"--where: needs document ids, which this dataset does not have. Set `{table.id_key}`, and run the dataset"
        )
    with tempfile.NamedTemporaryFile("w", prefix="dataprep-retract-", suffix=".jsonl") as file:
        # Include dropped documents, because a later change of the rules may keep them.
        hashes = dict.fromkeys(row["id"] for row in table.rows(where=where, columns=["id"]) if row["id"] is not None)
        if not hashes:
            raise ConfigError(f"--where matched no document: {where}. Correct the expression")
        file.writelines(json.dumps({"hash": hash_text}) + "\n" for hash_text in hashes)
        file.flush()
        yield Path(file.name)


def _format_trained_lines(component: "Dataset", ids: Path) -> Iterator[str]:
    """Yield lines with the steps at which this project's training runs read the retracted documents."""
    from dataprep_assets.cli.training.training_steps import describe_trained_steps
    from dataprep_assets.curation.id_list import read_ids
    from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration

    if isinstance(component.declaration, CorpusDeclaration):
        yield from describe_trained_steps(component.declaration.dataset, read_ids(ids))


def _describe_affected(component: "Dataset", store: "ArtifactStore", artifact: str) -> Iterator[str]:
    """Yield lines about the artifacts that the run will rebuild: the documents' artifact and its downstream artifacts.

    It reads neither the source nor the artifacts' files. `dataprep status` reads both.
    """
    from dataprep_assets.cli.support.rebuild_table import rebuild_lines
    from dataprep_assets.engine.staleness.downstream import find_affected_artifacts
    from dataprep_assets.engine.staleness.rebuild import plan_rebuild
    from dataprep_assets.planning.cost import Machine

    # Specs are ordered by dependency, so one pass finds all affected artifacts.
    affected: list[ArtifactSpec] = []
    for spec in component.specs:
        if spec.name == artifact or any(source in affected for source in spec.inputs):
            affected.append(spec)
    cores = component.declaration.workers or len(os.sched_getaffinity(0))
    name = component.declaration.dataset
    machine, times = Machine(cores=cores, bandwidth=125e6), project.current_project().step_times()
    rebuild = plan_rebuild(affected, store, machine, times, verification="size")
    yield f"{name}: {count_of(len(rebuild.works), 'artifact')} to build"
    yield ""
    yield from rebuild_lines(rebuild, project.get_privacy())
    names = {work.stale.spec.name for work in rebuild.works if work.stale.spec is not None}
    specs_by_dataset = {
        dependent_dataset.declaration.dataset: dependent_dataset.specs
        for dependent_dataset in project.find_datasets_naming(name)
    }
    for dependent in find_affected_artifacts(name, names, specs_by_dataset):
        yield f"downstream: {dependent.dataset}/{dependent.artifact}, built from {dependent.through}"


def _describe_leftovers(component: "Dataset", store: "ArtifactStore", result: "RetractionResult") -> Iterator[str]:
    """Yield lines about other places that hold the documents: obsolete artifacts, and source files in a mirror."""
    from dataprep_assets.engine.staleness.status import find_retracted_leftovers

    name = component.declaration.dataset
    for artifact in find_retracted_leftovers(component.specs, store):
        yield describe_leftover(name, artifact, store)
    for path in result.copies[:MAX_SHOWN]:
        yield f"the documents remain in the source's mirror: {path}"
    if len(result.copies) > MAX_SHOWN:
        yield f"  and {count_of(len(result.copies) - MAX_SHOWN, 'more file')}"
    if result.copies:
        yield (
            f"remove the documents from these files at the source, run `dataprep run {name}`, and delete the mirrored "
            "files that the run did not replace"
        )


def _describe_copies(component: "Dataset", files: frozenset[str]) -> Iterator[str]:
    """Yield lines about copies that a run of this dataset does not change, such as other datasets' artifacts."""
    from dataprep_assets.engine.staleness.rebuild import find_sharing_artifacts, list_published_places
    from dataprep_assets.sources.hub_store import HUB_DATASETS

    storage = project.open_storage()
    other_datasets = project.load_others(component.declaration.dataset)
    locations = [*list_published_places(component.specs, component.store(storage))]
    # Name the declared repository also without a receipt, because an interrupted run may have published to it.
    if (target := component.declaration.publish) is not None:
        locations.append(f"{HUB_DATASETS}{target.hub}")
    for shared in find_sharing_artifacts(
        files, [(dataset.specs, dataset.store(storage)) for dataset in other_datasets]
    ):
        count = count_of(shared.partitions, shared.noun)
        published = "".join(f", published to {location}" for location in shared.published)
        yield f"unchanged: {shared.dataset}/{shared.artifact}, {count}, built from the same source files{published}"
        locations += shared.published
    for location in dict.fromkeys(locations):
        if location.startswith(HUB_DATASETS):
            yield (
                f"earlier revisions in {location} keep the documents. After the run, delete their tags (`lock-…`), and "
                "squash the history with HfApi.super_squash_history"
            )
            continue
        yield (
            f"shard caches that read {location} keep their current shards. After the run, restart their trainers with "
            "an empty cache folder"
        )
    yield (
        "`dataprep run` does not change copies made with `dataprep sync`, downloads, caches on training machines, or "
        "text samples of earlier checks in Dagster"
    )


def _print_result(dataset: str, result: "RetractionResult", *, is_written: bool) -> None:
    privacy, planned_matches = project.get_privacy(), [match for match in result.held if match.planned]
    project.print_unless_private(
        _format_totals(dataset, result),
        f"{dataset}: {'entries found' if result.found or planned_matches else 'no entries found'}",
    )
    for match in result.held[:MAX_SHOWN]:
        columns = zip(match.counts, _WIDTHS, result.counted, strict=False)
        print(
            f"  {match.partition:<20}"
            + "".join(f"{_format_cell(count, noun, privacy):>{width}}" for count, width, noun in columns)
            + ("" if match.planned else "  obsolete")
        )
    _print_rest(len(result.held), result.partitions)
    project.print_unless_private(_format_consequence_lines(result), f"{dataset}: more results")
    if result.not_found:
        missing = (
            "some entries were" if privacy.closed else count_of(len(result.not_found), "entry was", "entries were")
        )
        rows_text = (
            ". Entries of a file and a row are not added" if any(line.is_row for line in result.not_found) else ""
        )
        print(f"{missing} not found" + (f". {result.kept}{rows_text}" if is_written else ""))
    for missing_line in result.not_found[:MAX_SHOWN]:
        print(f"  line {missing_line.line}" + ("" if missing_line.text is None else f": {missing_line.text}"))
    _print_rest(len(result.not_found), "line")


def _format_totals(dataset: str, result: "RetractionResult") -> Iterator[str]:
    planned_matches = [match for match in result.held if match.planned]
    totals = [sum(match.counts[index] for match in planned_matches) for index in range(len(result.counted))]
    counts_text = ", ".join(count_of(count, noun) for count, noun in zip(totals, result.counted, strict=True))
    yield f"{dataset}: {count_of(result.given, 'entry', 'entries')} read, {result.already} already retracted"
    count = (
        f"found {count_of(result.found, 'entry', 'entries')}"
        if result.found or not planned_matches
        else "kept until the next run"
    )
    yield f"{count}: {counts_text} in {count_of(len(planned_matches), result.partitions)}"


def _format_cell(count: int, noun: str, privacy: "Privacy") -> str:
    return f"{privacy.public_count(count)} {noun}s" if privacy.closed else count_of(count, noun)


def _format_consequence_lines(result: "RetractionResult") -> Iterator[str]:
    if result.left_out:
        total = count_of(sum(result.left_out.values()), "entry", "entries")
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in result.left_out.items())
        yield f"not in any finished {result.partitions}: {total} ({reasons})"
    if result.change is not None:
        singular = "document that was dropped as a duplicate of these documents returns"
        plural = "documents that were dropped as duplicates of these documents return"
        yield count_of(result.change.back, singular, plural)
        if result.change.gone:
            singular, plural = "other document is dropped as a duplicate", "other documents are dropped as duplicates"
            yield f"{count_of(result.change.gone, singular, plural)} instead"


def _print_rest(count: int, noun: str) -> None:
    if count > MAX_SHOWN:
        print(f"  and {count_of(count - MAX_SHOWN, f'more {noun}')}")
