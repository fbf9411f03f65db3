"""The kinds of change: each happens to a corpus, and says what it touches and what the true reason is."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dataprep_assets.integrity.receipt import NAME
from dataprep_assets_tests.bench.changes.corpus import CHOICES, DATASET, SPLITS, VIEWS, Corpus, File
from dataprep_assets_tests.bench.changes.decided import replanned
from dataprep_assets_tests.bench.invented_text import SEPARATORS

__all__ = ["KINDS", "Happened"]


@dataclass
class Happened:
    """One change.

    Attributes:
        what: For a person who looks into a mismatch.
        because: Prefix of an artifact's name → the kind and a part of the reason that must be told of those artifacts
            with this prefix that are rebuilt for the sake of the change itself, the longest prefix first.
        damaged: Artifacts that are rebuilt though the state is what it was.
    """

    what: str
    because: dict[str, tuple[str, str]] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)


def _files_changed(corpus: Corpus, what: str, counted: str, names: dict[str, str]) -> Happened:
    """A change of the listing: `names` are shards and the file that is to be named of each."""
    because = {"manifest": ("input changed", counted), "engine_certificate": ("input changed", "sampled files")}
    for key, name in names.items():
        for artifact in ("snapshot", "token_bins"):
            there = corpus.store.partitions(DATASET, artifact)
            told = ("input changed", name) if key in there else ("absent", "absent")
            because[f"{artifact}/{key}"] = told
    for key in corpus.store.partitions(DATASET, "token_bins"):
        if key not in corpus.state.plan:  # the combined bins held a shard that has left the plan
            because.setdefault(f"combined_bins/{key[:-6]}", ("input changed", "token_bins/"))
    return Happened(what, because)


def _replan(corpus: Corpus) -> None:
    corpus.state.plan = replanned(corpus.state, corpus.state.plan)


def _shard(corpus: Corpus, path: str) -> str:
    return next((key for key, files in corpus.state.plan.items() if path in files), "")


def _edited(corpus: Corpus, path: str, what: str) -> Happened:
    corpus.write(path, corpus.state.files[path])
    return _files_changed(corpus, f"{what} in {path}", "1 file changed", {_shard(corpus, path): path})


def edit(corpus: Corpus) -> Happened:
    """A document of a file is added, removed or has another text."""
    path = corpus.some_file(least=2)
    documents = corpus.state.files[path].documents
    at = corpus.rng.randrange(len(documents))
    match corpus.rng.randrange(3):
        case 0:
            documents.insert(at, corpus.document())
        case 1:
            del documents[at]
        case _:
            documents[at] = (documents[at][0], documents[at][1] + " and more")
    return _edited(corpus, path, "edited a document")


def same_size(corpus: Corpus) -> Happened:
    """A document has another text of the same length: no listing shows it.

    Not one with a separator in it: the engine's certificate knows its sample by names and sizes, and counts documents
    by classes; a document that is of another class now would be counted otherwise from scratch.
    """
    path = corpus.some_file()
    documents = corpus.state.files[path].documents
    at = corpus.rng.randrange(len(documents))
    name, text = documents[at]
    if SEPARATORS[0] not in text:
        documents[at] = (name, text[::-1] if text[::-1] != text else "x" * len(text))
    return _edited(corpus, path, "turned a text round")


def other_id(corpus: Corpus) -> Happened:
    """A document has another id, and the same text."""
    path = corpus.some_file()
    documents = corpus.state.files[path].documents
    documents[0] = (corpus.document()[0], documents[0][1])
    return _edited(corpus, path, "another id")


def reformat(corpus: Corpus) -> Happened:
    """The same documents, written with other spaces."""
    path = corpus.some_file()
    corpus.state.files[path].spaced ^= True
    return _edited(corpus, path, "other spaces")


def add(corpus: Corpus) -> Happened:
    """A new file."""
    path = corpus.new_path(corpus.rng.choice(SPLITS))
    corpus.write(path, File([corpus.document() for _ in range(corpus.rng.randint(1, 4))]))
    _replan(corpus)
    return _files_changed(corpus, f"added {path}", "1 file added", {_shard(corpus, path): path})


def remove(corpus: Corpus) -> Happened:
    """A file is gone, and with the last one its shard."""
    path = corpus.spare_file()
    key = _shard(corpus, path)
    corpus.delete(path)
    _replan(corpus)
    return _files_changed(corpus, f"removed {path}", "1 file removed", {key: path} if key in corpus.state.plan else {})


def rename(corpus: Corpus) -> Happened:
    """A file has another name, in its split."""
    old = corpus.spare_file()
    key = _shard(corpus, old)
    file, new = corpus.delete(old), corpus.new_path(old.split("/")[0])
    corpus.write(new, file)
    _replan(corpus)
    names = {_shard(corpus, new): new} | ({key: old} if key in corpus.state.plan else {})
    return _files_changed(corpus, f"renamed {old} to {new}", "1 file added, 1 file removed", names)


def touch(corpus: Corpus) -> Happened:
    """A file, or all, have another modification time."""
    paths = sorted(corpus.state.files)
    for path in paths if corpus.rng.random() < 0.3 else [corpus.some_file()]:
        corpus.touch(path)
    return Happened("touched")


def tokenizer(corpus: Corpus) -> Happened:
    """The other tokenizer, of the same size and special tokens."""
    corpus.state.tokenizer ^= 1
    told = ("input changed", "its source changed: tokenizer")
    return Happened("the other tokenizer", {"engine_certificate": told, "token_bins/": told})


_TOLD = {
    "document.separator": "separator was ",
    "document.bos": "bos was ",
    "document.special_tokens": "special_tokens was ",
    "dtype": "dtype was ",
    "bad_records.policy": "bad_records.policy was ",
    "bad_records.budget": "bad_records.budget was ",
    "olmo_sequence_length": "olmo_sequence_length was ",
    "tokenizer.name": "tokenizer was ",
}


def _turned(corpus: Corpus, name: str) -> Happened:
    was = corpus.state.settings[name]
    corpus.state.settings[name] = next(value for value in CHOICES[name] if value != was)
    told = ("settings changed", _TOLD.get(name, ""))
    because = {"token_bins/": told, "combined_bins/": told, "olmo_bins": told, "engine_certificate": told}
    if name == "tokenizer.refuse":
        because |= {
            "engine_certificate": (told[0], "tokenizer.refuse was "),
            "token_bins/": (told[0], "refused was "),
        }
    return Happened(f"{name} is {corpus.state.settings[name]!r}", because)


def separator(corpus: Corpus) -> Happened:
    """The other separator."""
    return _turned(corpus, "document.separator")


def setting(corpus: Corpus) -> Happened:
    """Any other setting."""
    return _turned(corpus, corpus.rng.choice([name for name in CHOICES if name != "document.separator"]))


def retract(corpus: Corpus) -> Happened:
    """One to three documents are retracted, by id or by row; now and then one that is not there."""
    state = corpus.state
    there = sorted(i for f in state.files.values() for i, _ in f.documents if i not in state.retracted)
    chosen = corpus.rng.sample(there, corpus.rng.randint(1, 3))
    given = [_row(corpus, one) if corpus.rng.random() < 0.5 else one for one in chosen]
    if corpus.rng.random() < 0.2:
        given.append(f"unknown{corpus.rng.randrange(10**6)}")
    corpus.retract(given)
    state.retracted |= set(chosen)
    return Happened(f"retracted {given}", {"token_bins/": ("settings changed", "retracted was ")})


def _row(corpus: Corpus, wanted: str) -> str:
    for path, file in corpus.state.files.items():
        for row, (one, _) in enumerate(file.documents, 1):
            if one == wanted:
                return f"{path}:{row}"
    raise AssertionError(wanted)


def take_back(corpus: Corpus) -> Happened:
    """A retraction is taken off the list; where there is none yet, nothing."""
    state = corpus.state
    # those that were given by row stand in the list by their row: take back what is listed by id
    listed = corpus.list.read_text() if corpus.list.exists() else ""
    known = [one for one in sorted(state.retracted) if f'"id": "{one}"}}' in listed]
    if not known:
        return retract(corpus)
    chosen = corpus.rng.choice(known)
    corpus.take_back(chosen)
    state.retracted.discard(chosen)
    return Happened(f"took back {chosen}", {"token_bins/": ("settings changed", "retracted was ")})


def _damage(corpus: Corpus, path: Path) -> Happened:
    """One file of an artifact is altered in place, cut, replaced or gone, or another file appears beside it."""
    how = corpus.rng.choice(["in place", "cut", "replaced", "gone", "extra"])
    same = {path}
    if how in ("in place", "cut"):
        node = path.stat().st_ino
        same = {p for p in (corpus.root / DATASET).rglob("*") if p.is_file() and p.stat().st_ino == node}
    data = path.read_bytes()
    at = corpus.rng.randrange(max(1, len(data)))
    if not data:
        how = "extra"
    altered = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if data else b""
    named = path.name
    match how:
        case "in place":
            path.write_bytes(altered)
        case "cut":
            os.truncate(path, at)
        case "replaced":
            path.unlink()
            path.write_bytes(altered)
        case "gone":
            path.unlink()
        case _:
            (path.parent / "extra").write_bytes(b"x")
            named = "extra"
    damaged = {p.parent.relative_to(corpus.root / DATASET).as_posix() for p in same}
    kind = "absent" if how == "gone" and path.name == NAME else "damaged"
    because = dict.fromkeys(damaged, (kind, "absent" if kind == "absent" else "damaged: "))
    if kind == "damaged":
        because[path.parent.relative_to(corpus.root / DATASET).as_posix()] = (kind, named)
    return Happened(f"{how}: {path.relative_to(corpus.root)}", because, damaged)


def _damages(artifact: str) -> Callable[[Corpus], Happened]:
    def damage(corpus: Corpus) -> Happened:
        folder = corpus.root / DATASET / artifact
        planned = corpus.state.plan if artifact in ("snapshot", "token_bins") else None
        files = [
            path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and "/." not in str(path) and (planned is None or path.parent.name in planned)
        ]
        # a kind of file first, so that receipts and small files are hit as often as the many others
        name = corpus.rng.choice(sorted({path.name for path in files}))
        return _damage(corpus, corpus.rng.choice([path for path in files if path.name == name]))

    return damage


def prune(corpus: Corpus) -> Happened:
    """What is in no plan any more is removed."""
    from dataprep_assets.graph.prune import prune as removed
    from dataprep_assets.pipelines.corpus.dataset import corpus_specs

    gone = [str(artifact) for artifact, _ in removed(corpus_specs(corpus.declared()), corpus.store)]
    return Happened(f"pruned {gone}")


KINDS: dict[str, Callable[[Corpus], Happened]] = {
    "edit": edit,
    "edit, same size": same_size,
    "edit of an id": other_id,
    "reformat": reformat,
    "add": add,
    "remove": remove,
    "rename": rename,
    "touch": touch,
    "tokenizer": tokenizer,
    "separator": separator,
    "setting": setting,
    "retract": retract,
    "take back": take_back,
    "prune": prune,
    **{
        f"damage: {name}": _damages(name)
        for name in ("manifest", "engine_certificate", "snapshot", "token_bins", "combined_bins")
    },
    "damage: views": lambda corpus: _damages(f"{corpus.rng.choice(VIEWS)}_bins")(corpus),
}
"""Name → the change; every one as often as the others."""
