"""The kinds of change: each is applied to a corpus in one or several steps, and declares its allowed effects with
reasons.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dataprep_assets.integrity.receipt import NAME
from dataprep_assets.stores.files import OTHERS, list_open_to_others
from dataprep_assets_tests.tools.bench.changes.corpus import SPLITS, Corpus, File
from dataprep_assets_tests.tools.bench.changes.keys import Key, keys
from dataprep_assets_tests.tools.bench.invented_text import SEPARATORS


@dataclass
class Step:
    """One step of a change, after which `dataprep run` is run.

    Attributes:
        what: For a person who looks into a mismatch.
        because: Prefix of an artifact's name → the kind and the parts, of which one must be in the reason, of artifacts
            with this prefix that are made again for the sake of the change itself; the longest prefix counts. An
            artifact without a prefix here may only be made again for the sake of an input.
        damaged: Artifacts that must be made again though nothing that decides them changed.
        unseen: Whether there is damage that nothing has to see: then a run may fail once, and that is all that holds.
        commands: Words of a command that runs before, without the dataset's name.
    """

    what: str
    because: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    unseen: bool = False
    commands: list[list[str]] = field(default_factory=list)


Steps = Iterator[Step]


def _files_changed(corpus: Corpus, what: str, counted: str, names: list[str]) -> Step:
    """Return a step that changes the listing; `names` are the added, removed or changed files."""
    told, moved = ("input changed", tuple(names)), ("input changed", (counted, "the revision moved"))
    because = {"manifest": moved, "engine_certificate": ("input changed", ("sampled files",))}
    for artifact in ("snapshot/", "token_bins/"):
        because[artifact] = ("missing", ("missing",))  # the reason for a new shard
        for key, files in corpus.plan().items():
            if not set(files).isdisjoint(names):
                because[f"{artifact}{key}"] = told
    corpus.publish()
    return Step(what, because | _chosen(corpus))


def _chosen(corpus: Corpus) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the artifacts that select documents, and shards in which other rows may be dropped for any reason."""
    if not corpus.selects:
        return {}
    names = ("tags/", "signatures/", "duplicates", "selection/", "documents/", "token_bins/")
    return dict.fromkeys(names, ("", ()))


def _edited(corpus: Corpus, path: str, what: str) -> Step:
    corpus.write(path, corpus.state.files[path])
    return _files_changed(corpus, f"{what} in {path}", "1 file changed", [path])


def edit(corpus: Corpus) -> Steps:
    """Add, remove or change a document of a file."""
    path = corpus.some_file(least=2)
    documents = corpus.state.files[path].documents
    at = corpus.rng.randrange(len(documents))
    match corpus.rng.randrange(3):
        case 0:
            documents.insert(at, corpus.document())
        case 1:
            del documents[at]
        case _:
            name, text, remark = documents[at]
            documents[at] = (name, f"{text} and more", remark)
    yield _edited(corpus, path, "edited a document")


def same_size(corpus: Corpus) -> Steps:
    """Give a document another text of equal length, which no listing shows.

    Documents with a separator are excluded: the engine's certificate identifies its sample by names and sizes and
    counts documents by class, so a build from scratch would count a document of another class differently.
    """
    path = corpus.some_file(".jsonl")
    documents = corpus.state.files[path].documents
    at = corpus.rng.randrange(len(documents))
    name, text, remark = documents[at]
    if SEPARATORS[0] not in text:
        documents[at] = (name, text[::-1] if text[::-1] != text else "x" * len(text), remark)
    yield _edited(corpus, path, "turned a text round")


def other_id(corpus: Corpus) -> Steps:
    """Give a document another id and the same text."""
    path = corpus.some_file()
    documents = corpus.state.files[path].documents
    documents[0] = (corpus.document()[0], *documents[0][1:])
    yield _edited(corpus, path, "another id")


def unused_field(corpus: Corpus) -> Steps:
    """Change the value of a field that the dataset does not use."""
    path = corpus.some_file()
    documents = corpus.state.files[path].documents
    documents[0] = (*documents[0][:2], documents[0][2] + " indeed")
    yield _edited(corpus, path, "another remark")


def reformat(corpus: Corpus) -> Steps:
    """Write the same documents with other spaces."""
    path = corpus.some_file()
    corpus.state.files[path].spaced ^= True
    yield _edited(corpus, path, "other spaces")


def recompress(corpus: Corpus) -> Steps:
    """Compress the same bytes differently."""
    path = corpus.some_file(".zst")
    corpus.state.files[path].compressed += 1
    yield _edited(corpus, path, "compressed again")


def add(corpus: Corpus) -> Steps:
    """Add a new file."""
    path = corpus.new_path(corpus.rng.choice(SPLITS))
    corpus.write(path, File([corpus.document() for _ in range(corpus.rng.randint(1, 4))]))
    yield _files_changed(corpus, f"added {path}", "1 file added", [path])


def remove(corpus: Corpus) -> Steps:
    """Remove a file, and with the last file its shard."""
    path = corpus.spare_file()
    corpus.delete(path)
    yield _files_changed(corpus, f"removed {path}", "1 file removed", [path])


def rename(corpus: Corpus) -> Steps:
    """Rename a file within its split."""
    old = corpus.spare_file()
    split, suffix = old.split("/")[0], old.partition(".")[2]
    file, new = corpus.delete(old), corpus.new_path(split).partition(".")[0] + f".{suffix}"
    corpus.write(new, file)
    yield _files_changed(corpus, f"renamed {old} to {new}", "1 file added, 1 file removed", [old, new])


def touch(corpus: Corpus) -> Steps:
    """Change the modification time of a file, or of all files."""
    paths = sorted(corpus.state.files)
    for path in paths if corpus.rng.random() < 0.3 else [corpus.some_file()]:
        corpus.touch(path)
    yield Step("touched")


def moved_readme(corpus: Corpus) -> Steps:
    """Move the branch, with a change only in its README."""
    corpus.state.moves += 1
    yield _files_changed(corpus, "moved the branch, README only", "the revision moved", [])


def moved_file(corpus: Corpus) -> Steps:
    """Move the branch, with a change in one file."""
    corpus.state.moves += 1
    yield from edit(corpus)


def force_pushed(corpus: Corpus) -> Steps:
    """Replace the history of the branch: its commits disappear, and one file changes."""
    assert corpus.hub is not None
    corpus.state.moves += 1
    gone = list(corpus.hub.commits)
    path = corpus.some_file()
    corpus.state.files[path].spaced ^= True
    step = _edited(corpus, path, "force-pushed; other spaces")
    for commit in gone:
        if commit != corpus.hub.commit:
            del corpus.hub.commits[commit]
    yield step


def retract(corpus: Corpus) -> Steps:
    """Retract one to three documents by id or row, occasionally including a missing one."""
    state = corpus.state
    there = sorted(i for f in state.files.values() for i, *_ in f.documents if i not in state.retracted)
    chosen = corpus.rng.sample(there, corpus.rng.randint(1, 3))
    given = [_row(corpus, one) if corpus.rng.random() < 0.5 else one for one in chosen]
    if corpus.rng.random() < 0.2:
        given.append(f"unknown{corpus.rng.randrange(10**6)}")
    ids = corpus.folder / "ids"
    ids.write_text("".join(f"{one}\n" for one in given))
    state.retracted |= set(chosen)
    told = ("settings changed", ("retracted was ",))
    commands = [["retract", "--ids", str(ids), "--dry-run"], ["retract", "--ids", str(ids)]]
    yield Step(f"retracted {given}", {"token_bins/": told} | _chosen(corpus), commands=commands)


def _row(corpus: Corpus, wanted: str) -> str:
    for path, file in corpus.state.files.items():
        for row, (one, *_) in enumerate(file.documents, 1):
            if one == wanted:
                return f"{path}:{row}"
    raise AssertionError(wanted)


def revert_progress(corpus: Corpus) -> Steps:
    """Remove a line from the retraction list, or add one if the list is empty."""
    lines = corpus.list.read_text().splitlines(keepends=True) if corpus.list.exists() else []
    if not lines:
        yield from retract(corpus)
        return
    gone = lines.pop(corpus.rng.randrange(len(lines)))
    corpus.list.write_text("".join(lines))
    corpus.state.retracted.discard(json.loads(gone).get("id", ""))
    because = {"token_bins/": ("settings changed", ("retracted was ",))}
    yield Step(f"took back {gone.strip()}", because | _chosen(corpus))


def renamed_rule(corpus: Corpus) -> Steps:
    """Rename a rule that drops the same documents: their reason changes, and nothing is tokenized again."""
    ((name, rule),) = corpus.attributes()["drop"].items()
    name = "lengthy" if name == "long" else "long"
    corpus.state.settings["drop"] = {name: rule}
    corpus.declare()
    yield Step(f"the rule is called {name}", dict.fromkeys(("selection/", "duplicates"), ("", ())))


def other_threshold(corpus: Corpus) -> Steps:
    """Make the rule drop more documents, or the same as before."""
    settings = corpus.state.settings
    if settings.pop("drop", None) is None:
        settings["drop"] = {"long": "characters > 420"}
    corpus.declare()
    yield Step("another threshold", _chosen(corpus))


def prune(_corpus: Corpus) -> Steps:
    """Prune obsolete artifacts."""
    yield Step("pruned", commands=[["prune", "--yes"]])


def _turns(name: str) -> Callable[[Corpus], Steps]:
    """Return a change of a key to its other value, and back at once or in a later round."""

    def turn(corpus: Corpus) -> Steps:
        settings, key = corpus.state.settings, keys(corpus)[name]
        if key.unlists:
            corpus.list.unlink(missing_ok=True)
            corpus.state.retracted.clear()
        if name in settings:
            yield _turned_back(corpus, name, key)
            return
        settings |= {one: str(value()) if callable(value) else value for one, value in key.turned.items()}
        corpus.declare()
        if "sensitive" in settings:
            close(corpus.root / corpus.name)
        now = settings.get(name, ", ".join(f"{one} {settings[one]!r}" for one in key.turned))
        yield Step(f"{name} is {now!r}", _of_key(name, key) | _chosen(corpus))
        if key.back or corpus.rng.random() < 0.3:
            yield _turned_back(corpus, name, key)

    return turn


def close(folder: Path) -> None:
    """Make everything private that was built before the dataset was declared sensitive, as a run demands."""
    for path, mode in list(list_open_to_others(folder)):
        path.chmod(mode & ~OTHERS)


def _turned_back(corpus: Corpus, name: str, key: Key) -> Step:
    for one in key.turned:
        del corpus.state.settings[one]
    corpus.declare()
    commands = [["prune", "--yes"]] if key.prunes else []
    return Step(f"{name} is what it was", _of_key(name, key) | _chosen(corpus), commands=commands)


def _of_key(name: str, key: Key) -> dict[str, tuple[str, tuple[str, ...]]]:
    kind, part = key.told
    told = (part,) if part else (f"{name.rpartition('.')[2]} was ",) if kind == "settings changed" else ()
    return dict.fromkeys(key.touches, (kind, told))


def _damage(corpus: Corpus, path: Path, how: str) -> Step:
    """Change one file of an artifact in place, truncate, replace or delete it, or add another file next to it."""
    below = corpus.root / corpus.name
    same = {path}
    if how in ("in place", "cut"):
        node = path.stat().st_ino
        same = {p for p in below.rglob("*") if p.is_file() and p.stat().st_ino == node}
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
    damaged = {_artifact(p, below) for p in same}
    lost = how == "gone" and path.name == NAME and path.parent == below / _artifact(path, below)
    because = dict.fromkeys(damaged, ("missing", ("missing",)) if lost else ("damaged", ("damaged: ",)))
    if not lost:
        because[_artifact(path, below)] = ("damaged", (named,))
    return Step(f"{how}: {path.relative_to(below)}", because, damaged)


def _artifact(path: Path, below: Path) -> str:
    """Return the artifact to which a file belongs, in whose folder a view may have its own folders."""
    parts = path.relative_to(below).parts[:-1]
    depth = 1 if parts[0].endswith("_bins") and parts[0] not in ("token_bins", "combined_bins") else len(parts)
    return "/".join(parts[:depth])


def _some_product(corpus: Corpus, artifact: str) -> Path:
    """Return a file of an artifact, chosen by file name first, so that receipts and small files are chosen as often as
    others.
    """
    below, plan = corpus.root / corpus.name, corpus.plan()
    views = [below / f"{view}_bins" for view in corpus.attributes()["views"]]
    files = [
        path
        for folder in (views if artifact == "views" else [below / artifact])
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and ".staging" not in path.parts  # exclude lock files of builds
        and (artifact not in ("snapshot", "token_bins", *_SHARDED) or path.parent.name in plan)
    ]
    name = corpus.rng.choice(sorted({path.name for path in files}))
    return corpus.rng.choice([path for path in files if path.name == name])


def _damages(artifact: str) -> Callable[[Corpus], Steps]:
    def damage(corpus: Corpus) -> Steps:
        how = corpus.rng.choice(["in place", "cut", "replaced", "gone", "extra"])
        yield _damage(corpus, _some_product(corpus, artifact), how)

    return damage


def _damages_unseen(artifact: str) -> Callable[[Corpus], Steps]:
    """Return damage under `verify: size`, then an edit that makes checks run, then a full verification."""

    def damage(corpus: Corpus) -> Steps:
        corpus.state.settings["verify"] = "size"
        corpus.declare()
        yield Step("verify: size")
        how = corpus.rng.choice(["in place", "cut", "gone"])
        what = _damage(corpus, _some_product(corpus, artifact), how).what
        yield Step(f"verify: size, {what}", unseen=True)
        step = next(edit(corpus))
        yield Step(f"verify: size, {what}, then {step.what}", unseen=True)
        del corpus.state.settings["verify"]
        corpus.declare()
        yield Step(f"verify: full after {what}", unseen=True)

    return damage


_SHARDED = ("tags", "signatures", "selection", "documents")
_KEPT = ("manifest", "engine_certificate", "snapshot", "token_bins", "combined_bins", "views", "data_card")


def kinds(corpus: Corpus) -> dict[str, Callable[[Corpus], Steps]]:
    """Return name → the change, for all changes that are possible for this corpus."""
    damaged = (*_KEPT, *_SHARDED, "duplicates") if corpus.selects else _KEPT
    on_hub = {"hub: README": moved_readme, "hub: one file": moved_file, "hub: force-pushed": force_pushed}
    return {
        "edit": edit,
        "edit: same size": same_size,
        "edit: id": other_id,
        "edit: unused field": unused_field,
        "reformat": reformat,
        "recompress": recompress,
        "add": add,
        "remove": remove,
        "rename": rename,
        "touch": touch,
        "retract": retract,
        "take back": revert_progress,
        "prune": prune,
        **(on_hub if corpus.hub is not None else {}),
        **({"rule: name": renamed_rule, "rule: threshold": other_threshold} if corpus.selects else {}),
        **{f"damage: {name}": _damages(name) for name in damaged},
        **{f"unseen: {name}": _damages_unseen(name) for name in _KEPT},
        **{f"key: {name}": _turns(name) for name in keys(corpus)},
    }
