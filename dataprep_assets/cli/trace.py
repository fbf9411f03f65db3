"""`dataprep trace`: find the document and source row behind a position in training data, or the reverse."""

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, Name
from dataprep_assets.cli.training.training_steps import find_steps, find_training_runs, format_steps
from dataprep_assets.errors import ConfigError, DataprepError, NotFoundError
from dataprep_assets.library.part import parse_split_names

if TYPE_CHECKING:
    from dataprep_assets.engine.trace.trace import Trace, Tracer
    from dataprep_assets.library.dataset import OpenDataset
    from dataprep_assets.serving.sampler.seen import KeptDocument, SeenLedger


_number_option: Any = partial(typer.Option, metavar="N")


def command(
    dataset: Name,
    token: Annotated[
        int | None,
        _number_option(
            help="Find this token, counted from 0 in the stream of --split or --shard. In a chat blend: in --sample "
            "or --packed-row."
        ),
    ] = None,
    document: Annotated[
        int | None, _number_option(help="Find this document of --split or --shard, counted from 0.")
    ] = None,
    row: Annotated[
        int | None,
        _number_option(
            help="With --file: find this row of the source file, counted from 1. With --shard: find this document, "
            "counted from 0."
        ),
    ] = None,
    megatron_index: Annotated[
        int | None,
        _number_option(help="Find this sequence in the Megatron index of --split or --shard, counted from 0."),
    ] = None,
    sample: Annotated[
        int | None, _number_option(help="Find this sample of --split in --view, or of --npy-shard, counted from 0.")
    ] = None,
    packed_row: Annotated[
        int | None,
        _number_option(help="Find this packed row of --shard (a chat blend or a month of notes), counted from 0."),
    ] = None,
    tfrecord_row: Annotated[
        int | None,
        _number_option(
            help="For notes: find this TFRecord, counted from 0, in the directory of --split or in the file that "
            "--shard names."
        ),
    ] = None,
    message: Annotated[
        int | None,
        _number_option(help="For a chat blend: list the tokens of this message of the conversation, counted from 0."),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPLIT", help="Interpret positions in these splits, e.g., val,test. For a blend: in this dataset."
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(help="Interpret --token, --document or --row in this shard, e.g., train-00003."),
    ] = None,
    file: Annotated[
        str | None, typer.Option(help="Find a row of this source file, named as in the manifest. Needs --row.")
    ] = None,
    id_: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="ID",
            help="Find the document with this id (`document.id_field`). For a blend: the row (`id_field`). For notes: "
            "a patient id.",
        ),
    ] = None,
    view: Annotated[str | None, typer.Option(help="Interpret --sample in this view, e.g., mds or sft_rows.")] = None,
    npy_shard: Annotated[
        str | None, typer.Option(help="Interpret --sample in this npy shard of a release, e.g., train_000003.")
    ] = None,
    text_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Find the document whose whole text is in this file.")
    ] = None,
    no_text: Annotated[bool, typer.Option("--no-text", help="Do not print the documents' text.")] = False,
    json_: AsJson = False,
) -> int:
    """Find the source row behind a token, or the tokens of a source row."""
    question: dict[str, Any] = {
        "token": token,
        "document": document,
        "row": row,
        "megatron_index": megatron_index,
        "sample": sample,
        "packed_row": packed_row,
        "tfrecord_row": tfrecord_row,
        "message": message,
        "shard": shard,
        "file": file,
        "id": id_,
        "view": view,
        "npy_shard": npy_shard,
    }
    if text_file is not None:
        question["text"] = _read_text(text_file)
    open_dataset = project.open_dataset(dataset)
    tracer = open_dataset.tracer()
    # Open the training runs once, because every matching document is looked up in each of them.
    runs = list(find_training_runs(dataset))
    splits = parse_split_names(split) or (None,)
    for match in _find_matches(open_dataset, tracer, splits, question, decode=not no_text):
        shown_match = replace(
            match,
            source_bytes=tracer.source_bytes(match),
            source_text=None if no_text else tracer.source_text(match),
        )
        steps_by_dataset = {
            name: find_steps(ledger, _find_kept_documents(ledger, shown_match)) for name, ledger in runs
        }
        if json_:
            value = shown_match.to_json() | ({"trained": steps_by_dataset} if runs else {})
            print(json.dumps(value, ensure_ascii=False))
            continue
        print("\n".join(shown_match.lines()))
        for name, steps in steps_by_dataset.items():
            print(
                f"  {name}: "
                + (f"reads this document at {format_steps(steps)}" if steps else "never reads this document")
            )
    for note in tracer.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def _find_matches(
    dataset: "OpenDataset",
    tracer: "Tracer",
    splits: Sequence[str | None],
    question: Mapping[str, Any],
    *,
    decode: bool,
) -> "Iterator[Trace]":
    """Yield the matching documents of each split. The error for a dropped row names the command that shows the row."""
    from dataprep_assets.engine.trace.trace import trace_documents

    for split in splits:
        try:
            yield from trace_documents(tracer, decode=decode, split=split, **question)
        except NotFoundError as error:
            file, row = question["file"], question["row"]
            if file is None or row is None or (query := _find_dropped_row(dataset, file, row)) is None:
                raise
            command_line = f"dataprep documents {dataset.name} --where {shlex.quote(query)} --text"
            raise NotFoundError(f"{error}. Run `{command_line}` to read the row") from error


def _find_dropped_row(dataset: "OpenDataset", file: str, row: int) -> str | None:
    """Return the query for a row of the document table; None if the table does not have the row or must not show it."""
    # Use double quotes, because the shell needs the single quotes around the query.
    query = f"file = {json.dumps(file, ensure_ascii=False)} and row = {row}"
    try:
        is_listed = dataset.documents(where=query, columns=["file"]).count() > 0
    except DataprepError:  # the dataset is sensitive, or has no table
        return None
    return query if is_listed else None


def _find_kept_documents(ledger: "SeenLedger", trace: "Trace") -> "list[KeptDocument]":
    from dataprep_assets.serving.sampler.seen import find_documents

    return find_documents(ledger, rows={trace.file: [trace.row]}, dataset=trace.dataset)


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise ConfigError(
            f"--text-file: {path}: cannot be read: {error.strerror or error}. Pass a readable file"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"--text-file: {path}: not valid UTF-8 at byte {error.start}. Save the file as UTF-8"
        ) from error
