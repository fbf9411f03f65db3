"""The steps at which a project's training runs read documents, for `trace`, `retract` and `seen`."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dataprep_assets.cli.support import project
from dataprep_assets.errors import ConfigError, count_of

if TYPE_CHECKING:
    from dataprep_assets.curation.id_list import IdLine
    from dataprep_assets.engine.artifact.dataset import Dataset
    from dataprep_assets.serving.sampler.seen import KeptDocument, SeenLedger

_MAX_ROWS = 20


def open_ledger(schedule: "Dataset") -> "SeenLedger | None":
    """Return the ledger of a schedule; None if the schedule is not built."""
    from dataprep_assets.serving.sampler.seen import SeenLedger
    from dataprep_assets.serving.sampler.training_data import TrainingData

    store = schedule.store(project.open_storage())
    if store.receipt(schedule.product(store)) is None:
        return None
    return SeenLedger(TrainingData(store, schedule.declaration.dataset))


def find_training_runs(dataset: str) -> "Iterator[tuple[str, SeenLedger]]":
    """Yield the training runs of the project that read a dataset, each with its ledger."""
    from dataprep_assets.engine.artifact.spec import DatasetInput

    for name, path in sorted(project.load_declarations().files.items()):
        # Search the text of the declaration first, because loading every declaration would be slow.
        if "TrainingSchedule" not in path.read_text(encoding="utf-8", errors="replace"):
            continue
        try:
            dataset_component = project.load_dataset(name)
        except ConfigError:  # commands on that dataset report the error
            continue
        inputs = [
            source for spec in dataset_component.specs for source in spec.inputs if isinstance(source, DatasetInput)
        ]
        sources = {source.dataset for source in inputs}
        if dataset in sources and (ledger := open_ledger(project.apply_privacy(dataset_component))) is not None:
            yield name, ledger


def read_id_keys(ledger: "SeenLedger") -> "set[bytes | None]":
    """Return the keys that the sources use to hash their document ids."""
    from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration

    # Include None, because a dataset may declare no `id_key`. Its ids are then hashed without a key.
    keys: set[bytes | None] = {None}
    for name in {name for name, _ in ledger.shards.values()} & project.load_declarations().files.keys():
        declaration = project.use_dataset(name).declaration
        if isinstance(declaration, CorpusDeclaration) and (
            ids := declaration.document.ids(sensitive=declaration.sensitive)
        ):
            keys.add(ids.key)
    return keys


def find_listed_documents(
    ledger: "SeenLedger", id_lines: "Sequence[IdLine]", dataset: str
) -> "dict[int, list[KeptDocument]]":
    """Return the documents of a dataset that a list of ids selects, by line of the list.

    A line selects all documents with the same id.
    """
    from dataprep_assets.serving.sampler.seen import find_documents
    from dataprep_assets.tokenization.document_ids import hash_id

    lines: dict[int, set[int]] = {}
    line_of: dict[tuple[str, int], int] = {}
    keys = read_id_keys(ledger)
    for id_line in id_lines:
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
            # A line that names a row selects all documents with the same id as this row's document, so look up that id
            # below.
            if document.hash is None:
                documents.setdefault(line, []).append(document)
            else:
                lines.setdefault(document.hash, set()).add(line)
    for document in find_documents(ledger, hashes=lines, dataset=dataset):
        for line in lines.get(document.hash if document.hash is not None else -1, ()):
            documents.setdefault(line, []).append(document)
    return documents


def find_steps(ledger: "SeenLedger", documents: "Sequence[KeptDocument]") -> list[int]:
    """Return the steps that read any of these documents, except withdrawn steps."""
    from dataprep_assets.serving.sampler.seen import steps_of_document

    return sorted({reading.step for document in documents for reading in steps_of_document(ledger, document)})


def format_steps(steps: Sequence[int]) -> str:
    """Format steps for a message; if there are many, list only the first and the last."""
    first_steps = ", ".join(map(str, steps[:_MAX_ROWS]))
    rest_text = f" and {len(steps) - _MAX_ROWS} more, up to {steps[-1]}" if len(steps) > _MAX_ROWS else ""
    return f"step{'s' if len(steps) > 1 else ''} {first_steps}{rest_text}"


def describe_trained_steps(dataset: str, id_lines: "Sequence[IdLine]") -> Iterator[str]:
    """Yield lines with the steps at which training runs have read, or will read, the documents of a list."""
    for name, ledger in find_training_runs(dataset):
        documents = find_listed_documents(ledger, id_lines, dataset)
        steps_by_dataset = {
            line: steps
            for line, line_documents in sorted(documents.items())
            if (steps := find_steps(ledger, line_documents))
        }
        if not steps_by_dataset:
            yield f"{name} reads none of these documents"
            continue
        all_steps = sorted({step for steps in steps_by_dataset.values() for step in steps})
        # Omit the counts if the data is private, because they show how many of the listed documents were trained on.
        # Show the steps, because they are only positions in the training run.
        counts = f" ({len(steps_by_dataset):,} of {count_of(len(id_lines), 'line')} of the list)"
        summary = format_steps(all_steps) + ("" if project.get_privacy().closed else counts)
        yield f"{name} reads these documents at {summary}"
        if len(id_lines) > 1:
            for line, steps in list(steps_by_dataset.items())[:_MAX_ROWS]:
                yield f"  line {line}: {format_steps(steps)}"
            if len(steps_by_dataset) > _MAX_ROWS:
                hidden_lines = count_of(len(steps_by_dataset) - _MAX_ROWS, "more line")
                yield f"  and {hidden_lines}: run `dataprep seen {name} --id ID` to print the steps of an id"
