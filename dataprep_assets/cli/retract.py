"""`dataprep retract`: add documents to a dataset's retraction list, and show what the next run will rebuild."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli.status import left_line
from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import Name
from dataprep_assets.errors import ConfigError, count_of

if TYPE_CHECKING:
    from dataprep_assets.engine.artifact.dataset import Dataset
    from dataprep_assets.engine.artifact.spec import ArtifactSpec
    from dataprep_assets.engine.privacy import Privacy
    from dataprep_assets.engine.trace.retraction import Retracted
    from dataprep_assets.integrity.artifacts import ArtifactStore

MOST_SHOWN = 20
_WIDTHS = (20, 22)
"""Widths of the two columns of counts, in characters."""


def command(
    dataset: Name,
    ids: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with one entry per line (text or JSON): a document id, an index hash (16 hex digits) or "
            "FILE:ROW; for notes, a patient id.",
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION",
            help="Instead of --ids: all documents, kept or dropped, that match this expression.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="If an entry is not found, write nothing and exit with code 1.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing, but print the same lines and exit with the same code.")
    ] = False,
) -> int:
    """Add documents, or patients of notes, to a dataset's retraction list, and show what will be rebuilt."""
    declared_dataset = project.component(dataset)
    store = declared_dataset.store(project.storage())
    if (ids is None) == (where is None):
        raise ConfigError("pass either --ids FILE or --where EXPRESSION")
    rehearsed = _rehearsed(declared_dataset) if dry_run else nullcontext(declared_dataset)
    with rehearsed as component, _list_ids(component, store, ids, where) as id_list:
        return _retract(declared_dataset, component, store, id_list, strict=strict)


def _retract(declared: "Dataset", component: "Dataset", store: "ArtifactStore", given: Path, *, strict: bool) -> int:
    """Retract documents from a dataset as it is `declared`, or from a `component` with a copy of its list."""
    dataset, is_rehearsed = declared.declaration.dataset, component is not declared
    retracted = component.retract(store, given, strict=strict)
    training_lines = [] if strict and retracted.not_found else list(_trained_lines(component, given))
    _tell(dataset, retracted)
    listing = getattr(declared.declaration, "retractions", retracted.list)
    if strict and retracted.not_found:
        print(f"--strict: nothing {'would be' if is_rehearsed else 'was'} written to {listing}")
        return 1
    added = "these lines" if project.privacy().closed else str(retracted.added)
    if is_rehearsed:
        print(f"Dry run: {added} would be added to {listing}", flush=True)
    else:
        print(f"{added} added to {listing}. Run `dataprep run {dataset}` to rebuild the affected artifacts", flush=True)
    if retracted.found or retracted.held:
        print()
        for line in _radius(component, store, retracted.artifact):
            print(line)
    for line in _describe_leftovers(component, store, retracted):
        print(line)
    if retracted.found or retracted.held:
        for line in _copy_lines(component, retracted.files):
            print(line)
    for line in training_lines:
        print(line)
    return 0


@contextmanager
def _rehearsed(component: "Dataset") -> "Iterator[Dataset]":
    """Yield the dataset with a temporary copy of its retraction list."""
    listing: Path | None = getattr(component.declaration, "retractions", None)
    with tempfile.TemporaryDirectory(prefix="dataprep-retract-") as folder:
        copy = Path(folder) / "retracted.jsonl"
        if listing is not None and listing.exists():
            copy.write_bytes(listing.read_bytes())
        # a dataset kind without a list raises an error that gives the reason
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
            "--where: the documents of this dataset have no ids. Set `document.id_key`, and run the dataset"
        )
    with tempfile.NamedTemporaryFile("w", prefix="dataprep-retract-", suffix=".jsonl") as file:
        # also dropped documents, because a changed rule may keep them later
        hashes = dict.fromkeys(row["id"] for row in table.rows(where=where, columns=["id"]) if row["id"] is not None)
        if not hashes:
            raise ConfigError(f"--where matched no document: {where}")
        file.writelines(json.dumps({"hash": hash_text}) + "\n" for hash_text in hashes)
        file.flush()
        yield Path(file.name)


def _trained_lines(component: "Dataset", ids: Path) -> Iterator[str]:
    """Yield lines with the steps at which this project's training runs read the retracted documents."""
    from dataprep_assets.cli.training.training_steps import trained_lines
    from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
    from dataprep_assets.pipelines.corpus.retract import read_ids

    if isinstance(component.declaration, CorpusDeclaration):
        yield from trained_lines(component.declaration.dataset, read_ids(ids))


def _radius(component: "Dataset", store: "ArtifactStore", artifact: str) -> Iterator[str]:
    """Yield lines about the artifacts that the run will rebuild: the documents' artifact and its downstream artifacts.

    Reads neither the source nor the files of artifacts; `dataprep status` does.
    """
    from dataprep_assets.cli.support.rebuild_table import rebuild_lines
    from dataprep_assets.engine.staleness.downstream import reached
    from dataprep_assets.engine.staleness.rebuild import rebuild_of
    from dataprep_assets.planning.cost import Machine

    # inputs come before their downstream artifacts, so one pass finds all
    affected: list[ArtifactSpec] = []
    for spec in component.specs:
        if spec.name == artifact or any(source in affected for source in spec.inputs):
            affected.append(spec)
    cores = component.declaration.workers or len(os.sched_getaffinity(0))
    name = component.declaration.dataset
    machine, times = Machine(cores=cores, bandwidth=125e6), project.current_project().step_times()
    rebuild = rebuild_of(affected, store, machine, times, verification="size")
    yield f"{name}: {len(rebuild.works)} to build"
    yield ""
    yield from rebuild_lines(rebuild, project.privacy())
    names = {work.stale.spec.name for work in rebuild.works if work.stale.spec is not None}
    specs_by_dataset = {
        dependent_dataset.declaration.dataset: dependent_dataset.specs
        for dependent_dataset in project.datasets_naming(name)
    }
    for dependent in reached(name, names, specs_by_dataset):
        yield f"downstream: {dependent.dataset}/{dependent.artifact}, built from {dependent.through}"


def _describe_leftovers(component: "Dataset", store: "ArtifactStore", retracted: "Retracted") -> Iterator[str]:
    """Yield lines about other places that hold the documents: obsolete artifacts, and source files in a mirror."""
    from dataprep_assets.engine.staleness.status import retracted_left

    name = component.declaration.dataset
    for artifact in retracted_left(component.specs, store):
        yield left_line(name, artifact, store)
    for path in retracted.copies[:MOST_SHOWN]:
        yield f"unchanged, in the source's mirror: {path}"
    if len(retracted.copies) > MOST_SHOWN:
        yield f"  and {len(retracted.copies) - MOST_SHOWN} more"
    if retracted.copies:
        yield (
            "remove the documents from these files at the source, run again, and delete the mirrored files that the "
            "run did not replace"
        )


def _copy_lines(component: "Dataset", files: frozenset[str]) -> Iterator[str]:
    """Yield lines about copies that a run of this dataset does not change, such as other datasets' artifacts."""
    from dataprep_assets.engine.staleness.rebuild import published_places, sharing

    storage = project.storage()
    other_datasets = project.load_others(component.declaration.dataset)
    locations = [*published_places(component.specs, component.store(storage))]
    for shared in sharing(files, [(dataset.specs, dataset.store(storage)) for dataset in other_datasets]):
        count = count_of(shared.partitions, shared.noun)
        published = "".join(f", published to {location}" for location in shared.published)
        yield f"unchanged, built from the same source files: {shared.dataset}/{shared.artifact}, {count}{published}"
        locations += shared.published
    for location in dict.fromkeys(locations):
        yield (
            f"shard caches of {location} keep their current shards. After the run, restart these trainers with an "
            "empty cache folder"
        )
    yield (
        "not covered: copies made with `dataprep sync`, downloads, caches on training machines, and text samples "
        "that earlier checks show in Dagster"
    )


def _tell(dataset: str, retracted: "Retracted") -> None:
    privacy, planned_matches = project.privacy(), [match for match in retracted.held if match.planned]
    project.tell(
        _totals(dataset, retracted), f"{dataset}: {'found' if retracted.found or planned_matches else 'found nothing'}"
    )
    for match in retracted.held[:MOST_SHOWN]:
        columns = zip(match.counts, _WIDTHS, retracted.counted, strict=False)
        print(
            f"  {match.partition:<20}"
            + "".join(f"{_cell(count, noun, privacy):>{width}}" for count, width, noun in columns)
            + ("" if match.planned else "  no longer needed")
        )
    _print_rest(len(retracted.held))
    project.tell(_consequence_lines(retracted), f"{dataset}: other documents are affected")
    if retracted.not_found:
        print(("not found; " if privacy.closed else f"not found {len(retracted.not_found)}; ") + retracted.kept)
    for missing_line in retracted.not_found[:MOST_SHOWN]:
        print(f"  line {missing_line.line}" + ("" if missing_line.text is None else f": {missing_line.text}"))
    _print_rest(len(retracted.not_found))


def _totals(dataset: str, found: "Retracted") -> Iterator[str]:
    planned_matches = [match for match in found.held if match.planned]
    totals = [sum(match.counts[index] for match in planned_matches) for index in range(len(found.counted))]
    counts_text = ", ".join(count_of(count, noun) for count, noun in zip(totals, found.counted, strict=True))
    yield f"{dataset}: {found.given} entries read, {found.already} already retracted"
    count = f"found {found.found}" if found.found or not planned_matches else "still there until the next run"
    yield f"{count}: {counts_text} in {count_of(len(planned_matches), found.partitions)}"


def _cell(count: int, noun: str, privacy: "Privacy") -> str:
    return f"{privacy.count(count)} {noun}s" if privacy.closed else count_of(count, noun)


def _consequence_lines(retracted: "Retracted") -> Iterator[str]:
    if retracted.left_out:
        total = count_of(sum(retracted.left_out.values()), "row")
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in retracted.left_out.items())
        yield f"currently in no {retracted.partitions}: {total} ({reasons})"
    if retracted.change is not None:
        documents = count_of(retracted.change.back, "document")
        yield f"{documents} dropped as their duplicates {'returns' if retracted.change.back == 1 else 'return'}"
        if retracted.change.gone:
            documents = count_of(retracted.change.gone, "document")
            yield f"{documents} {'is' if retracted.change.gone == 1 else 'are'} dropped as duplicates instead"


def _print_rest(count: int) -> None:
    if count > MOST_SHOWN:
        print(f"  and {count - MOST_SHOWN} more")
