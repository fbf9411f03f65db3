"""Every key of a corpus's declaration, with another sensible value and its effects, or the reason for leaving it
unchanged.

`test_changes.py` compares the names with the model's: a new key must be added here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from dataprep_assets_tests.tools.bench.changes.corpus import SPLITS, VIEWS, Corpus
from dataprep_assets_tests.tools.bench.invented_text import SEPARATORS


@dataclass(frozen=True, kw_only=True)
class Key:
    """Another value of a key.

    Attributes:
        turned: Dotted keys and their other values, or what makes them.
        touches: Prefixes of the artifacts that it may touch by itself; what is made of these follows.
        told: A part of the reason that has to be told of these; default: the last part of the key's name.
        back: Whether it is always turned back at once; else it mostly stays for later rounds.
        prunes: Whether it brings artifacts that are pruned when it is turned back: left where they are they would be
            current again, unannounced, when it is turned once more.
        unlists: Whether a list of retractions is only valid without it, so that the list goes first.
    """

    turned: dict[str, Any]
    touches: tuple[str, ...] = ()
    told: tuple[str, str] = ("settings changed", "")
    back: bool = False
    prunes: bool = False
    unlists: bool = False


_TOKENS = ("token_bins/",)
_SOURCE = ("input changed", "tokenizer")
_PLAN = ("manifest", "snapshot/", "token_bins/", "engine_certificate")
_SECRET = {"document.id_key": {"env": "VINEYARD_KEY"}}
_CARD = {
    "card.license": "MIT",
    "card.citation": "@misc{vineyard, title = {Vineyard}}",
    "card.homepage": "https://example.org/card",
    "card.creators": [{"name": "the vineyard", "kind": "person", "url": "https://example.org"}],
    "card.published": "2026-01-02",
    "card.version": "1.2.3",
    "description": "Grapes.",
    "source.license": "CC0-1.0",
    "source.citation": "@misc{harvest, title = {Harvest}}",
    "source.homepage": "https://example.org/source",
}
_TABLE = ("tags/", "selection/", "documents/", "data_card")
_LONG = {"long": "characters > 480"}
"""A rule that drops a few documents of every split, and never a whole split."""
_RULED = {
    "keep": {"keep": {"short": "characters <= 480"}},
    "drop": {"drop": _LONG},
    "tag": {"tag": ["gopher", "personal"]},
    "floors": {"tag": ["personal"], "floors": {"personal": {"recall": 0.8}}},
    "budget.per_source": {"budget.per_source": 0.95, "drop": _LONG},
    "budget.per_rule": {"budget.per_rule": {"long": 0.9}, "drop": _LONG},
}
_NOTHING = {
    "owners": ["team:cellar"],
    "workers": 1,
    "small_cell": 5,
    "prove.again_every": "365d",
    "accept": {"looks_like_text": "known"},
    "run_on": "processes",
    "automation.on_new_files": "10m",
    "automation.schedule": "0 4 * * *",
    "automation.timezone": "Europe/Berlin",
    "automation.freshness": "168h",
    "source.follow_links": True,
    "tokenizer.max_loss": 0.02,
    # These keys apply only to file formats that the corpus does not have.
    "text_separator": "\n",
    "csv_delimiter": ";",
    "csv_quotes": False,
}
_OF_A_TABLE = {"document.url_field": "remark", "document.source_field": "remark"}
"""Keys of a missing document table. They are reverted at once, because a budget cannot be for the remarks, which are
not sources, and a sensitive dataset may have none."""
_PRIORITY = {"duplicates.priority": {"column": "bytes", "order": "lowest"}, "duplicates.across_splits": "ignore"}
_ALIKE: dict[str, dict[str, Any]] = {
    "duplicates.kind": {"duplicates.kind": "exact", "duplicates.across_splits": "ignore"},
    "duplicates.normalize": {"duplicates.normalize": "space", "duplicates.across_splits": "ignore"},
    "duplicates.threshold": {"duplicates.threshold": 0.9, "duplicates.across_splits": "ignore"},
    "duplicates.shingle": {"duplicates.shingle": 3, "duplicates.across_splits": "ignore"},
    "duplicates.permutations": {"duplicates.permutations": 64, "duplicates.across_splits": "ignore"},
    "duplicates.priority.column": _PRIORITY,
    "duplicates.priority.order": _PRIORITY,
    "duplicates.across_splits": {"duplicates.across_splits": "drop"},
    "duplicates.recall": {"duplicates.recall": 0.5, "duplicates.across_splits": "ignore"},
}


def keys(corpus: Corpus) -> dict[str, Key]:
    """Return key → its other value, for this corpus."""
    tokenizer = str(corpus.folder / "tokenizer-1")
    found = {
        "dtype": Key(turned={"dtype": "uint32"}, touches=_TOKENS),
        "text_field": Key(turned={"text_field": "remark"}, touches=_TOKENS, back=True),
        "document.separator": Key(turned={"document.separator": SEPARATORS[1]}, touches=_TOKENS),
        "document.bos": Key(turned={"document.bos": SEPARATORS[1]}, touches=_TOKENS),
        "document.special_tokens": Key(
            turned={"document.special_tokens": "match"}, touches=(*_TOKENS, "engine_certificate")
        ),
        "document.id_field": Key(
            turned={"document.id_field": None}, touches=_TOKENS, told=("", ""), back=True, unlists=True
        ),
        "document.id_key": Key(turned=_SECRET, touches=_TOKENS, told=("", ""), back=True, unlists=True),
        "sensitive": Key(turned={"sensitive": True, **_SECRET}, touches=("",), back=True, unlists=True, told=("", "")),
        "bad_records.policy": Key(turned={"bad_records.policy": "drop"}, touches=_TOKENS),
        "bad_records.budget": Key(
            turned={"bad_records.budget": 0.01, "bad_records.policy": "drop"}, touches=_TOKENS, back=True
        ),
        "bad_records.max_record_bytes": Key(turned={"bad_records.max_record_bytes": 1 << 20}, touches=_TOKENS),
        "sample_rate": Key(turned={"sample_rate": 1.0}),
        "verify": Key(turned={"verify": "size"}, back=True),
        "include": Key(turned={"include": ["**/*.jsonl", "**/*.jsonl.*"]}, touches=("manifest",)),
        "splits": Key(
            turned={"splits": {split: [f"{split}/**"] for split in SPLITS[:2]}},
            touches=(*_PLAN, *(f"{view}_bins" for view in (*VIEWS, "megatron", "mds"))),
            told=("", ""),
            back=True,
        ),
        "shards.count": Key(turned={"shards.count": 4}, touches=_PLAN, told=("", "")),
        "shards.target_bytes": Key(turned={"shards.target_bytes": 3_000}, touches=_PLAN, told=("", ""), back=True),
        "retractions": Key(turned={"retractions": partial(corpus.copy_of, corpus.list)}, back=True),
        "tokenizer.path": Key(
            turned={"tokenizer.path": tokenizer}, touches=("engine_certificate", *_TOKENS), told=_SOURCE
        ),
        "tokenizer.name": Key(
            turned={"tokenizer.name": "renamed"},
            touches=("combined_bins/",),
            told=("settings changed", "tokenizer was "),
        ),
        "tokenizer.engine": Key(
            # Without the fast engine, the certificate refuses all classes. The refused classes are part of the key of a
            # shard, so all shards are encoded again.
            turned={"tokenizer.engine": "tokenizers"},
            touches=("engine_certificate", *_TOKENS),
            told=("", ""),
        ),
        "tokenizer.refuse": Key(
            turned={"tokenizer.refuse": ["east_asian"]}, touches=("engine_certificate", *_TOKENS), told=("", "refuse")
        ),
        "views": Key(
            turned={"views": [*VIEWS[1:], "megatron", "mds"]},
            touches=("megatron_bins", "mds_bins", "nanogpt_bins", "data_card"),
            told=("", ""),
        ),
        "olmo_sequence_length": Key(turned={"olmo_sequence_length": 128}, touches=("olmo_bins",)),
        "mds_sequence_length": Key(turned={"mds_sequence_length": 128}, touches=("mds_bins",)),
        **{name: Key(turned={name: value}, touches=("data_card",), told=("", "")) for name, value in _CARD.items()},
        # Only the card is rebuilt, because it shows how much was checked. For the other artifacts, only the checks run
        # again.
        "prove.level": Key(turned={"prove.level": "every_document"}, touches=("data_card",), told=("", "")),
        **{name: Key(turned={name: value}) for name, value in _NOTHING.items()},
        **{name: Key(turned={name: value}, back=True) for name, value in _OF_A_TABLE.items()},
        "document.keep_fields": Key(
            turned={"document.keep_fields": {"remark": "string"}}, touches=_TABLE, told=("", ""), back=True, prunes=True
        ),
        # Revert these changes at once. Otherwise, the budget of one change could lack a rule that a later change
        # declares.
        **{
            name: Key(turned=turned, touches=(*_TABLE, *_TOKENS), told=("", ""), back=True, prunes=True)
            for name, turned in _RULED.items()
        },
        # Also revert these changes at once, because the texts of later rounds may be similar in ways that the rounds do
        # not predict.
        **{
            name: Key(turned=turned, touches=(*_TABLE, *_TOKENS, "signatures/", "duplicates"), told=("", ""), back=True)
            for name, turned in _ALIKE.items()
        },
        "shards.on_change": Key(turned={"shards.on_change": "replan"}, touches=_PLAN, told=("", ""), back=True),
    }
    if corpus.hub is not None:
        del found["source.follow_links"]
        found |= {
            "source.revision": Key(turned={"source.revision": corpus.hub.commit}, touches=("manifest",), back=True),
            "source.cache_dir": Key(turned={"source.cache_dir": str(corpus.folder / "mirror")}, back=True),
            "source.allow_http": Key(turned={"source.allow_http": True}),
        }
    if corpus.hub is None:
        found["source.path"] = Key(turned={"source.path": partial(corpus.copy_of, corpus.data)}, back=True)
    if corpus.selects:
        # Leave out the keys that this corpus declares, because separate changes cover their values. Also leave out the
        # keys that keep a text field, because a sensitive corpus may not have them.
        for name in (*_RULED, *_OF_A_TABLE, *_ALIKE, "document.keep_fields"):
            found.pop(name, None)
    return found


LEFT_ALONE = {
    "dataset": "another name is another dataset",
    "storage": "another place is a build from scratch, which rounds are compared with anyway",
    "automation.on_failure": "nobody is told of a run of the command",
    "source.kind": "there is a corpus of each kind whose files are listed in a way of its own",
    "tokenizer.pattern": "of a tiktoken file, and the corpus has a tokenizer.json",
    "source.key": "of an asset, whose files are those of a folder or a bucket",
    "source.endpoint": "another hub",
    "source.repo": "another repository",
    "source.url": "of a bucket",
    "source.endpoint_url": "of a bucket",
    "source.region": "of a bucket",
    "source.access": "of a bucket",
    "duplicates.against": "needs another dataset beside the corpus; test_duplicates_against.py turns it",
    **{
        f"decontaminate.{name}": "needs a file of items beside the corpus; test_decontaminate.py turns it"
        for name in ("sets", "ngram", "min_words", "containment", "coverage", "action")
    },
    "recipe": "adds taggers and rules, which `tag`, `keep` and `drop` change; it needs the extra `words`",
    "rewrite": "test_rewriting_run.py turns it",
    "document.license_field": "test_web_documents.py turns it",
    **{
        f"lineage.{name}": "sends events elsewhere, and affects no artifact"
        for name in ("openlineage", "wandb.project", "wandb.entity", "wandb.mode")
    },
    **{
        f"publish.{name}": "needs a repository for uploads; test_publication.py turns it"
        for name in ("hub", "private", "project", "endpoint", "allow_http")
    },
    "tokenizer.repo": "needs a second repository on the hub",
    "tokenizer.revision": "goes with tokenizer.repo",
}
"""Keys that no round changes, with the reasons."""


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted names of all keys of a model; a list, a secret's place and what tells of failures count as one key."""
    for name, field in model.model_fields.items():
        dotted = f"{prefix}{name}"
        inner = [one for one in _parts(field.annotation) if isinstance(one, type) and issubclass(one, BaseModel)]
        is_list = get_origin(field.annotation) is tuple
        if dotted in LEFT_ALONE or is_list or all("env" in m.model_fields for m in inner):
            yield dotted
        else:
            for one in inner:
                yield from leaves(one, f"{dotted}.")


def _parts(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (Annotated, Union, UnionType):
        return [part for one in get_args(annotation) for part in _parts(one)]
    return [annotation]
