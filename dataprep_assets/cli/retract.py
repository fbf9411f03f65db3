"""`dataprep retract`: put documents on a dataset's retraction list, and say what the next run will rebuild."""

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
            help="One a line, plain or as JSON: an id, a hash of the index (16 hex digits) or file:row; of notes the "
            "id of a patient.",
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION",
            help="Instead of --ids: the documents of which this is true, kept or not, by the table of documents.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="If something is not found, write nothing and exit with code 1.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing; show the same lines, and exit with the same code.")
    ] = False,
) -> int:
    """Put documents, or patients of notes, on a dataset's retraction list, and show what will be rebuilt."""
    declared = project.component(dataset)
    store = declared.store(project.storage())
    if (ids is None) == (where is None):
        raise ConfigError("give --ids FILE or --where EXPRESSION")
    rehearsed = _rehearsed(declared) if dry_run else nullcontext(declared)
    with rehearsed as component, _list_ids(component, store, ids, where) as given:
        return _retract(declared, component, store, given, strict=strict)


def _retract(declared: "Dataset", component: "Dataset", store: "ArtifactStore", given: Path, *, strict: bool) -> int:
    """Retract of a dataset as it is `declared`, or of a `component` with a copy of its list."""
    dataset, is_rehearsed = declared.declaration.dataset, component is not declared
    retracted = component.retract(store, given, strict=strict)
    trained = [] if strict and retracted.not_found else list(_trained(component, given))
    _tell(dataset, retracted)
    listing = getattr(declared.declaration, "retractions", retracted.list)
    if strict and retracted.not_found:
        print(f"--strict: nothing {'would be' if is_rehearsed else 'was'} written to {listing}")
        return 1
    added = "these lines" if project.privacy().closed else str(retracted.added)
    if is_rehearsed:
        print(f"--dry-run: {added} would be added to {listing}; nothing was written", flush=True)
    else:
        print(f"{added} added to {listing}; nothing is rebuilt yet: `dataprep run {dataset}` does that", flush=True)
    if retracted.found or retracted.held:
        print()
        for line in _radius(component, store, retracted.artifact):
            print(line)
    for line in _describe_leftovers(component, store, retracted):
        print(line)
    if retracted.found or retracted.held:
        for line in _beyond(component, retracted.files):
            print(line)
    for line in trained:
        print(line)
    return 0


@contextmanager
def _rehearsed(component: "Dataset") -> "Iterator[Dataset]":
    """The dataset with a copy of its retraction list, which is forgotten afterwards."""
    listing: Path | None = getattr(component.declaration, "retractions", None)
    with tempfile.TemporaryDirectory(prefix="dataprep-retract-") as folder:
        copy = Path(folder) / "retracted.jsonl"
        if listing is not None and listing.exists():
            copy.write_bytes(listing.read_bytes())
        # a kind without a list refuses, and says why
        yield component if listing is None else component.with_list(copy)


@contextmanager
def _list_ids(component: "Dataset", store: "ArtifactStore", ids: Path | None, where: str | None) -> Iterator[Path]:
    """The list of ids; of an expression one of the hashes of the documents that it is true of."""
    if ids is not None:
        yield ids
        return
    asked = component.documents(store)
    if "id" not in asked.columns:
        raise ConfigError("--where: the documents of this dataset have no ids. Declare `document.id_key`, and run it")
    with tempfile.NamedTemporaryFile("w", prefix="dataprep-retract-", suffix=".jsonl") as file:
        # dropped ones, too: a rule that drops them today may keep them tomorrow
        hashes = dict.fromkeys(row["id"] for row in asked.rows(where=where, columns=["id"]) if row["id"] is not None)
        if not hashes:
            raise ConfigError(f"--where: it is true of no document: {where}")
        file.writelines(json.dumps({"hash": one}) + "\n" for one in hashes)
        file.flush()
        yield Path(file.name)


def _trained(component: "Dataset", ids: Path) -> Iterator[str]:
    """At which steps training runs of this project read, or will read, what is retracted of a corpus or a release."""
    from dataprep_assets.cli.training.training_steps import trained_lines
    from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
    from dataprep_assets.pipelines.corpus.retract import read_ids

    if isinstance(component.declaration, CorpusDeclaration):
        yield from trained_lines(component.declaration.dataset, read_ids(ids))


def _radius(component: "Dataset", store: "ArtifactStore", artifact: str) -> Iterator[str]:
    """What the run will rebuild: of the artifact that holds the documents, and of what is made of it.

    The source and the files of artifacts are not read for it: `dataprep status` does that.
    """
    from dataprep_assets.cli.support.rebuild_table import rebuild_lines
    from dataprep_assets.engine.staleness.downstream import reached
    from dataprep_assets.engine.staleness.rebuild import rebuild_of
    from dataprep_assets.planning.cost import Machine

    # inputs stand before what is made of them, so one pass finds all
    affected: list[ArtifactSpec] = []
    for spec in component.specs:
        if spec.name == artifact or any(source in affected for source in spec.inputs):
            affected.append(spec)
    cores = component.declaration.workers or len(os.sched_getaffinity(0))
    rebuild = rebuild_of(affected, store, Machine(cores=cores, bandwidth=125e6), verification="size")
    name = component.declaration.dataset
    yield f"{name}: {len(rebuild.works)} to build"
    yield ""
    yield from rebuild_lines(rebuild, project.privacy())
    names = {work.stale.spec.name for work in rebuild.works if work.stale.spec is not None}
    others = {other.declaration.dataset: other.specs for other in project.naming(name)}
    for dependent in reached(name, names, others):
        yield f"reaches: {dependent.dataset}/{dependent.artifact}, which is made of {dependent.through}"


def _describe_leftovers(component: "Dataset", store: "ArtifactStore", retracted: "Retracted") -> Iterator[str]:
    """What else holds them here: artifacts in no plan, and the copies that a mirror keeps of the source's files."""
    from dataprep_assets.engine.staleness.status import retracted_left

    name = component.declaration.dataset
    for artifact in retracted_left(component.specs, store):
        yield left_line(name, artifact, store)
    for path in retracted.copies[:MOST_SHOWN]:
        yield f"kept by the mirror of the source, and not changed: {path}"
    if len(retracted.copies) > MOST_SHOWN:
        yield f"  and {len(retracted.copies) - MOST_SHOWN} more"
    if retracted.copies:
        yield (
            "the source still has these files, or once had them: take the documents out there, run again, and then "
            "delete the copies that the run did not renew"
        )


def _beyond(component: "Dataset", files: frozenset[str]) -> Iterator[str]:
    """What a `dataprep run` of this dataset leaves unchanged: other datasets made of the same files, and copies."""
    from dataprep_assets.engine.staleness.rebuild import published_places, sharing

    storage = project.storage()
    others = project.load_others(component.declaration.dataset)
    places = [*published_places(component.specs, component.store(storage))]
    for shared in sharing(files, [(other.specs, other.store(storage)) for other in others]):
        held = count_of(shared.partitions, shared.noun)
        published = "".join(f", published to {place}" for place in shared.published)
        yield f"made of the same source files, and not changed: {shared.dataset}/{shared.artifact}, {held}{published}"
        places += shared.published
    for place in dict.fromkeys(places):
        yield (
            f"windows over {place} keep the shards that they have: after the run start these trainers again, with an "
            "empty cache folder"
        )
    yield (
        "not reached from here: copies made with `dataprep sync`, downloads, caches of trainers and of other machines, "
        "and the samples of text that checks of earlier runs show in Dagster"
    )


def _tell(dataset: str, retracted: "Retracted") -> None:
    privacy, planned = project.privacy(), [held for held in retracted.held if held.planned]
    project.tell(
        _totals(dataset, retracted), f"{dataset}: {'found' if retracted.found or planned else 'found nothing'}"
    )
    for held in retracted.held[:MOST_SHOWN]:
        columns = zip(held.counts, _WIDTHS, retracted.counted, strict=False)
        print(
            f"  {held.partition:<20}"
            + "".join(f"{_cell(count, noun, privacy):>{width}}" for count, width, noun in columns)
            + ("" if held.planned else "  in no plan any more")
        )
    _more(len(retracted.held))
    project.tell(_consequences(retracted), f"{dataset}: other documents are affected")
    if retracted.not_found:
        print(("not found; " if privacy.closed else f"not found {len(retracted.not_found)}; ") + retracted.kept)
    for missing_line in retracted.not_found[:MOST_SHOWN]:
        print(f"  line {missing_line.line}" + ("" if missing_line.text is None else f": {missing_line.text}"))
    _more(len(retracted.not_found))


def _totals(dataset: str, found: "Retracted") -> Iterator[str]:
    planned = [held for held in found.held if held.planned]
    totals = [sum(held.counts[at] for held in planned) for at in range(len(found.counted))]
    told = ", ".join(count_of(count, noun) for count, noun in zip(totals, found.counted, strict=True))
    yield f"{dataset}: {found.given} given, {found.already} retracted already"
    count = f"found {found.found}" if found.found or not planned else "still there until the next run"
    yield f"{count}: {told} in {count_of(len(planned), found.partitions)}"


def _cell(count: int, noun: str, privacy: "Privacy") -> str:
    return f"{privacy.count(count)} {noun}s" if privacy.closed else count_of(count, noun)


def _consequences(retracted: "Retracted") -> Iterator[str]:
    if retracted.left_out:
        total = count_of(sum(retracted.left_out.values()), "row")
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in retracted.left_out.items())
        yield f"in no {retracted.partitions} now: {total} ({reasons})"
    if retracted.change is not None:
        documents = count_of(retracted.change.back, "document")
        yield f"{documents} for which they stand as duplicates {'comes' if retracted.change.back == 1 else 'come'} back"
        if retracted.change.gone:
            documents = count_of(retracted.change.gone, "document")
            yield f"{documents} {'goes' if retracted.change.gone == 1 else 'go'} as duplicates instead"


def _more(count: int) -> None:
    if count > MOST_SHOWN:
        print(f"  and {count - MOST_SHOWN} more")
