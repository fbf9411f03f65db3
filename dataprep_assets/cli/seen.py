"""`dataprep seen`: which documents a step of a training run read, and which steps read a document."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataprep_assets.cli import project
from dataprep_assets.cli.arguments import AsJson, Name
from dataprep_assets.errors import ConfigError, MissingArtifactError, NotFoundError

if TYPE_CHECKING:
    from dataprep_assets.graph.dataset import Dataset
    from dataprep_assets.serving.seen import KeptDocument, Ledger, SeenDocument

_MOST = 20


def command(
    dataset: Name,
    step: Annotated[int | None, typer.Option(metavar="N", help="The documents that this step reads.")] = None,
    rank: Annotated[int, typer.Option(metavar="R", help="With --step: what this rank reads, of --world.")] = 0,
    world: Annotated[int, typer.Option(metavar="W", help="With --rank: the number of ranks.")] = 1,
    document: Annotated[
        str | None, typer.Option(metavar="FILE:ROW", help="The steps that read this row of a source file.")
    ] = None,
    id_: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The steps that read this id, or hash of 16 hex digits.")
    ] = None,
    until: Annotated[
        int | None, typer.Option(metavar="N", help="Only steps before N; alone: the tokens of each source until then.")
    ] = None,
    json_: AsJson = False,
) -> int:
    """Say which documents a step of a training run reads, and which steps read a document."""
    from dataprep_assets.serving.seen import documents_of_step
    from dataprep_assets.serving.simulation import simulated, told_lines

    asked = [name for name, value in (("--step", step), ("--document", document), ("--id", id_)) if value is not None]
    if len(asked) > 1 or (not asked and until is None):
        raise ConfigError("seen: give one of --step, --document and --id, or --until alone")
    if (rank, world) != (0, 1) and step is None:
        raise ConfigError("seen: --rank and --world belong to --step")
    component = project.component(dataset)
    if component.component != "TrainingSchedule":
        raise ConfigError(f"{dataset} is a {component.component}, which has no steps; name a TrainingSchedule")
    if (ledger := ledger_of(component)) is None:
        raise MissingArtifactError(f"{dataset}: there is no schedule yet: dataprep run {dataset}")
    if not asked:
        assert until is not None
        if json_:
            print(json.dumps([vars(one) for one in simulated(ledger.data.sampler, until)]))
        else:
            print("\n".join(map(project.shown, told_lines(ledger.data.sampler, until))))
        return 0
    if step is not None:
        for seen in documents_of_step(ledger, step, rank=rank, world_size=world):
            print(json.dumps(seen.to_json(), ensure_ascii=False) if json_ else _line(seen))
        return 0
    for line in _steps(ledger, _documents(ledger, document, id_), until, json_):
        print(line)
    return 0


def ledger_of(schedule: "Dataset") -> "Ledger | None":
    """The ledger of a schedule; None if it has not been made."""
    from dataprep_assets.serving.seen import Ledger
    from dataprep_assets.serving.training_data import TrainingData

    store = schedule.store(project.storage())
    if store.receipt(schedule.product(store)) is None:
        return None
    return Ledger(TrainingData(store, schedule.declaration.dataset))


def read_of(ledger: "Ledger", given: str, dataset: str) -> list[int]:
    """The steps that read a document of a dataset, given as `file:row`, an id or a hash; empty if none does."""
    from dataprep_assets.serving.seen import steps_of_document

    file, _, row = given.rpartition(":")
    try:
        found = _documents(ledger, given if file and row.isdigit() else None, given)
    except NotFoundError:
        return []
    return sorted({one.step for kept in found if kept.dataset == dataset for one in steps_of_document(ledger, kept)})


def _keys(ledger: "Ledger") -> "set[bytes | None]":
    """The keys under which the sources hash their ids."""
    from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration

    found: set[bytes | None] = {None}
    for name in {name for name, _ in ledger.shards.values()} & project.declarations().files.keys():
        declared = project.component(name).declaration
        if isinstance(declared, CorpusDeclaration) and (ids := declared.document.ids(sensitive=declared.sensitive)):
            found.add(ids.key)
    return found


def _line(seen: "SeenDocument") -> str:
    named = "" if seen.id is None else f", id {seen.id}"
    where = f"{seen.source}/{seen.shard} document {seen.document}, epoch {seen.epoch}{named}"
    return f"{seen.position:>6}  {seen.file}:{seen.row}  {seen.tokens} tokens, {where}"


def _documents(ledger: "Ledger", document: str | None, id_: str | None) -> "list[KeptDocument]":
    import numpy as np

    from dataprep_assets.serving.seen import find_documents
    from dataprep_assets.tokenization.document_ids import hash_id

    if document is not None:
        file, _, row = document.rpartition(":")
        if not file or not row.isdigit():
            raise ConfigError(f"seen: --document {document}: give FILE:ROW, as `dataprep trace` prints it")
        return find_documents(ledger, file=file, row=int(row))
    assert id_ is not None
    hashes = [hash_id(id_, key) for key in _keys(ledger)]
    if len(id_) == 16 and all(digit in "0123456789abcdef" for digit in id_):
        hashes.append(int(id_, 16))
    return find_documents(ledger, hashes=np.array(sorted(hashes), np.uint64))


def _steps(ledger: "Ledger", found: "list[KeptDocument]", until: int | None, json_: bool) -> Iterator[str]:
    from dataprep_assets.serving.seen import steps_of_document, taken_back

    for one in found:
        readings = steps_of_document(ledger, one, until=until)
        back = taken_back(ledger, one)
        value: dict[str, Any] = {
            "dataset": one.dataset,
            "shard": one.shard.name,
            "content": one.shard.content,
            "document": one.document,
            "file": one.file,
            "row": one.row,
            "tokens": one.stop - one.start,
            "read": [{**vars(reading), "tokens": reading.stop - reading.start} for reading in readings],
            "taken_back": [{"revision": reign.revision, **vars(reading)} for reign, reading in back],
        }
        if json_:
            yield json.dumps(value, ensure_ascii=False)
            continue
        where = f"{one.dataset}/{one.shard.name} document {one.document}"
        yield f"{one.file}:{one.row}: {one.stop - one.start} tokens, {where}"
        for reading in readings[:_MOST]:
            yield (
                f"  step {reading.step}, sample {reading.position}: {reading.stop - reading.start} tokens, "
                f"{reading.source} epoch {reading.epoch}"
            )
        if len(readings) > _MOST:
            yield f"  and {len(readings) - _MOST} times more, the last at step {readings[-1].step}"
        if not readings:
            yield "  is read at no step" + ("" if until is None else f" before {until}")
        for reign, reading in back[:_MOST]:
            yield f"  taken back: step {reading.step} of revision {reign.revision}"
