"""At which steps the training runs of a project read documents: what `trace` and `retract` tell of them."""

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
    """The ledger of a schedule; None if it has not been made."""
    from dataprep_assets.serving.sampler.seen import SeenLedger
    from dataprep_assets.serving.sampler.training_data import TrainingData

    store = schedule.store(project.storage())
    if store.receipt(schedule.product(store)) is None:
        return None
    return SeenLedger(TrainingData(store, schedule.declaration.dataset))


def runs_of(dataset: str) -> "Iterator[tuple[str, SeenLedger]]":
    """The training runs of the project that read a dataset, each with its ledger."""
    from dataprep_assets.engine.artifact.spec import DatasetInput

    for name, path in sorted(project.declarations().files.items()):
        # looked for in the text, so that no other declaration is loaded
        if "TrainingSchedule" not in path.read_text(encoding="utf-8", errors="replace"):
            continue
        try:
            other = project.load_dataset(name)
        except ConfigError:  # its own commands say why
            continue
        inputs = [one for spec in other.specs for one in spec.inputs if isinstance(one, DatasetInput)]
        sources = {one.dataset for one in inputs}
        if dataset in sources and (ledger := ledger_of(project.take(other))) is not None:
            yield name, ledger


def keys_of(ledger: "SeenLedger") -> "set[bytes | None]":
    """The keys under which the sources hash their ids."""
    from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration

    # ids of datasets that are not sensitive are hashed without a key
    keys: set[bytes | None] = {None}
    for name in {name for name, _ in ledger.shards.values()} & project.declarations().files.keys():
        declared = project.component(name).declaration
        if isinstance(declared, CorpusDeclaration) and (ids := declared.document.ids(sensitive=declared.sensitive)):
            keys.add(ids.key)
    return keys


def given_documents(ledger: "SeenLedger", given: "Sequence[IdLine]", dataset: str) -> "dict[int, list[KeptDocument]]":
    """The documents of a dataset that a list of ids means, by the line of the list: all with the same id, too."""
    from dataprep_assets.serving.sampler.seen import find_documents
    from dataprep_assets.tokenization.document_ids import hash_id

    lines: dict[int, set[int]] = {}
    places: dict[tuple[str, int], int] = {}
    keys = keys_of(ledger)
    for id_line in given:
        if id_line.file is not None:
            places[id_line.file, id_line.row] = id_line.line
            continue
        hashes = (
            [int(id_line.hash, 16)] if id_line.hash is not None else [hash_id(id_line.id or "", key) for key in keys]
        )
        for hashed in hashes:
            lines.setdefault(hashed, set()).add(id_line.line)
    rows: dict[str, set[int]] = {}
    for file, row in places:
        rows.setdefault(file, set()).add(row)
    documents: dict[int, list[KeptDocument]] = {}
    for kept in find_documents(ledger, rows=rows, dataset=dataset) if rows else ():
        if (line := places.get((kept.file, kept.row))) is not None:
            # a document that is named by its row stands for all that have its id
            if kept.hash is None:
                documents.setdefault(line, []).append(kept)
            else:
                lines.setdefault(kept.hash, set()).add(line)
    for kept in find_documents(ledger, hashes=lines, dataset=dataset):
        for line in lines.get(kept.hash if kept.hash is not None else -1, ()):
            documents.setdefault(line, []).append(kept)
    return documents


def steps_of(ledger: "SeenLedger", documents: "Sequence[KeptDocument]") -> list[int]:
    """The steps that read any of some documents, without those that were taken back."""
    from dataprep_assets.serving.sampler.seen import steps_of_document

    return sorted({one.step for kept in documents for one in steps_of_document(ledger, kept)})


def told_steps(steps: Sequence[int]) -> str:
    """Steps in words."""
    shown = ", ".join(map(str, steps[:_MOST]))
    more = f" and {len(steps) - _MOST} more, the last is {steps[-1]}" if len(steps) > _MOST else ""
    return f"step{'s' if len(steps) > 1 else ''} {shown}{more}"


def trained_lines(dataset: str, given: "Sequence[IdLine]") -> Iterator[str]:
    """At which steps training runs read, or will read, the documents of a list."""
    for name, ledger in runs_of(dataset):
        documents = given_documents(ledger, given, dataset)
        read = {line: steps for line, kept in sorted(documents.items()) if (steps := steps_of(ledger, kept))}
        if not read:
            yield f"{name} reads none of these documents"
            continue
        every = sorted({step for steps in read.values() for step in steps})
        # the steps are positions
        counts = f": {len(read)} of {count_of(len(given), 'line')}"
        shown = told_steps(every) + ("" if project.privacy().closed else counts)
        yield f"{name} has read it, or will read it, at {shown}"
        if len(given) > 1:
            for line, steps in list(read.items())[:_MOST]:
                yield f"  line {line}: {told_steps(steps)}"
            if len(read) > _MOST:
                yield f"  and {len(read) - _MOST} more: `dataprep seen {name} --id ID`"
