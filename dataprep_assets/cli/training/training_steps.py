"""The steps at which a project's training runs read documents, for `trace`, `retract` and `seen`."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dataprep_assets.cli.support import project
from dataprep_assets.errors import ConfigError, count_of

if TYPE_CHECKING:
    from dataprep_assets.engine.artifact.dataset import Dataset
    from dataprep_assets.pipelines.corpus.retract import IdLine
    from dataprep_assets.serving.sampler.seen import KeptDocument, SeenLedger

_MOST = 20


def ledger_of(schedule: "Dataset") -> "SeenLedger | None":
    """Return the ledger of a schedule; None if the schedule is not built."""
    from dataprep_assets.serving.sampler.seen import SeenLedger
    from dataprep_assets.serving.sampler.training_data import TrainingData

    store = schedule.store(project.storage())
    if store.receipt(schedule.product(store)) is None:
        return None
    return SeenLedger(TrainingData(store, schedule.declaration.dataset))


def runs_of(dataset: str) -> "Iterator[tuple[str, SeenLedger]]":
    """Yield the training runs of the project that read a dataset, each with its ledger."""
    from dataprep_assets.engine.artifact.spec import DatasetInput

    for name, path in sorted(project.declarations().files.items()):
        # search the text first, so that no other declaration is loaded
        if "TrainingSchedule" not in path.read_text(encoding="utf-8", errors="replace"):
            continue
        try:
            dataset_component = project.load_dataset(name)
        except ConfigError:  # commands on this dataset report the error
            continue
        inputs = [
            source for spec in dataset_component.specs for source in spec.inputs if isinstance(source, DatasetInput)
        ]
        sources = {source.dataset for source in inputs}
        if dataset in sources and (ledger := ledger_of(project.take(dataset_component))) is not None:
            yield name, ledger


def keys_of(ledger: "SeenLedger") -> "set[bytes | None]":
    """Return the keys that the sources use to hash their document ids."""
    from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration

    # ids of datasets that are not sensitive are hashed without a key
    keys: set[bytes | None] = {None}
    for name in {name for name, _ in ledger.shards.values()} & project.declarations().files.keys():
        declaration = project.component(name).declaration
        if isinstance(declaration, CorpusDeclaration) and (
            ids := declaration.document.ids(sensitive=declaration.sensitive)
        ):
            keys.add(ids.key)
    return keys


def listed_documents(ledger: "SeenLedger", given: "Sequence[IdLine]", dataset: str) -> "dict[int, list[KeptDocument]]":
    """Return the documents of a dataset that a list of ids selects, by line of the list.

    A line selects all documents with the same id.
    """
    from dataprep_assets.serving.sampler.seen import find_documents
    from dataprep_assets.tokenization.document_ids import hash_id

    lines: dict[int, set[int]] = {}
    line_of: dict[tuple[str, int], int] = {}
    keys = keys_of(ledger)
    for id_line in given:
        if id_line.file is not None:
            line_of[id_line.file, id_line.row] = id_line.line
            continue
        hashes = (
            [int(id_line.hash, 16)] if id_line.hash is not None else [hash_id(id_line.id or "", key) for key in keys]
        )
        for hashed in hashes:
            lines.setdefault(hashed, set()).add(id_line.line)
    rows: dict[str, set[int]] = {}
    for file, row in line_of:
        rows.setdefault(file, set()).add(row)
    documents: dict[int, list[KeptDocument]] = {}
    for document in find_documents(ledger, rows=rows, dataset=dataset) if rows else ():
        if (line := line_of.get((document.file, document.row))) is not None:
            # a row selects all documents that have the same id as the row's document
            if document.hash is None:
                documents.setdefault(line, []).append(document)
            else:
                lines.setdefault(document.hash, set()).add(line)
    for document in find_documents(ledger, hashes=lines, dataset=dataset):
        for line in lines.get(document.hash if document.hash is not None else -1, ()):
            documents.setdefault(line, []).append(document)
    return documents


def steps_of(ledger: "SeenLedger", documents: "Sequence[KeptDocument]") -> list[int]:
    """Return the steps that read any of these documents, except withdrawn steps."""
    from dataprep_assets.serving.sampler.seen import steps_of_document

    return sorted({reading.step for document in documents for reading in steps_of_document(ledger, document)})


def format_steps(steps: Sequence[int]) -> str:
    """Format steps for a message, with a limited number of step numbers."""
    first_steps = ", ".join(map(str, steps[:_MOST]))
    rest_text = f" and {len(steps) - _MOST} more, the last is {steps[-1]}" if len(steps) > _MOST else ""
    return f"step{'s' if len(steps) > 1 else ''} {first_steps}{rest_text}"


def trained_lines(dataset: str, given: "Sequence[IdLine]") -> Iterator[str]:
    """Yield lines with the steps at which training runs have read, or will read, the documents of a list."""
    for name, ledger in runs_of(dataset):
        documents = listed_documents(ledger, given, dataset)
        read = {
            line: steps
            for line, line_documents in sorted(documents.items())
            if (steps := steps_of(ledger, line_documents))
        }
        if not read:
            yield f"{name} reads none of these documents"
            continue
        all_steps = sorted({step for steps in read.values() for step in steps})
        # for private data omit the counts of documents; steps are only positions
        counts = f": {len(read)} of {count_of(len(given), 'line')}"
        summary = format_steps(all_steps) + ("" if project.privacy().closed else counts)
        yield f"{name} has read it, or will read it, at {summary}"
        if len(given) > 1:
            for line, steps in list(read.items())[:_MOST]:
                yield f"  line {line}: {format_steps(steps)}"
            if len(read) > _MOST:
                yield f"  and {len(read) - _MOST} more: `dataprep seen {name} --id ID`"
