"""`dataprep seen`: find the documents that a training step read, and the steps that read a document."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, Name
from dataprep_assets.cli.training.training_steps import find_steps, format_steps, open_ledger, read_id_keys
from dataprep_assets.errors import ConfigError, MissingArtifactError, NotFoundError, count_of

if TYPE_CHECKING:
    from dataprep_assets.engine.trace.document_table import DocumentTable
    from dataprep_assets.serving.sampler.seen import KeptDocument, SeenDocument, SeenLedger

_MAX_ROWS = 20


def command(
    dataset: Name,
    step: Annotated[int | None, typer.Option(metavar="N", help="Show the documents that this step reads.")] = None,
    rank: Annotated[
        int, typer.Option(metavar="R", help="With --step: show only documents that this rank (of --world ranks) reads.")
    ] = 0,
    world: Annotated[int, typer.Option(metavar="W", help="With --rank: set the number of ranks.")] = 1,
    document: Annotated[
        str | None, typer.Option(metavar="FILE:ROW", help="Show the steps that read this row of a source file.")
    ] = None,
    id_: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="Show the steps that read the document with this id or index hash (16 hex digits).",
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="Show the steps that read documents that match this rule expression."),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Show only steps before N. With --step: show all steps from --step to before N. Without other "
            "options: show the tokens per source before N.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="With only --until: count tokens per value of this document column, e.g., host."
        ),
    ] = None,
    json_: AsJson = False,
) -> int:
    """Show which documents a training step reads, or which steps read a document."""
    from dataprep_assets.serving.sampler.seen import documents_of_step
    from dataprep_assets.serving.sampler.simulation import format_simulation, simulate_reads

    questions = (("--step", step), ("--document", document), ("--id", id_), ("--where", where))
    given_options = [name for name, value in questions if value is not None]
    if len(given_options) > 1 or (not given_options and until is None):
        raise ConfigError("seen: pass exactly one of --step, --document, --id and --where, or only --until")
    if by is not None and (given_options or until is None):
        raise ConfigError("seen: --by needs --until N, and cannot be combined with other options. Remove the others")
    if (rank, world) != (0, 1) and step is None:
        raise ConfigError("seen: --rank and --world need --step. Add --step, or remove --rank and --world")
    component = project.use_dataset(dataset)
    if component.component != "TrainingSchedule":
        raise ConfigError(
            f"{dataset} is a {component.component}, which has no training steps. Name a TrainingSchedule that reads it"
        )
    if (ledger := open_ledger(component)) is None:
        raise MissingArtifactError(f"{dataset}: not built yet. Run `dataprep run {dataset}` first")
    if not given_options:
        assert until is not None
        if by is not None:
            for line in _format_counts(_count_tokens_by(ledger, by, until), by, json_):
                print(line)
        elif json_:
            print(
                json.dumps(
                    [
                        project.get_privacy().public_amounts(vars(item))
                        for item in simulate_reads(ledger.data.sampler, until)
                    ]
                )
            )
        else:
            project.print_unless_private(format_simulation(ledger.data.sampler, until), f"{dataset}: scheduled reads")
        return 0
    if step is not None:
        if until is not None and until <= step:
            raise ConfigError(f"seen: --until {until}: must be greater than --step {step}")
        for current_step in range(step, step + 1 if until is None else until):
            if until is not None and not json_:
                print(f"step {current_step}")
            for reading in documents_of_step(ledger, current_step, rank=rank, world_size=world):
                print(json.dumps(reading.to_json(), ensure_ascii=False) if json_ else _format_line(reading))
        return 0
    documents = _find_documents(ledger, document, id_) if where is None else _find_matching_documents(ledger, where)
    if where is not None and not json_:
        steps = [item for item in find_steps(ledger, documents) if until is None or item < until]
        limit_text = "at any step" if until is None else f"before step {until}"
        read_text = f"read at {format_steps(steps)}" if steps else f"not read {limit_text}"
        print(f"{_count_documents(len(documents))}, {read_text}")
    for line in _describe_steps(ledger, documents if json_ else documents[:_MAX_ROWS], until, json_):
        print(line)
    if len(documents) > _MAX_ROWS and not json_:
        hidden_documents = count_of(len(documents) - _MAX_ROWS, "more document")
        print(f"and {'more documents' if project.get_privacy().closed else hidden_documents}: use --json to print all")
    return 0


def _count_documents(count: int) -> str:
    return "documents" if project.get_privacy().closed else count_of(count, "document")


def _format_counts(tokens: dict[str, int], column: str, json_: bool) -> Iterator[str]:
    privacy = project.get_privacy()
    if json_:
        yield json.dumps(privacy.public_amounts(tokens), ensure_ascii=False)
        return
    total = sum(tokens.values())
    yield f"{column:<40}{'tokens':>18}{'share':>9}"
    for value, count in tokens.items():
        yield f"{value:<40}{privacy.public_count(count):>18}{privacy.public_share(count, total):>9}".rstrip()


def _format_line(seen: "SeenDocument") -> str:
    id_text = "" if seen.id is None else f", id {seen.id}"
    location = f"{seen.source}/{seen.shard} document {seen.document}, epoch {seen.epoch}{id_text}"
    return f"{seen.position:>6}  {seen.file}:{seen.row}  {count_of(seen.tokens, 'token')}, {location}"


def _find_documents(ledger: "SeenLedger", document: str | None, id_: str | None) -> "list[KeptDocument]":
    from dataprep_assets.serving.sampler.seen import find_documents
    from dataprep_assets.tokenization.document_ids import hash_id

    if document is not None:
        file, _, row = document.rpartition(":")
        if not file or not row.isdigit():
            raise ConfigError(f"seen: --document {document}: must be FILE:ROW, as printed by `dataprep trace`")
        documents, description = find_documents(ledger, rows={file: [int(row)]}), f"the document {document}"
    else:
        assert id_ is not None
        hashes = [hash_id(id_, key) for key in read_id_keys(ledger)]
        # Look up a text of 16 hex digits both as an id and as an id's hash, because it may be either.
        if len(id_) == 16 and all(digit in "0123456789abcdef" for digit in id_):
            hashes.append(int(id_, 16))
        documents, description = find_documents(ledger, hashes=hashes), "a document with this id"
    if not documents:
        raise NotFoundError(f"seen: no shard of {ledger.data.name} has {description}. Correct the option")
    return documents


def _open_tables(ledger: "SeenLedger", option: str) -> "Iterator[tuple[str, DocumentTable]]":
    """Yield the sources' document tables; raise ConfigError for a sensitive source, whose rows are private."""
    for name in sorted({name for name, _ in ledger.shards.values()}):
        component = project.use_dataset(name)
        if component.declaration.sensitive:
            raise ConfigError(f"seen: {option}: {name} is sensitive, so its rows are not shown. Use --id")
        yield name, component.documents(component.store(project.open_storage()))


def _find_matching_documents(ledger: "SeenLedger", where: str) -> "list[KeptDocument]":
    """Return the documents of the sources that match an expression, including documents retracted since then."""
    from dataprep_assets.serving.sampler.seen import find_documents

    documents: list[KeptDocument] = []
    for name, table in _open_tables(ledger, "--where"):
        rows: dict[str, set[int]] = {}
        for row in table.rows(where=where, columns=["file", "row"]):
            rows.setdefault(row["file"], set()).add(row["row"])
        if rows:
            documents += find_documents(ledger, rows=rows, dataset=name)
    if not documents:
        raise NotFoundError(f"seen: --where matched no document in {ledger.data.name}: {where}. Correct the expression")
    return documents


def _count_tokens_by(ledger: "SeenLedger", column: str, until: int) -> dict[str, int]:
    """Count the tokens that the steps before `until` read, by a column of the document tables, in descending order."""
    import numpy as np

    from dataprep_assets.serving.sampler.seen import count_tokens_read

    values: dict[str, dict[tuple[str, int], str]] = {}
    for name, table in _open_tables(ledger, "--by"):
        if column not in table.columns:
            raise ConfigError(f"seen: --by {column}: unknown column of {name}. Available: {', '.join(table.columns)}")
        rows = table.rows(columns=list(dict.fromkeys(["file", "row", column])))
        values[name] = {(row["file"], row["row"]): str(row[column]) for row in rows}
    total: dict[str, int] = {}
    for (_, content), reads in count_tokens_read(ledger, until).items():
        value_of = values[ledger.shards[content][0]]
        for document in np.flatnonzero(reads.tokens).tolist():
            document_row = ledger.get_kept_document(content, document)
            value = value_of.get((document_row.file, document_row.row), "not in the table")
            total[value] = total.get(value, 0) + int(reads.tokens[document])
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


def _describe_steps(
    ledger: "SeenLedger", documents: "list[KeptDocument]", until: int | None, json_: bool
) -> Iterator[str]:
    from dataprep_assets.serving.sampler.seen import find_withdrawn_readings, steps_of_document

    for kept_document in documents:
        readings = steps_of_document(ledger, kept_document, until=until)
        readings_back = find_withdrawn_readings(ledger, kept_document)
        value: dict[str, Any] = {
            "dataset": kept_document.dataset,
            "shard": kept_document.shard.name,
            "content": kept_document.shard.content,
            "document": kept_document.document,
            "file": kept_document.file,
            "row": kept_document.row,
            "tokens": kept_document.stop - kept_document.start,
            "read": [{**vars(reading), "tokens": reading.stop - reading.start} for reading in readings],
            "taken_back": [{"revision": interval.revision, **vars(reading)} for interval, reading in readings_back],
        }
        if json_:
            yield json.dumps(value, ensure_ascii=False)
            continue
        location = f"{kept_document.dataset}/{kept_document.shard.name} document {kept_document.document}"
        yield (
            f"{kept_document.file}:{kept_document.row}: "
            f"{count_of(kept_document.stop - kept_document.start, 'token')}, {location}"
        )
        for reading in readings[:_MAX_ROWS]:
            yield (
                f"  step {reading.step}, sample {reading.position}: {count_of(reading.stop - reading.start, 'token')}, "
                f"{reading.source} epoch {reading.epoch}"
            )
        if len(readings) > _MAX_ROWS:
            yield f"  and {count_of(len(readings) - _MAX_ROWS, 'more time')}, the last at step {readings[-1].step}"
        if not readings:
            yield "  never read" + ("" if until is None else f" before step {until}")
        for interval, reading in readings_back[:_MAX_ROWS]:
            yield f"  withdrawn: step {reading.step} of revision {interval.revision}"
