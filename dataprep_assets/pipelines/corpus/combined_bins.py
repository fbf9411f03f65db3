"""Combined bins (`<dataset>/combined_bins_<split>`): the shards of a split, concatenated in manifest order.

Missing or damaged shards are an error. The store joins the token files: the kernel does it in a folder, the server in
a bucket. One pass over the result computes the digest of the file and of each shard's range. Each range must match the
shard's receipt.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.retractions import are_listed, retracted_ids
from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure
from dataprep_assets.engine.artifact.metadata_values import Shown
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest
from dataprep_assets.engine.checks.check import Check, Finding, OpenedArtifact, first_of, ledger_of, name_of, verdict
from dataprep_assets.engine.checks.verdicts import WholeChecks
from dataprep_assets.engine.trace.place import DocumentSpan, Locate, TokenRange
from dataprep_assets.errors import DataprepError, IntegrityError, MissingArtifactError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.execution.progress import Progress
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.formats.document_index import IDS, open_ids
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle, ArtifactStore, FileRef
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import Manifest, load_manifest
from dataprep_assets.pipelines.corpus.source.snapshot import SNAPSHOT
from dataprep_assets.pipelines.corpus.token_bins import meta_of
from dataprep_assets.planning.manifest import ManifestEntry, split_of
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.eye_test import alignment, looks_like_text, random_batches_load
from dataprep_assets.stream.retracted_documents import check_built_without
from dataprep_assets.stream.source import disk_headroom
from dataprep_assets.stream.stream_index import IndexedShard, StreamIndex
from dataprep_assets.stream.token_shard import ENDS, TOKEN_BINS, TOKENS, TokenBinsFacts
from dataprep_assets.stream.tokenizer import load_bundle
from dataprep_assets.tokenization.bundle import TokenizerBundle

_BLOCK = 4 << 20

_REBUILD = "Materialize `combined_bins` of this split again"


VERSION = 3
COMBINED_BINS = "combined_bins"


class CombinedBinsFacts(Facts):
    """Facts of combined bins: the values of `meta.pkl`, the number of shards, and the token before every document."""

    tokenizer: str
    vocab_size: int
    eos_token_id: int
    eos_token: str
    dtype: str
    tokenizer_sha256: str
    shards: int
    bos_id: int | None


def shard_receipts(
    corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest, split: str
) -> list[tuple[Artifact, Receipt]]:
    """Return every shard of a split with its receipt, in manifest order.

    Raises MissingArtifactError, with the missing shards, because a combined file must contain every shard. Raises
    IntegrityError if a shard was built from other files than the manifest lists for it.
    """
    shards = [corpus.artifact(TOKEN_BINS, partition) for partition in manifest.partitions(split)]
    receipts = store.receipts(shards)
    pairs = [(shard, receipt) for shard, receipt in zip(shards, receipts, strict=True) if receipt is not None]
    missing = [str(shard.partition) for shard, receipt in zip(shards, receipts, strict=True) if receipt is None]
    if missing:
        names = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
        raise MissingArtifactError(
            f"{corpus.dataset}/{split}: {len(missing)} of {count_of(len(shards), 'shard is', 'shards are')} missing: "
            f"{names}. Materialize these partitions of token_bins first"
        )
    for shard, receipt in pairs:
        # a shard that lost a file keeps its name, so the files are compared
        planned_files = [entry.relpath for entry in manifest.shard(str(shard.partition))]
        if [line["file"] for line in receipt.sources] != planned_files:
            raise IntegrityError(
                f"{shard}: built from other files than the current manifest has for it. Materialize this partition "
                "of snapshot and token_bins again"
            )
    _require_same_stream(corpus, split, [receipt for _, receipt in pairs])
    return pairs


def _require_same_stream(corpus: CorpusDeclaration, split: str, receipts: Sequence[Receipt]) -> None:
    pairs = [(receipt, TokenBinsFacts.of(receipt)) for receipt in receipts]
    # these settings decide how ids are read, so shards that differ in them cannot share a file
    kinds = {
        (f.dtype, str(f.separator_id), str(f.bos_id), f.special_tokens, r.inputs["tokenizer"][:12]) for r, f in pairs
    }
    if len(kinds) > 1:
        raise IntegrityError(
            f"{corpus.dataset}/{split}: its shards were built with different settings: "
            f"{', '.join(map(str, sorted(kinds)))} (dtype, separator_id, bos_id, special_tokens, tokenizer). "
            "Materialize token_bins again: only stale shards are rebuilt"
        )
    # all shards may come from the same earlier declaration, but `meta.pkl` describes the current one
    meta_values = meta_of(corpus)
    for receipt, facts in pairs:
        if (facts.dtype, receipt.inputs["tokenizer"]) != (meta_values["dtype"], meta_values["tokenizer_sha256"]):
            raise IntegrityError(
                f"{corpus.dataset}/{receipt.partition}: built with a different tokenizer or dtype than declared now. "
                "Materialize token_bins again"
            )


def _recipe(
    corpus: CorpusDeclaration, split: str, shards: Sequence[tuple[Artifact, Receipt]], meta_values: Mapping[str, Any]
) -> Recipe:
    settings = dict(meta_values)
    # a new tokenizer is reported as a changed source, not as a changed setting
    tokenizer = settings.pop("tokenizer_sha256")
    # the names are in the key because the receipt lists shards by name, even if the bytes are the same
    made_of = [[str(r.partition), r.content] for _, r in shards]
    return Recipe(
        artifact=corpus.artifact(COMBINED_BINS, split),
        key=digest_value(["combined_bins", VERSION, made_of, meta_values]),
        version=VERSION,
        settings=settings,
        sources={"tokenizer": tokenizer},
        upstream={f"{TOKEN_BINS}/{r.partition}": r.content for _, r in shards},
        ledger=Ledger.total(r.ledger or Ledger() for _, r in shards).of_documents,
    )


def build_combined_bins(
    corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest, split: str, progress: Progress | None = None
) -> tuple[Receipt, bool]:
    """Join the shards of a split into `<split>.bin` and `document_ends.bin`, with `meta.pkl` and `meta.json`.

    Args:
        corpus: The dataset.
        store: The store of its artifacts.
        manifest: Lists the shards of the split, in order.
        split: One of its splits.
        progress: Counts and shows the bytes of the token files. None shows nothing.

    Returns:
        The receipt, and whether the combined bins were reused.

    Raises IntegrityError if a shard is damaged, or if the joined size does not match the number of tokens.
    """
    shards = shard_receipts(corpus, store, manifest, split)
    meta_values = meta_of(corpus)
    progress = progress or Progress()

    def count_bytes(size: int) -> None:
        progress.add({"source_bytes": size})
        progress.show()

    def write(staged: Path) -> WrittenFiles:
        parts = [FileRef(shard, r.file(TOKENS)) for shard, r in shards]
        progress.expect(sum(part.record.bytes for part in parts), 1)
        tokens = store.join(staged, f"{split}.bin", parts, counted=count_bytes)
        document_ends.concatenate(_ends(store, shards), staged / ENDS)
        flat_bins.write_meta(staged, meta_values)
        ledger = Ledger.total(r.ledger or Ledger() for _, r in shards)
        ledger.balance(f"{corpus.dataset}/combined_bins/{split}")
        expected_bytes = ledger.tokens * flat_bins.token_dtype(meta_values["dtype"]).itemsize
        if tokens.record.bytes != expected_bytes:
            raise IntegrityError(
                f"{corpus.dataset}/combined_bins/{split}: {count_of(tokens.record.bytes, 'byte')}, but "
                f"{ledger.tokens} {meta_values['dtype']} tokens need {count_of(expected_bytes, 'byte')}. Materialize "
                "token_bins again"
            )
        return WrittenFiles(
            inputs={str(r.partition): r.content for _, r in shards},
            # any shard's BOS will do, because `shard_receipts` rejects shards that differ
            facts=CombinedBinsFacts(**meta_values, shards=len(shards), bos_id=TokenBinsFacts.of(shards[0][1]).bos_id),
            ledger=ledger.of_documents,
            joined=(tokens,),
        )

    return ensure(_recipe(corpus, split, shards, meta_values), store, write, corpus.verify)


def _ends(store: ArtifactStore, shards: Sequence[tuple[Artifact, Receipt]]) -> Iterator[tuple[Path, int]]:
    """Yield each shard's file of document ends and its number of tokens; local copies exist only until the next
    shard."""
    for shard, receipt in shards:
        handle = ArtifactHandle(store, shard, receipt)
        yield handle.path(ENDS), (receipt.ledger or Ledger()).tokens


def combined_bins_spec(corpus: CorpusDeclaration, split: str, *, token_bins: ArtifactSpec) -> ArtifactSpec:
    """Return the spec of a split's combined bins.

    Args:
        corpus: The dataset.
        split: One of its splits.
        token_bins: The token bins of the split.
    """

    def build(request: BuildRequest) -> list[Outcome]:
        manifest = load_manifest(corpus, request.store)
        return [Outcome.from_receipt(*build_combined_bins(corpus, request.store, manifest, split, request.progress))]

    def recipes(store: ArtifactStore, _: Sequence[str | None]) -> list[Recipe]:
        shards = shard_receipts(corpus, store, load_manifest(corpus, store), split)
        return [_recipe(corpus, split, shards, meta_of(corpus))]

    return ArtifactSpec(
        declaration=corpus,
        name=COMBINED_BINS,
        split=split,
        version=VERSION,
        description=f"`{split}.bin`: all shards in manifest order, with `meta.pkl` and the same values as JSON.",
        kinds={"numpy", "file"},
        inputs=(token_bins,),
        recipes=recipes,
        build=build,
        metadata=_metadata,
        places=partial(_locate, corpus, split),
        check_groups=(WholeChecks(checks=CHECKS, open=partial(_open, corpus, split)),),
    )


def current_combined(
    corpus: CorpusDeclaration, store: ArtifactStore, split: str, shards: Mapping[str, Receipt]
) -> Receipt:
    """Return the receipt of a split's combined bins; raise IntegrityError if they were built from other shards.

    Args:
        corpus: The dataset.
        store: The store of its artifacts.
        split: One of its splits.
        shards: The receipts of the shards of every split, by partition.
    """
    artifact = corpus.artifact(COMBINED_BINS, split)
    receipt = store.require(artifact)
    if dict(receipt.inputs) != {key: shard.content for key, shard in shards.items() if split_of(key) == split}:
        raise IntegrityError(f"{artifact} was built from other shards than the current ones. Run the dataset first")
    return receipt


def _locate(corpus: CorpusDeclaration, split: str, store: ArtifactStore, shards: Mapping[str, Receipt]) -> Locate:
    receipt = current_combined(corpus, store, split, shards)
    itemsize = flat_bins.token_dtype(CombinedBinsFacts.of(receipt).dtype).itemsize

    def locate(span: DocumentSpan) -> Iterator[TokenRange]:
        if span.split == split:
            artifact = str(corpus.artifact(COMBINED_BINS, split))
            yield TokenRange(
                artifact=artifact, file=f"{split}.bin", start=span.start, stop=span.stop, itemsize=itemsize
            )

    return locate


def _metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    facts = CombinedBinsFacts.of(receipt)
    return {
        "tokenizer": facts.tokenizer,
        # as texts, because Dagster plots numbers, and these cannot change
        "vocab_size": str(facts.vocab_size),
        "eos_token_id": str(facts.eos_token_id),
        "dtype": facts.dtype,
        "shards": facts.shards,
    }


def combined_without(
    corpus: CorpusDeclaration, store: ArtifactStore, split: str, listed: NDArray[np.uint64]
) -> Finding:
    """Check that neither the combined bins of a split nor its present shards contain documents with these ids.

    Args:
        corpus: The dataset.
        store: The store of its artifacts.
        split: One of its splits.
        listed: The ids on the retraction list.
    """
    made_of = shard_receipts(corpus, store, load_manifest(corpus, store), split)
    # without a list the receipts are enough, so no index is downloaded
    names = [IDS] if len(listed) else []
    shards = [(store.local(artifact, names), receipt) for artifact, receipt in made_of]
    return check_built_without(shards, listed, store.require(corpus.artifact(COMBINED_BINS, split)))


Shards = Sequence[tuple[Path, Receipt]]
"""Directory and receipt of each shard of the split, in manifest order."""


@dataclass(frozen=True)
class OpenedCombined(OpenedArtifact):
    """The combined bins of a split, opened for checks, and the shards they were built from."""

    corpus: CorpusDeclaration
    split: str
    manifest: Manifest
    made_of: Sequence[tuple[Artifact, Receipt]]

    @cached_property
    def shards(self) -> Shards:
        """The shards with only their document ends, because tokens are compared by digest and need no download."""
        return [(self.store.local(artifact, [ENDS]), receipt) for artifact, receipt in self.made_of]

    @cached_property
    def bundle(self) -> TokenizerBundle:
        """The declared tokenizer."""
        return load_bundle(self.corpus.tokenizer)

    @cached_property
    def facts(self) -> CombinedBinsFacts:
        """The receipt's facts; raises IntegrityError if one is missing."""
        return CombinedBinsFacts.of(self.receipt)

    @property
    def tokens_path(self) -> Path:
        """The token file of the split."""
        return self.directory / f"{self.split}.bin"

    @property
    def separator_id(self) -> int:
        """Id of the declared separator."""
        return self.bundle.separator(self.corpus.document.separator, self.corpus.document.special_tokens).id

    @cached_property
    def _index(self) -> StreamIndex:
        # lazy, because the index is needed only to name a row
        return StreamIndex({self.split: [IndexedShard(self.store, shard, receipt) for shard, receipt in self.made_of]})

    def source_at(self, token: int) -> str:
        """Return the source file and row that contain a token."""
        file, row = self._index.source(*self._index.find_by_token(self.split, None, token))
        return f"{file}: row {row}"


def _open(corpus: CorpusDeclaration, split: str, store: ArtifactStore, _: Sequence[str]) -> OpenedCombined:
    manifest = load_manifest(corpus, store)
    artifact, made_of = corpus.artifact(COMBINED_BINS, split), shard_receipts(corpus, store, manifest, split)
    return OpenedCombined(artifact, store, corpus, split, manifest, made_of).with_files()


def matches_shards(directory: Path, receipt: Receipt, shards: Shards, *, split: str) -> Finding:
    """Check that the combined file is its shards, byte for byte and in order, with the same document ends.

    One pass over the combined file computes the digest of each shard's range and of the whole file. A shard is read
    only if its range differs, to name the byte. Document ends are compared with the shards' ends, shifted.
    """
    path = directory / f"{split}.bin"
    claimed = receipt.file(path.name).sha256
    size, expected_bytes = path.stat().st_size, sum(r.file(TOKENS).bytes for _, r in shards)
    defects = []
    if size != expected_bytes:
        defects.append(
            f"{path.name}: has {count_of(size, 'byte')}, but its {count_of(len(shards), 'shard has', 'shards have')} "
            f"{expected_bytes}"
        )
    ranges, file_digest = _range_digests(path, [r.file(TOKENS).bytes for _, r in shards])
    start = 0
    for (shard, of_shard), digest in zip(shards, ranges, strict=True):
        record = of_shard.file(TOKENS)
        if digest != record.sha256:
            where = _first_difference(path, start, shard / TOKENS, record.bytes)
            stop = start + record.bytes
            byte_range = f"bytes {start} to {stop}"
            defects.append(f"{path.name}: {byte_range} differ from shard {name_of(of_shard)}: {where}")
        start += record.bytes
    if file_digest != claimed:
        defects.append(f"{path.name}: sha256 {file_digest}, but the receipt of {name_of(receipt)} lists {claimed}")
    # skipped after a defect, because different tokens would also give different ends
    if not defects:
        defects += _differing_ends(directory / ENDS, shards)
    return verdict(
        defects,
        f"{path.name} is the concatenation of its {count_of(len(shards), 'shard')} ({count_of(size, 'byte')}).",
        _REBUILD,
        facts={"bytes": size, "shards": len(shards), "shard_bytes": expected_bytes},
    )


def _range_digests(path: Path, sizes: Sequence[int]) -> tuple[list[str], str]:
    """Return the SHA-256 of consecutive ranges of a file and of the whole file, from one pass.

    A range that reaches beyond the end of the file is shortened.
    """
    file_digest = hashlib.sha256()
    ranges = []
    with open(path, "rb", buffering=0) as file:
        for size in sizes:
            part, remaining = hashlib.sha256(), size
            while remaining and (data := file.read(min(remaining, _BLOCK))):
                part.update(data)
                file_digest.update(data)
                remaining -= len(data)
            ranges.append(part.hexdigest())
        # bytes after the last shard belong to no range, but to the digest of the file
        while data := file.read(_BLOCK):
            file_digest.update(data)
    return ranges, file_digest.hexdigest()


def _first_difference(path: Path, start: int, shard: Path, size: int) -> str:
    """Describe the first difference between a range of the combined file and the shard's own file."""
    if not shard.is_file():
        return f"{shard} is missing, so the byte is unknown"
    with open(path, "rb") as combined, open(shard, "rb") as own:
        combined.seek(start)
        position = 0
        while position < size:
            ours, theirs = combined.read(min(_BLOCK, size - position)), own.read(min(_BLOCK, size - position))
            shared = min(len(ours), len(theirs))
            apart = np.flatnonzero(np.frombuffer(ours, np.uint8, shared) != np.frombuffer(theirs, np.uint8, shared))
            if len(apart) or len(ours) != len(theirs) or not shared:
                offset = position + (int(apart[0]) if len(apart) else shared)
                return f"they differ at byte {start + offset}, byte {offset} of the shard"
            position += shared
    return "they are equal, so the shard does not match its receipt. Verify the shard"


def _differing_ends(path: Path, shards: Shards) -> Iterator[str]:
    ends = document_ends.open_ends(path)
    document = offset = 0
    for shard, receipt in shards:
        own = document_ends.open_ends(shard / ENDS)
        for start in range(0, len(own), document_ends.BLOCK):
            expected_ends = own[start : start + document_ends.BLOCK] + np.uint64(offset)
            combined_ends = ends[document : document + len(expected_ends)]
            if not np.array_equal(combined_ends, expected_ends):
                apart = np.flatnonzero(combined_ends != expected_ends[: len(combined_ends)])
                index = document + (int(apart[0]) if len(apart) else len(combined_ends))
                yield f"{path.name}: differs from shard {name_of(receipt)} at document {index} (byte {index * 8})"
                return
            document += len(expected_ends)
        offset += ledger_of(receipt).tokens
    if len(ends) != document:
        yield f"{path.name}: has {count_of(len(ends), 'document')}, but its shards have {document}"


def totals_match(receipt: Receipt, shards: Shards) -> Finding:
    """Check that every document count in the combined ledger is the sum of the shards' counts."""
    counts = ledger_of(receipt).of_documents.to_json()
    wrong = []
    if receipt.facts.get("shards", len(shards)) != len(shards):
        wrong.append(f"{name_of(receipt)}: its facts count {count_of(receipt.facts['shards'], 'shard')}")
    summed = Ledger.total(ledger_of(r) for _, r in shards).of_documents.to_json()
    wrong += [
        f"{name_of(receipt)}: {k}: the ledger has {counts[k]}, but its {count_of(len(shards), 'shard')} sum to {v}"
        for k, v in summed.items()
        if _counts(counts[k]) != _counts(v)
    ]
    return verdict(
        wrong,
        f"The ledger is the sum of {count_of(len(shards), 'shard')}: "
        f"{count_of(summed['documents'], 'document')}, {count_of(summed['tokens'], 'token')}.",
        _REBUILD,
        facts={
            "shards": len(shards),
            "rows_in": summed["rows_in"],
            "documents": summed["documents"],
            "tokens": summed["tokens"],
            "dropped": sum(summed["dropped"].values()),
        },
    )


def _counts(value: Any) -> Any:
    """Return counts without zeros, because a reason that dropped nothing makes no difference."""
    return {k: v for k, v in value.items() if v} if isinstance(value, dict) else value


def sources_complete(receipts: Sequence[Receipt], entries: Sequence[ManifestEntry], split: str) -> Finding:
    """Check that the shards contain each manifest file of the split exactly once, in order, and no other files.

    `entries` are all entries of the manifest. Files are compared by path: a receipt keeps the ordinal from the manifest
    of its time, and files added later may have shifted it. A file belongs to another split if its path does or, if the
    manifest has digests, its bytes do. A copy of a train file under a validation path is therefore also a leak.
    """
    foreign = {e.sha256: e for e in entries if e.split != split and e.sha256}
    by_path = {e.relpath: e for e in entries}
    shard_of: dict[str, str] = {}
    defects = []
    previous = -1
    for receipt in receipts:
        for line in receipt.sources:
            file, where = line["file"], f"{name_of(receipt)}: {line['file']}"
            entry = by_path.get(file)
            if file in shard_of:
                defects.append(f"{where}: is in the split twice, first in {shard_of[file]}")
            shard_of.setdefault(file, name_of(receipt))
            if entry is None:
                defects.append(f"{where}: is not in the manifest")
            elif entry.split != split:
                defects.append(f"{where}: belongs to split {entry.split}, not {split}")
            elif entry.sha256 and entry.sha256 != line["sha256"]:
                defects.append(f"{where}: sha256 {line['sha256']}, but the manifest lists {entry.sha256}")
            elif entry.ordinal < previous:
                defects.append(f"{where}: comes after file {previous} of the manifest, out of the manifest's order")
            previous = entry.ordinal if entry is not None else previous
            # files without documents, such as empty ones, may have the same bytes
            if line["documents"] and (twin := foreign.get(line["sha256"])) is not None:
                defects.append(f"{where}: has the same bytes as {twin.relpath} in split {twin.split}")
    members = [e for e in entries if e.split == split]
    missing = [e.relpath for e in members if e.relpath not in shard_of]
    if missing:
        defects.insert(
            0,
            f"{split}: {len(missing)} of {count_of(len(members), 'file is', 'files are')} missing: {first_of(missing)}",
        )
    return verdict(
        defects,
        f"{split} has its {count_of(len(members), 'file')}, each once, in manifest order, and no others.",
        "Materialize the shards that these files belong to, then `combined_bins`",
        facts={"files": len(shard_of), "files_in_manifest": len(members), "missing": len(missing)},
    )


def meta_matches(
    directory: Path,
    bundle: TokenizerBundle,
    separator_id: int,
    dtype: str,
    facts: Mapping[str, Any] | None = None,
) -> Finding:
    """Check that `meta.pkl` equals `meta.json`, and that both agree with the tokenizer and the bins.

    Args:
        directory: The directory of the combined bins.
        bundle: The declared tokenizer.
        separator_id: Id of the declared separator.
        dtype: The dtype of the ids.
        facts: The receipt's facts, which must have the same values.
    """
    # bytes are compared, because loading a small pickle can take gigabytes of memory or run code
    flat_bins.validate_meta(directory)
    meta_values = flat_bins.read_meta(directory)
    defects = [
        f"{directory / 'meta.json'}: {key} is {meta_values[key]!r}, but the receipt has {value!r}"
        for key, value in (facts or {}).items()
        if key in meta_values and meta_values[key] != value
    ]
    expected_meta = {"vocab_size": bundle.vocab_size, "eos_token_id": separator_id, "dtype": dtype}
    for key, value in expected_meta.items():
        if meta_values.get(key) != value:
            source = "the bins have" if key != "vocab_size" else f"len() of {bundle.name} is"
            defects.append(f"{directory / 'meta.json'}: {key} is {meta_values.get(key)!r}, {source} {value!r}")
    return verdict(
        defects,
        f"meta.pkl and meta.json agree: {dtype}, vocabulary {bundle.vocab_size}, separator {separator_id}.",
        _REBUILD,
        facts={"vocab_size": str(bundle.vocab_size), "eos_token_id": str(separator_id), "dtype": dtype},
    )


def _alignment(opened: OpenedCombined) -> Finding:
    return alignment(
        opened.tokens_path,
        opened.facts.dtype,
        document_ends.open_ends(opened.directory / ENDS),
        separator_id=opened.separator_id,
        vocab_size=opened.bundle.vocab_size,
        seed=opened.seed,
        bos_id=opened.facts.bos_id,
        literal_separators=opened.receipt.ledger.literal_separators if opened.receipt.ledger else 0,
    )


def _sampler_dry_run(opened: OpenedCombined) -> Finding:
    vocab_size = opened.bundle.vocab_size
    return random_batches_load(
        opened.tokens_path, opened.facts.dtype, vocab_size, seed=opened.seed, source_at=opened.source_at
    )


def _no_retracted_document(opened: OpenedCombined) -> Finding:
    corpus = opened.corpus
    removed_ids = retracted_ids(corpus.retractions, corpus.document.ids(sensitive=corpus.sensitive))
    return combined_without(corpus, opened.store, opened.split, removed_ids)


CHECKS: tuple[Check[OpenedCombined], ...] = (
    Check(
        "matches_shards",
        "The file is the byte-for-byte concatenation of its shards in manifest order.",
        lambda opened: matches_shards(opened.directory, opened.receipt, opened.shards, split=opened.split),
    ),
    Check(
        "totals_match",
        "The ledger is the sum of the shards' ledgers.",
        lambda opened: totals_match(opened.receipt, opened.shards),
    ),
    Check(
        "sources_complete",
        "The bins contain every file of the split exactly once, and no file of another split.",
        lambda opened: sources_complete([r for _, r in opened.made_of], opened.manifest.entries, opened.split),
    ),
    Check(
        "meta_matches",
        "meta.pkl matches the tokenizer, the token files and meta.json.",
        lambda opened: meta_matches(
            opened.directory, opened.bundle, opened.separator_id, opened.facts.dtype, opened.receipt.facts
        ),
    ),
    Check(
        "labels_aligned",
        "Labels are the inputs shifted by one token, and every document ends with the separator.",
        _alignment,
    ),
    Check(
        "random_batches_load",
        "Random batches load, and a unigram model scores below the uniform loss ln(vocab). Fails if a split is "
        "empty; only warns if it has fewer than eight blocks of 256 tokens.",
        _sampler_dry_run,
    ),
    Check(
        "looks_like_text",
        "Decoded windows near the start and in the middle of the data look like text.",
        lambda opened: looks_like_text(
            opened.tokens_path, opened.directory / ENDS, opened.facts.dtype, opened.bundle, seed=opened.seed
        ),
        blocking=False,
    ),
    Check(
        "no_retracted_document",
        "No document in the shards is on the retraction list, and the shards are unchanged.",
        _no_retracted_document,
    ),
    Check(
        "disk_headroom",
        "The disk has free space for at least 20 % of the file's size.",
        lambda opened: disk_headroom(opened.directory, opened.receipt.total_bytes // 5, 0.0),
        blocking=False,
    ),
)


# `retracted_left` finds artifacts outside the plan that keep retracted documents: shards and joins that no artifact
# reads.
#
# The index of a token bins shard shows whether the shard contains one. Artifacts built from shards (combined bins, npy
# shards, views) are judged by the shards in their receipts, if these still exist with the same content.
#
# An artifact that cannot be judged counts as one that contains a retracted document. It is incomplete, was built from
# deleted shards, or has another kind of index. It is derived and in no plan, so it can be removed.


def retracted_left(corpus: CorpusDeclaration, store: ArtifactStore, unplanned: Iterable[Artifact]) -> list[Artifact]:
    """Return the unplanned artifacts that contain a retracted document or may contain one.

    Artifacts built from shards come before the shards, which are needed to judge them. Raises the errors of
    `read_retractions`.
    """
    if corpus.retractions is None or not corpus.retractions.exists():
        return []
    # a snapshot has names and digests of files, but no documents
    candidates = [candidate for candidate in unplanned if candidate.name != SNAPSHOT]
    if not candidates:  # returns early, because the ids below may need a key
        return []
    ids = corpus.document.ids(sensitive=corpus.sensitive)
    removed_ids = retracted_ids(corpus.retractions, ids)
    if ids is None or not len(removed_ids):
        return []
    kind = (ids.id_field, ids.key_digest)

    # cached, because many artifacts are built from the same shard
    @cache
    def holds(artifact: Artifact) -> bool:
        try:
            receipt = store.receipt(artifact)
            if receipt is None:
                return True
            return shard_holds(artifact, receipt) if artifact.name == TOKEN_BINS else made_of_one(receipt)
        except (DataprepError, OSError):  # a damaged artifact may contain one
            return True

    def shard_holds(artifact: Artifact, receipt: Receipt) -> bool:
        facts = TokenBinsFacts.of(receipt)
        if facts.document_ids is None or (facts.id_field, facts.id_key) != kind:
            return True
        shard_ids = open_ids(store.local(artifact, [IDS]) / IDS, ledger_of(receipt).documents)
        return bool(are_listed(shard_ids, removed_ids).any())

    def made_of_one(receipt: Receipt) -> bool:
        return any(not is_there(name, content) or holds(source(name)) for name, content in receipt.inputs.items())

    def is_there(name: str, content: str) -> bool:
        source_receipt = store.receipt(source(name))
        return source_receipt is not None and source_receipt.content == content

    def source(name: str) -> Artifact:
        # the receipt of a view lists its inputs by split, other receipts by shard
        return corpus.artifact(COMBINED_BINS if name in corpus.splits else TOKEN_BINS, name)

    return sorted(filter(holds, candidates), key=lambda artifact: artifact.name == TOKEN_BINS)
