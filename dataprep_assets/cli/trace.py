"""`dataprep trace`: from a place in training data to the document and its source row, and back."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from dataprep_assets.cli import project
from dataprep_assets.errors import ConfigError

__all__ = ["declare"]

_NUMBERS = {
    "token": "position in the stream of --split or --shard, from 0",
    "document": "number of a document in the stream of --split or --shard, from 0",
    "row": "with --file: row of the source file, from 1; with --shard: number of a document in it, from 0",
    "megatron_index": "number of a sequence in the Megatron index of --split or --shard",
    "mds_sample": "number of a sample in the MDS view of --split",
    "sample": "number of a sample in --npy-shard",
    "packed_row": "row of the packed file of --shard, of a chat blend",
}
_NAMES = {
    "split": "split that numbers refer to (of a blend, its dataset)",
    "shard": "partition of token bins that numbers refer to: train-00003",
    "file": "source file, as the manifest names it",
    "id": "a document's id: the value of `document.id_field`",
    "npy_shard": "npy shard of a release: train_000003",
}


def declare(commands: project.Commands) -> None:
    """Add the command's arguments."""
    parser = commands.add_parser("trace", help="say which source row is at a place of the training data, and back")
    parser.add_argument("dataset")
    for name, told in _NUMBERS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=told)
    for name, told in _NAMES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", metavar=name.upper(), help=told)
    parser.add_argument("--text-file", type=Path, metavar="PATH", help="a file that holds a document's whole text")
    parser.add_argument("--no-text", action="store_true", help="leave the documents' text out")
    parser.add_argument("--json", action="store_true", help="a JSON object for each document, one a line")
    parser.set_defaults(execute=_trace)


def _trace(options: argparse.Namespace) -> int:
    from dataprep_assets.graph.trace import trace

    question: dict[str, Any] = {name: getattr(options, name) for name in (*_NUMBERS, *_NAMES)}
    if options.text_file is not None:
        question["text"] = _text_of(options.text_file)
    component = project.component(options.dataset)
    tracer = component.tracer(component.store(project.storage()))
    found = trace(tracer, decode=not options.no_text, **question)
    for one in found:
        print(json.dumps(one.to_json(), ensure_ascii=False) if options.json else "\n".join(one.lines()))
    for note in tracer.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def _text_of(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"--text-file: {path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--text-file: {path}: not UTF-8 at byte {error.start}") from error
