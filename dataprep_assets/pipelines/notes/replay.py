"""Builds a combination of datasets, as `notes_replay_combined`: their shards under one count, not another byte written.

==============  =====================================================================================================
mode            order of the shards
==============  =====================================================================================================
concat          sources as declared, each in its own order: what the seed's `rename_records_combined` does
interleave      each source's shards shuffled (seeded) and spread evenly by rows over the whole
weighted        shards repeated or left out so that rows come to the declared shares, then interleaved
virtual         none: `grain_mixture.json` (ArrayRecord) or `builder_directories.json` (TFRecord) for a loader to mix
==============  =====================================================================================================

Every source must have the same columns, row length, tokenizer, pad id and layout. `provenance.json` says for every
shard which source dataset, partition and file it is, so that `replay` can be left out again. A shard that two sources
share is refused: it would be there twice without anyone having asked.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.errors import ConfigError, IntegrityError, MissingArtifactError
from dataprep_assets.formats.example import Column
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore, Part
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.notes.cohort_shards import SHARED_FACTS
from dataprep_assets.pipelines.notes.declaration import ReplayDeclaration, ReplaySource
from dataprep_assets.pipelines.notes.tfds_directory import (
    NAMES,
    PROVENANCE,
    Directory,
    ShardOrigin,
    link_shards,
    read_provenance,
    write_provenance,
)

__all__ = ["BUILDER_DIRECTORIES", "GRAIN_MIXTURE", "build_replay", "interleaved", "replay_key", "weighted"]

VERSION = 1
GRAIN_MIXTURE = "grain_mixture.json"
BUILDER_DIRECTORIES = "builder_directories.json"
_EQUAL = ("columns", "row_length", "pad_id", "layout", "format")


@dataclass(frozen=True, kw_only=True)
class _Source:
    declared: ReplaySource
    artifact: Artifact
    receipt: Receipt

    @property
    def tokenizer(self) -> str:
        return self.receipt.inputs["tokenizer"]


def _sources(replay: ReplayDeclaration, store: ArtifactStore) -> list[_Source]:
    """The directories to combine, in declared order.

    MissingArtifactError for one that is not there, ConfigError for one without a declared split, IntegrityError naming
    what is not the same for all.
    """
    artifacts = [Artifact(dataset=source.dataset, name=NAMES[replay.format]) for source in replay.sources]
    receipts = store.receipts(artifacts)
    if missing := [str(a) for a, receipt in zip(artifacts, receipts, strict=True) if receipt is None]:
        raise MissingArtifactError(f"{replay.dataset}: not there: {', '.join(missing)}. Materialize them first")
    found = [
        _Source(declared=declared, artifact=artifact, receipt=receipt)
        for declared, artifact, receipt in zip(replay.sources, artifacts, receipts, strict=True)
        if receipt is not None
    ]
    first = found[0]
    for source in found:
        if source.receipt.facts.get("mode") == "virtual":
            raise ConfigError(f"{replay.dataset}: {source.artifact} is virtual: it has no shards to combine")
        wrong = [name for name in _EQUAL if source.receipt.facts[name] != first.receipt.facts[name]]
        wrong += ["tokenizer"] if source.tokenizer != first.tokenizer else []
        if wrong:
            shown = "; ".join(f"{name} {_value(source, name)}, not {_value(first, name)}" for name in wrong)
            raise IntegrityError(
                f"{replay.dataset}: {source.artifact} cannot be combined with {first.artifact}: it has {shown}. "
                "Build all sources with the same settings"
            )
        if lacking := [split for split in replay.splits if split not in source.receipt.facts["splits"]]:
            raise ConfigError(f"{replay.dataset}: {source.artifact} has no split {', '.join(lacking)}")
    return found


def _value(source: _Source, name: str) -> str:
    return source.tokenizer[:12] if name == "tokenizer" else str(source.receipt.facts[name])


def replay_key(replay: ReplayDeclaration, store: ArtifactStore) -> str:
    """The key of the combination of the sources as they are now; raises as `build_replay` does."""
    return _key(replay, store, _sources(replay, store))


def _key(replay: ReplayDeclaration, store: ArtifactStore, sources: Sequence[_Source]) -> str:
    declared = replay.model_dump(mode="json", exclude={"owners", "storage", "verify", "workers", "sensitive"})
    # A virtual combination is made of places, so these decide its bytes.
    places = [store.location(source.artifact) for source in sources] if replay.mode == "virtual" else []
    return digest_value(
        ["notes_replay", VERSION, declared, [[s.receipt.key, s.receipt.content] for s in sources], places]
    )


def build_replay(replay: ReplayDeclaration, store: ArtifactStore) -> tuple[Receipt, bool]:
    """Have the combination: its receipt, and whether the one that was there is current.

    Errors of missing or unequal sources name them; ConfigError when whole shards cannot come within the tolerance of
    the declared weights; IntegrityError when two sources share a shard.
    """
    sources = _sources(replay, store)

    def write(staged: Path) -> Written:
        splits = {split: [_shards(store, source, split) for source in sources] for split in replay.splits}
        _require_distinct(replay, splits)
        return (_write_virtual if replay.mode == "virtual" else _write_shards)(replay, store, sources, splits, staged)

    artifact = replay.artifact(NAMES[replay.format])
    return ensure(artifact, store, _key(replay, store, sources), write, replay.verify)


Shards = list[ShardOrigin]


def _shards(store: ArtifactStore, source: _Source, split: str) -> Shards:
    """A source's shards of a split, in its order, as parts of its artifact."""
    receipt = source.receipt
    provenance = read_provenance(store.local(source.artifact, [PROVENANCE]) / PROVENANCE)
    return [
        replace(origin, part=Part(source.artifact, receipt.file(f"{receipt.facts['directory']}/{name}")))
        for name, origin in provenance[split]
    ]


def _require_distinct(replay: ReplayDeclaration, splits: dict[str, list[Shards]]) -> None:
    of: dict[str, int] = {}
    for shards in splits.values():
        for source, origins in enumerate(shards):
            for digest in {origin.sha256 for origin in origins}:
                if of.setdefault(digest, source) != source:
                    names = [replay.sources[of[digest]].dataset, replay.sources[source].dataset]
                    raise IntegrityError(
                        f"{replay.dataset}: {' and '.join(names)} share a shard. Leave one of them out, or "
                        "weigh it more in mode `weighted`"
                    )


def _write_shards(
    replay: ReplayDeclaration,
    store: ArtifactStore,
    sources: Sequence[_Source],
    splits: dict[str, list[Shards]],
    staged: Path,
) -> Written:
    first = sources[0].receipt
    chosen, shares = {}, {}
    for split, shards in splits.items():
        ordered, shares[split] = _ordered(replay, split, shards)
        chosen[split] = list(_counted(ordered))
    directory = Directory(
        dataset=replay.dataset,
        description=replay.description,
        version=replay.tfds_version,
        format=replay.format,
        columns=tuple(Column(name=name, length=first.facts["row_length"]) for name in first.facts["columns"]),
        splits=chosen,
    )
    joined = link_shards(staged, store, directory)
    rows = sum(split.rows for split in directory.info().splits)
    return Written(
        inputs=_inputs(sources),
        facts=_facts(replay, sources) | directory.facts() | {"shares": shares},
        ledger=Ledger(rows_in=rows, documents=rows),
        joined=joined,
    )


def _inputs(sources: Sequence[_Source]) -> dict[str, str]:
    return {s.declared.dataset: s.receipt.content for s in sources} | {"tokenizer": sources[0].tokenizer}


def _facts(replay: ReplayDeclaration, sources: Sequence[_Source]) -> dict[str, Any]:
    shared = {name: sources[0].receipt.facts[name] for name in SHARED_FACTS}
    return shared | {"mode": replay.mode, "sources": [source.declared.dataset for source in sources]}


def _ordered(replay: ReplayDeclaration, split: str, shards: list[Shards]) -> tuple[Shards, dict[str, Any]]:
    """The shards of a split in their order, and each source's rows and shares."""
    names = [source.dataset for source in replay.sources]
    whole = sum(_rows(s) for s in shards)
    wanted = [_rows(s) / whole for s in shards]
    if replay.mode == "weighted":
        weights = [source.weight or 0.0 for source in replay.sources]
        wanted = [weight / sum(weights) for weight in weights]
    if replay.mode != "concat":
        shards = [_shuffled(s, [replay.seed, name, split]) for s, name in zip(shards, names, strict=True)]
    if replay.mode == "weighted":
        shards = weighted(shards, wanted)
    total = sum(_rows(s) for s in shards)
    shares = {
        name: {"rows": _rows(s), "share": round(_rows(s) / total, 6), "wanted": round(want, 6)}
        for name, s, want in zip(names, shards, wanted, strict=True)
    }
    for name, s, want in zip(names, shards, wanted, strict=True):
        if not s or abs(_rows(s) / total - want) > replay.tolerance:
            raise ConfigError(
                f"{replay.dataset}: split {split}: whole shards of {name} come to a share of {_rows(s) / total:.4f}, "
                f"wanted {want:.4f}, tolerance {replay.tolerance}. Make its shards smaller (rows_per_shard), or raise "
                "the tolerance"
            )
    ordered = [origin for s in shards for origin in s] if replay.mode == "concat" else interleaved(shards)
    return ordered, shares


def _rows(shards: Shards) -> int:
    return sum(origin.rows for origin in shards)


def _shuffled(shards: Shards, seed: Sequence[Any]) -> Shards:
    # NumPy promises the raw stream of PCG64 for ever, but not the results of Generator.permutation.
    draws = np.random.PCG64(int(digest_value(list(seed))[:16], 16)).random_raw(len(shards))
    return [shards[at] for at in np.argsort(draws, kind="stable").tolist()]


def weighted(shards: Sequence[Shards], wanted: Sequence[float]) -> list[Shards]:
    """Each source's shards, repeated or left out in their order, so that rows come near the wanted shares.

    The total stays near that of all sources; `wanted` are shares of 1. Only whole shards are taken.
    """
    total = sum(map(_rows, shards))
    return [_about(source, want * total) for source, want in zip(shards, wanted, strict=True)]


def _about(shards: Shards, rows: float) -> Shards:
    whole = int(rows // _rows(shards))
    chosen = list(shards) * whole
    left = rows - whole * _rows(shards)
    for origin in shards:
        if abs(left - origin.rows) >= left:
            continue  # a shorter one may still bring it nearer
        chosen.append(origin)
        left -= origin.rows
        if left <= 0:
            break
    return chosen


def interleaved(shards: Sequence[Shards]) -> Shards:
    """The shards of all sources, each source's in their order and spread evenly by rows over the whole."""
    placed = []
    for source, origins in enumerate(shards):
        total, before = _rows(origins), 0
        for at, origin in enumerate(origins):
            placed.append(((2 * before + origin.rows) / (2 * total), source, at, origin))
            before += origin.rows
    return [origin for *_, origin in sorted(placed, key=lambda entry: entry[:3])]


def _counted(shards: Shards) -> Iterator[ShardOrigin]:
    """The same, each with the number of times that it was there before."""
    seen: dict[str, int] = {}
    for origin in shards:
        repeat = seen.get(origin.sha256, 0)
        seen[origin.sha256] = repeat + 1
        yield replace(origin, repeat=repeat)


def _write_virtual(
    replay: ReplayDeclaration,
    store: ArtifactStore,
    sources: Sequence[_Source],
    splits: dict[str, list[Shards]],
    staged: Path,
) -> Written:
    places = [f"{store.location(source.artifact)}/{source.receipt.facts['directory']}" for source in sources]
    for split, shards in splits.items():
        weights = [s.weight if s.weight is not None else _rows(o) for s, o in zip(replay.sources, shards, strict=True)]
        if replay.format == "array_record" and split == replay.splits[0]:
            mixture = {
                source.declared.dataset: {
                    "path": f"{place}/{source.declared.dataset}-{split}.array_record-*",
                    "weight": weight / sum(weights),
                }
                for source, place, weight in zip(sources, places, weights, strict=True)
            }
            _write_json(staged / GRAIN_MIXTURE, mixture)
    if replay.format == "tfrecord":
        _write_json(staged / BUILDER_DIRECTORIES, places)
    names = {
        split: [
            origin.to_json(Path(origin.part.record.path).name)
            for o in shards
            for origin in o
            if origin.part is not None
        ]
        for split, shards in splits.items()
    }
    write_provenance(staged, names)
    rows = sum(_rows(o) for shards in splits.values() for o in shards)
    totals = {
        split: {"rows": sum(map(_rows, shards)), "shards": sum(map(len, shards))} for split, shards in splits.items()
    }
    return Written(
        inputs=_inputs(sources),
        facts=_facts(replay, sources) | {"format": replay.format, "splits": totals},
        ledger=Ledger(rows_in=rows, documents=rows),
    )


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
