"""`dataprep trace`: find the document and source row behind a position in training data, or the reverse."""

import json
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, Name
from dataprep_assets.cli.training.training_steps import format_steps, runs_of, steps_of
from dataprep_assets.errors import ConfigError
from dataprep_assets.library.part import split_names

if TYPE_CHECKING:
    from dataprep_assets.engine.trace.trace import Trace
    from dataprep_assets.serving.sampler.seen import KeptDocument, SeenLedger


def _number(told: str) -> Any:
    return typer.Option(metavar="N", help=told)


def command(
    dataset: Name,
    token: Annotated[int | None, _number("Position in the stream of --split or --shard, from 0.")] = None,
    document: Annotated[int | None, _number("Number of a document in --split or --shard, from 0.")] = None,
    row: Annotated[
        int | None,
        _number("With --file: row of the source file, from 1; with --shard: number of a document in it, from 0."),
    ] = None,
    megatron_index: Annotated[int | None, _number("Sequence in the Megatron index of --split or --shard.")] = None,
    sample: Annotated[int | None, _number("Sample of --split in --view, or in --npy-shard, from 0.")] = None,
    packed_row: Annotated[
        int | None, _number("Row of the packed file of --shard (a chat blend or a month of notes), from 0.")
    ] = None,
    tfrecord_row: Annotated[
        int | None, _number("For notes: TFRecord number in the directory of --split, or in the file given by --shard.")
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(metavar="SPLIT", help="Splits that numbers refer to, e.g. val,test; for a blend, its dataset."),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(help="Token-bin partition for --token, --document or --row, e.g. train-00003."),
    ] = None,
    file: Annotated[str | None, typer.Option(help="Source file, as named in the manifest.")] = None,
    id_: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Document id (`document.id_field`); for notes, a patient id."),
    ] = None,
    view: Annotated[str | None, typer.Option(help="View that contains the sample: mds.")] = None,
    npy_shard: Annotated[str | None, typer.Option(help="Npy shard of a release, e.g. train_000003.")] = None,
    text_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the whole text of a document.")
    ] = None,
    no_text: Annotated[bool, typer.Option("--no-text", help="Do not print the documents' text.")] = False,
    json_: AsJson = False,
) -> int:
    """Find the source row behind a token, or the tokens from a source row."""
    from dataprep_assets.engine.trace.trace import trace

    question: dict[str, Any] = {
        "token": token,
        "document": document,
        "row": row,
        "megatron_index": megatron_index,
        "sample": sample,
        "packed_row": packed_row,
        "tfrecord_row": tfrecord_row,
        "shard": shard,
        "file": file,
        "id": id_,
        "view": view,
        "npy_shard": npy_shard,
    }
    if text_file is not None:
        question["text"] = _text_of(text_file)
    tracer = project.open_dataset(dataset).tracer()
    # opened once, because each matching document is looked up in all runs
    runs = list(runs_of(dataset))
    splits = split_names(split) or (None,)
    for match in chain.from_iterable(
        trace(tracer, decode=not no_text, split=split_name, **question) for split_name in splits
    ):
        shown_match = replace(match, source_bytes=tracer.source_bytes(match))
        read = {name: steps_of(ledger, _find_kept(ledger, shown_match)) for name, ledger in runs}
        if json_:
            value = shown_match.to_json() | ({"trained": read} if runs else {})
            print(json.dumps(value, ensure_ascii=False))
            continue
        print("\n".join(shown_match.lines()))
        for name, steps in read.items():
            print(f"  {name}: " + (f"reads it at {format_steps(steps)}" if steps else "never reads it"))
    for note in tracer.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def _find_kept(ledger: "SeenLedger", one: "Trace") -> "list[KeptDocument]":
    from dataprep_assets.serving.sampler.seen import find_documents

    return find_documents(ledger, rows={one.file: [one.row]}, dataset=one.dataset)


def _text_of(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"--text-file: {path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--text-file: {path}: not UTF-8 at byte {error.start}") from error
