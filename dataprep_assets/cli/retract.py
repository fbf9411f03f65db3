"""`dataprep retract`: put documents on a dataset's retraction list, and say what the next run will rebuild."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep_assets.cli import project, status
from dataprep_assets.errors import ConfigError

if TYPE_CHECKING:
    from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
    from dataprep_assets.pipelines.corpus.retract import Given, Located

__all__ = ["declare"]

MOST_SHOWN = 20


def declare(commands: project.Commands) -> None:
    """Add the command's arguments."""
    parser = commands.add_parser(
        "retract", help="put documents on a dataset's retraction list, and say what will be rebuilt without them"
    )
    parser.add_argument("dataset")
    parser.add_argument(
        "--ids",
        type=Path,
        required=True,
        metavar="FILE",
        help="one a line: an id, a hash of the index (16 hex digits) or file:row, plain or as JSON",
    )
    parser.set_defaults(execute=_retract)


def _retract(options: argparse.Namespace) -> int:
    from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
    from dataprep_assets.pipelines.corpus.retract import document_ids_of, locate, read_ids
    from dataprep_assets.pipelines.corpus.retractions import add_retractions

    component = project.component(options.dataset)
    corpus = component.declaration
    if not isinstance(corpus, CorpusDeclaration) or corpus.retractions is None:
        raise ConfigError(
            f"{options.dataset} is a {type(component).__name__}: documents are retracted of corpora and releases. "
            "Retract them of the corpus that it is made of"
        )
    given = read_ids(options.ids)
    found = locate(corpus, component.store(project.storage()), given)
    new = add_retractions(corpus.retractions, document_ids_of(corpus), found.listed)
    _tell(corpus, given, found)
    print(f"{new} added to {corpus.retractions}; nothing is rebuilt yet: `dataprep run {options.dataset}` does that")
    if found.found:
        print()
        status.tell_of(component, as_json=False)
        print(
            "not reached from here: copies made with `dataprep sync`, downloads, trainers' caches, and windows of a "
            "trainer that runs"
        )
    return 0


def _tell(corpus: "CorpusDeclaration", given: "list[Given]", found: "Located") -> None:
    documents, tokens = sum(s.documents for s in found.shards), sum(s.tokens for s in found.shards)
    print(f"{corpus.dataset}: {len(given)} given, {len(found.already)} retracted already")
    print(f"found {len(found.found)}: {documents:,} documents, {tokens:,} tokens in {len(found.shards)} shards")
    for shard in found.shards[:MOST_SHOWN]:
        print(f"  {shard.partition:<20}{shard.documents:>10,} documents{shard.tokens:>14,} tokens")
    _more(len(found.shards))
    if found.unknown:
        print(f"not found {len(found.unknown)}; ids and hashes among them are dropped if they come later")
    for one in found.unknown[:MOST_SHOWN]:
        # of a sensitive dataset an id is no less secret for being in no document
        print(f"  line {one.line}" + ("" if corpus.sensitive else f": {one.text}"))
    _more(len(found.unknown))


def _more(count: int) -> None:
    if count > MOST_SHOWN:
        print(f"  and {count - MOST_SHOWN} more")
