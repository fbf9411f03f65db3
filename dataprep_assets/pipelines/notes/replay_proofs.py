"""Proofs on a combination of datasets: its own files, and the sources that its shards come from.

Entry points: `COMBINED_PROOFS`, `VIRTUAL_PROOFS`, `prove_combined`. What holds for every directory is in
`tfds_metadata_proofs`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.bounds import json_of
from dataprep_assets.errors import IntegrityError
from dataprep_assets.formats.example import FeatureColumn
from dataprep_assets.graph.finding import Finding, Row, judged, name_of, verdict
from dataprep_assets.graph.spec import Proof
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.notes.linked_directory import (
    DIRECTORIES,
    CombinedFacts,
    DirectoryFacts,
    stored_length,
)
from dataprep_assets.pipelines.notes.packed_files import (
    PACKED_COHORTS,
    PATIENTS,
    PackedCohortFacts,
    in_split,
    read_patients,
)
from dataprep_assets.pipelines.notes.privacy import unquoting
from dataprep_assets.pipelines.notes.provenance import PROVENANCE, ShardOrigin, read_provenance
from dataprep_assets.pipelines.notes.replay_declaration import ReplayDeclaration
from dataprep_assets.pipelines.notes.tfds_metadata_proofs import (
    METADATA_PROOFS,
    REBUILD,
    REBUILD_SOURCES,
    TFDS_READS,
    TfdsDirectory,
    files_intact,
    metadata_findings,
    tfds_reads,
)
from dataprep_assets.pipelines.notes.virtual_mixture import (
    BUILDER_DIRECTORIES,
    GRAIN_MIXTURE,
    HF_CARD,
    for_hf,
    read_hf_card,
)
from dataprep_assets.plural import count_of

_OF_SOURCES = (
    Proof("sources_equal", "Columns, row length, pad id, layout and tokenizer are the same in all sources."),
    Proof(
        "provenance_complete",
        "Every shard has its entry, and is byte for byte the source's; none is there unasked twice.",
    ),
    Proof("shares_achieved", "Each source's share of the rows, recounted, is the declared one within the tolerance."),
    Proof("splits_disjoint", "No patient of any source is in two splits of the combination."),
)
COMBINED_PROOFS = (*METADATA_PROOFS, *_OF_SOURCES, TFDS_READS)
VIRTUAL_PROOFS = (
    next(proof for proof in METADATA_PROOFS if proof.name == "files_intact"),
    Proof("virtual_files", "The file for the loader names every source where it is, with shares that add up to 1."),
    *_OF_SOURCES,
)
"""The proofs of a virtual combination, which has no shards."""


def prove_combined(replay: ReplayDeclaration, store: ArtifactStore) -> Iterator[tuple[str, Finding]]:
    """Every proof of a combination, by name; raises DataprepError when a receipt cannot be read at all."""
    directory = TfdsDirectory.open(replay, store, replay.format)
    sources = {s.dataset: Artifact(dataset=s.dataset, name=DIRECTORIES[replay.format]) for s in replay.sources}
    virtual = replay.mode == "virtual"
    with unquoting(replay.dataset):
        receipts = {name: store.require(source) for name, source in sources.items()}
        if virtual:
            yield "files_intact", files_intact(directory)
            locations = {name: store.location(source) for name, source in sources.items()}
            cards = _card(directory, store) if for_hf(replay, DirectoryFacts.of(directory.receipt).pipeline) else ()
            yield "virtual_files", virtual_files(directory, locations, receipts, cards)
        else:
            facts = DirectoryFacts.of(directory.receipt)
            columns = [FeatureColumn(name=name, length=stored_length(facts)) for name in facts.columns]
            yield from metadata_findings(directory, columns)
        yield "sources_equal", sources_equal(directory, receipts)
        shards = shards_of(replay, store, sources)
        yield "provenance_complete", provenance_complete(directory, replay, receipts, shards)
        yield "shares_achieved", shares_achieved(directory, replay, shards)
        yield "splits_disjoint", splits_disjoint(directory, store)
        if not virtual:
            yield "tfds_reads", tfds_reads(directory)


@judged
def sources_equal(directory: TfdsDirectory, sources: Mapping[str, Receipt]) -> Finding:
    """The sources agree in everything that rows that are trained together must share."""
    own = _settings(directory.receipt)
    defects = []
    for dataset, receipt in sources.items():
        has = _settings(receipt)
        defects += [f"{dataset} has another {name}" for name in own if has[name] != own[name]]
    table: list[Row] = [{"what": name, "value": str(value)} for name, value in own.items()]
    return verdict(
        (f"{name_of(directory.receipt)}: {d}" for d in defects),
        f"{len(sources)} sources are equal in {', '.join(own)}.",
        "Build all sources with the same settings",
        facts={"sources": len(sources)},
        table=table if not defects else None,
    )


def _settings(receipt: Receipt) -> dict[str, Any]:
    facts = DirectoryFacts.of(receipt)
    names = ("columns", "row_length", "pad_id", "layout", "separator_id", "bos_id", "vocab_size")
    return {name: getattr(facts, name) for name in names} | {"tokenizer": receipt.inputs.get("tokenizer")}


@dataclass(frozen=True, kw_only=True)
class SourceShards:
    """The shards of all sources: SHA-256 → its source and its origins there, and how many times it occurs.

    Two shards of a source may have the same bytes, if rows are short.
    """

    known: Mapping[str, tuple[str, Sequence[ShardOrigin]]]
    expected: Counter[str]

    def source(self, origin: ShardOrigin) -> str:
        """The declared source of a shard; the dataset of a combination's shard is the one that it combined."""
        return self.known[origin.sha256][0] if origin.sha256 in self.known else origin.dataset


def shards_of(replay: ReplayDeclaration, store: ArtifactStore, sources: Mapping[str, Artifact]) -> SourceShards:
    """The shards of the splits that ``replay`` declares, from the provenance in ``store`` of all ``sources``.

    ``sources`` is dataset → its directory.
    """
    known: dict[str, tuple[str, list[ShardOrigin]]] = {}
    expected: Counter[str] = Counter()
    for dataset, artifact in sources.items():
        provenance = read_provenance(store.local(artifact, [PROVENANCE]) / PROVENANCE)
        for split in replay.splits:
            for _, origin in provenance.get(split, ()):
                known.setdefault(origin.sha256, (dataset, []))[1].append(origin)
                expected[origin.sha256] += 1
    return SourceShards(known=known, expected=expected)


@judged
def provenance_complete(
    directory: TfdsDirectory, replay: ReplayDeclaration, sources: Mapping[str, Receipt], shards: SourceShards
) -> Finding:
    """Every shard has its entry, the source's bytes, and the right repeat count; unless weighted, each is there once.

    ``directory`` is the combination, ``replay`` its declaration, ``sources`` dataset → receipt of its directory, and
    ``shards`` those of all sources.
    """
    receipt = directory.receipt
    defects = [
        f"{name} {'has changed since it was combined' if name in receipt.inputs else 'was not combined'}"
        for name, source in sources.items()
        if receipt.inputs.get(name) != source.content
    ]
    entries = [(split, name, origin) for split, of in directory.provenance.items() for name, origin in of]
    if replay.mode != "virtual":
        info = directory.info
        listed = [(split.name, name) for split in info.splits for name in info.shard_names(split)]
        if listed != [(split, name) for split, name, _ in entries]:
            defects.append(f"{PROVENANCE} has {len(entries)} entries, not one for each of {len(listed)} shards")
        defects += directory.miscounted
    seen: Counter[str] = Counter()
    before: Counter[tuple[str, str]] = Counter()  # in its own split, as `repeat` counts
    for split, name, origin in entries:
        earlier = before[split, origin.sha256]
        defects += [f"{name} of {split}: {d}" for d in _astray(directory, replay, shards, name, origin, earlier)]
        before[split, origin.sha256] += 1
        seen[origin.sha256] += 1
    if replay.mode != "weighted" and seen != shards.expected:
        lost, more = (seen - shards.expected).total(), (shards.expected - seen).total()
        # first, because a summary names the first defect, and others may follow from this one
        defects.insert(0, f"{more} shards of the sources are not there, {lost} are there more often than in them")
    of_source = Counter(shards.source(origin) for _, _, origin in entries)
    told = ", ".join(f"{count} of {name}" for name, count in sorted(of_source.items()))
    return verdict(
        (f"{name_of(receipt)}: {d}" for d in defects),
        f"{count_of(len(entries), 'shard')}, each one of a source: {told}.",
        REBUILD_SOURCES,
        facts={"shards": len(entries), "distinct_shards": len(seen)},
    )


def _astray(
    directory: TfdsDirectory,
    replay: ReplayDeclaration,
    shards: SourceShards,
    name: str,
    origin: ShardOrigin,
    earlier: int,
) -> Iterator[str]:
    """The defects of the entry of a shard that is `earlier` times in its split before."""
    if origin.sha256 not in shards.known:
        yield "no source has a shard of these bytes"
        return
    told = ["dataset", "partition", "source_shard", "rows"]
    if replay.mode == "virtual":  # which takes the entries of its sources as they are
        told.append("repeat")
    if not any(
        all(getattr(theirs, of) == getattr(origin, of) for of in told) for theirs in shards.known[origin.sha256][1]
    ):
        yield "its source says other rows, or another file or dataset"
    if replay.mode == "virtual":
        return
    if directory.receipt.file(f"{directory.dataset}/{directory.version}/{name}").sha256 != origin.sha256:
        yield f"not the bytes that {PROVENANCE} says"
    if origin.repeat != earlier:
        yield f"repeat {origin.repeat}, counted {earlier}"


@judged
def shares_achieved(directory: TfdsDirectory, replay: ReplayDeclaration, shards: SourceShards) -> Finding:
    """Rows of each source, recounted from the provenance of ``directory``: the share that ``replay`` wants.

    ``shards`` are those of all sources; the tolerance is the declared one.
    For the modes that mix, every prefix of the shards is also within two shards of the mix of the whole.
    """
    defects: list[str] = []
    table: list[Row] = []
    for split, entries in directory.provenance.items():
        total = sum(origin.rows for _, origin in entries)
        of_source: Counter[str] = Counter()
        for _, origin in entries:
            of_source[shards.source(origin)] += origin.rows
        wanted = _wanted(replay, of_source)
        for name, want in wanted.items():
            share = of_source[name] / total if total else 0.0
            table.append({"split": split, "source": name, "rows": of_source[name], "share": share, "wanted": want})
            if replay.mode == "weighted" and abs(share - want) > replay.tolerance:
                defects.append(f"{split}: {name} has a share of {share:.4f}, wanted {want:.4f}")
        for name, recorded in CombinedFacts.of(directory.receipt).shares.get(split, {}).items():
            if recorded.rows != of_source[name]:
                defects.append(f"{split}: {name} has {of_source[name]} rows, the receipt says {recorded.rows}")
        if replay.mode in ("interleave", "weighted"):
            defects += _unmixed(split, [(shards.source(o), o.rows) for _, o in entries], of_source)
    return verdict(
        (f"{name_of(directory.receipt)}: {d}" for d in defects),
        "; ".join(f"{row['source']} {row['share']:.4f} of {row['split']}" for row in table) + ".",
        REBUILD,
        facts={"tolerance": str(replay.tolerance)},
        table=table if not defects else None,
    )


def _wanted(replay: ReplayDeclaration, rows: Mapping[str, int]) -> Mapping[str, float]:
    weights = {s.dataset: s.weight if s.weight is not None else float(rows[s.dataset]) for s in replay.sources}
    total = sum(weights.values()) or 1.0
    return {name: weight / total for name, weight in weights.items()}


def _unmixed(split: str, shards: Sequence[tuple[str, int]], rows: Mapping[str, int]) -> Iterator[str]:
    total = sum(rows.values())
    for name in rows:
        own = np.cumsum([count if of == name else 0 for of, count in shards])
        wanted = np.cumsum([count for _, count in shards]) * rows[name] / total
        furthest = float(np.abs(own - wanted).max())
        if furthest > 2 * max(count for _, count in shards):
            yield f"{split}: a first part has {furthest:.0f} rows of {name} more or fewer than its share"


@judged
def splits_disjoint(directory: TfdsDirectory, store: ArtifactStore) -> Finding:
    """No patient of one split of ``directory``, of whichever source, is in another split.

    ``store`` holds the packed cohorts. Digests under several patient keys cannot be compared: that is a warning.
    """
    splits = list(directory.provenance)
    digests, keys = [], set()
    for split in splits:
        found = [np.zeros(0, "V16")]
        for dataset, month in sorted({(origin.dataset, origin.partition) for _, origin in directory.provenance[split]}):
            cohort = Artifact(dataset=dataset, name=PACKED_COHORTS, partition=month)
            receipt = store.require(cohort)
            keys.add(receipt.recipe.get("sources", {}).get("patient_key"))
            found.append(_patients(store, cohort, receipt, split))
        digests.append(np.unique(np.concatenate(found)))
    _, counts = np.unique(np.concatenate(digests), return_counts=True)
    leaked = int(np.count_nonzero(counts > 1))
    where = name_of(directory.receipt)
    todo = "Use one `patient_key` and the same `splits` for all sources, and build them again"
    if not leaked and len(keys) > 1 and len(splits) > 1:
        unknown = "its sources have different patient keys, so whether a patient is in several splits cannot be told"
        return verdict([f"{where}: {unknown}"], "", todo, warning=True)
    defects = [f"{where}: {leaked} patients are in several of the splits {', '.join(splits)}"] if leaked else []
    return verdict(
        defects,
        f"{int(counts.size)} patients, none in several of {len(splits)} splits.",
        todo,
        facts={"patients": int(counts.size), "in_several_splits": leaked},
    )


def _patients(store: ArtifactStore, cohort: Artifact, receipt: Receipt, split: str) -> Any:
    path = in_split(list(PackedCohortFacts.of(receipt).splits), split, PATIENTS)
    return read_patients(store.local(cohort, [path]) / path)


@judged
def virtual_files(
    directory: TfdsDirectory,
    locations: Mapping[str, str],
    sources: Mapping[str, Receipt],
    of_card: Iterable[str] = (),
) -> Finding:
    """The files that tell a loader how to mix: every source once, at its path, with shares that add up to 1.

    ``directory`` is the combination, ``locations`` dataset → path or URL of its directory's artifact, ``sources``
    dataset → receipt of it. ``of_card`` are the defects of the list of JSON lines, if there is one.
    """
    wanted = {name: f"{location}/{DirectoryFacts.of(sources[name]).directory}" for name, location in locations.items()}
    if directory.format == "tfrecord":
        found = _json(directory.artifact / BUILDER_DIRECTORIES)
        wrong = f"{BUILDER_DIRECTORIES} does not name the sources' locations"
        defects = [] if found == list(wanted.values()) else [wrong]
    else:
        defects = list(_mixture(_json(directory.artifact / GRAIN_MIXTURE), wanted))
    defects += of_card
    return verdict(
        (f"{name_of(directory.receipt)}: {d}" for d in defects),
        f"{len(wanted)} sources, each at its location.",
        REBUILD,
        facts={"sources": len(wanted)},
    )


def _json(path: Path) -> Any:
    try:
        return json_of(path.read_bytes())
    except ValueError:
        raise IntegrityError(f"{path}: not a JSON file. {REBUILD}") from None


def _card(directory: TfdsDirectory, store: ArtifactStore) -> Iterator[str]:
    """The defects of the list of JSON lines in the card of a combination for hf: each cohort's rows, once."""
    try:
        card = read_hf_card(directory.artifact / HF_CARD)
    except (OSError, ValueError, KeyError, TypeError):
        yield f"{HF_CARD} does not list JSON lines"
        return
    if card.keys() != directory.provenance.keys():
        yield f"{HF_CARD} has the splits {', '.join(card)}"
    for split, entries in directory.provenance.items():
        rows: Counter[tuple[str, str]] = Counter()
        for _, origin in entries:
            rows[origin.dataset, origin.partition] += origin.rows
        cohorts = [Artifact(dataset=dataset, name=PACKED_COHORTS, partition=month) for dataset, month in rows]
        listed = card.get(split, [])
        if len(listed) != len(cohorts) or any(
            not path.startswith(f"{store.location(cohort)}/") for path, cohort in zip(listed, cohorts, strict=False)
        ):
            yield f"{HF_CARD}: {split} does not list the JSON lines of every cohort once, at their locations"
        for cohort, wanted in zip(cohorts, rows.values(), strict=True):
            found = PackedCohortFacts.of(store.require(cohort)).splits[split].rows
            if found != wanted:
                yield f"{cohort} has {found} rows of {split} as JSON lines, {wanted} in shards"


def _mixture(found: Any, wanted: Mapping[str, str]) -> Iterable[str]:
    if not isinstance(found, dict) or found.keys() != wanted.keys():
        yield f"{GRAIN_MIXTURE} names {sorted(found) if isinstance(found, dict) else 'none'}, not {sorted(wanted)}"
        return
    total = 0.0
    for name, location in wanted.items():
        of = found[name] if isinstance(found[name], dict) else {}
        if not str(of.get("path")).startswith(f"{location}/{name}-"):
            yield f"{GRAIN_MIXTURE}: {name} is not at its location"
        total += weight if isinstance(weight := of.get("weight"), int | float) else 0.0
    if abs(total - 1) > 1e-9:
        yield f"{GRAIN_MIXTURE}: the weights do not add up to 1"
