"""Combined bins (`<dataset>/combined_bins_<split>`): the shards of a split, concatenated in manifest order.

Missing or damaged shards are an error. The store joins the token files: in a folder, the kernel copies the bytes; in
object storage, the server does. One pass over the result computes the digest of the file and of each shard's range.
Each range must match the shard's receipt.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.retractions import read_retracted_ids
from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.metadata_values import ShownValue
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest
from dataprep_assets.engine.checks.check import (
    Check,
    Finding,
    OpenedArtifact,
    build_verdict,
    describe_artifact,
    join_first,
    require_ledger,
)
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.engine.trace.place import DocumentSpan, Locate, TokenRange
from dataprep_assets.errors import IntegrityError, MissingArtifactError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.execution.progress import Progress
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.formats.document_index import IDS
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle, ArtifactStore, FileRef
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.pipelines.corpus.declaration import COMBINED_BINS, CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import Manifest, load_manifest
from dataprep_assets.pipelines.corpus.token_bins import build_meta
from dataprep_assets.planning.manifest import ManifestEntry, split_name
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.eye_test import alignment, looks_like_text, random_batches_load
from dataprep_assets.stream.retracted_documents import check_built_without
from dataprep_assets.stream.source import disk_headroom
from dataprep_assets.stream.stream_index import IndexedShard, StreamIndex
from dataprep_assets.stream.token_shard import ENDS, TOKEN_BINS, TOKENS, TokenBinsFacts
from dataprep_assets.stream.tokenizer import load_declared_tokenizer
from dataprep_assets.tokenization.bundle import TokenizerBundle

_BLOCK = 4 << 20

_REBUILD = "Rebuild `combined_bins` of this split"


VERSION = 3


class CombinedBinsFacts(Facts):
    """Facts of combined bins: the values of `meta.pkl`, the number of shards, and the id before each document."""

    tokenizer: str
    vocab_size: int
    eos_token_id: int
    eos_token: str
    dtype: str
    tokenizer_sha256: str
    shards: int
    bos_id: int | None


def read_shard_receipts(
    corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest, split: str
) -> list[tuple[Artifact, Receipt]]:
    """Return all shards of a split with their receipts, in manifest order.

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
            f"{corpus.dataset}/{split}: {len(missing)} of {count_of(len(shards), 'shard')} "
            f"{'is' if len(missing) == 1 else 'are'} missing: {names}. Build these partitions of token_bins first"
        )
    for shard, receipt in pairs:
        # Compare the file names, because a newer plan may assign different files to a shard with the same name.
        planned_files = [entry.relpath for entry in manifest.shard(str(shard.partition))]
        if [line["file"] for line in receipt.sources] != planned_files:
            raise IntegrityError(
                f"{shard}: built from different files than the manifest lists now. Rebuild this partition of "
                "snapshot and token_bins"
            )
    _require_same_stream(corpus, split, [receipt for _, receipt in pairs])
    return pairs


def _require_same_stream(corpus: CorpusDeclaration, split: str, receipts: Sequence[Receipt]) -> None:
    pairs = [(receipt, TokenBinsFacts.from_receipt(receipt)) for receipt in receipts]
    # All shards must have the same settings, because a reader of the combined file does not know which shard a token
    # comes from.
    kinds = {
        (f.dtype, str(f.separator_id), str(f.bos_id), f.special_tokens, r.inputs["tokenizer"][:12]) for r, f in pairs
    }
    if len(kinds) > 1:
        raise IntegrityError(
            f"{corpus.dataset}/{split}: the shards were built with different settings (dtype, separator_id, bos_id, "
            f"special_tokens, tokenizer): {'; '.join(', '.join(kind) for kind in sorted(kinds))}. Rebuild "
            "token_bins: only stale shards are rebuilt"
        )
    # Also compare the shards with the current declaration, because `meta.pkl` is written from the declaration, and
    # shards with the same settings may all be out of date.
    meta_values = build_meta(corpus)
    for receipt, facts in pairs:
        if (facts.dtype, receipt.inputs["tokenizer"]) != (meta_values["dtype"], meta_values["tokenizer_sha256"]):
            raise IntegrityError(
                f"{corpus.dataset}/{receipt.partition}: not built with the tokenizer and dtype that are declared now. "
                "Rebuild token_bins"
            )


def _build_recipe(
    corpus: CorpusDeclaration, split: str, shards: Sequence[tuple[Artifact, Receipt]], meta_values: Mapping[str, Any]
) -> Recipe:
    settings = dict(meta_values)
    # List the tokenizer as a source, so that `status` reports a new tokenizer as a changed source instead of a changed
    # setting.
    tokenizer = settings.pop("tokenizer_sha256")
    # Include the shards' names in the key, because the receipt lists them, so a renamed shard requires a new receipt.
    inputs = [[str(r.partition), r.content] for _, r in shards]
    return Recipe(
        artifact=corpus.artifact(COMBINED_BINS, split),
        key=digest_value(["combined_bins", VERSION, inputs, meta_values]),
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
        manifest: The manifest, which lists the shards of the split in order.
        split: One of its splits.
        progress: Counts and shows the bytes of the token files; None shows nothing.

    Returns:
        The receipt, and whether the combined bins were reused.

    Raises IntegrityError if a shard is damaged, or if the joined size does not match the number of tokens.
    """
    shards = read_shard_receipts(corpus, store, manifest, split)
    meta_values = build_meta(corpus)
    progress = progress or Progress()

    def count_bytes(size: int) -> None:
        progress.add({"source_bytes": size})
        progress.show()

    def write(staged: Path) -> WrittenFiles:
        parts = [FileRef(shard, r.file(TOKENS)) for shard, r in shards]
        progress.expect(sum(part.record.bytes for part in parts), 1)
        tokens = store.join(staged, f"{split}.bin", parts, on_read=count_bytes)
        document_ends.concatenate(_iterate_end_files(store, shards), staged / ENDS)
        flat_bins.write_meta(staged, meta_values)
        ledger = Ledger.total(r.ledger or Ledger() for _, r in shards)
        ledger.require_balance(f"{corpus.dataset}/combined_bins/{split}")
        expected_bytes = ledger.tokens * flat_bins.token_dtype(meta_values["dtype"]).itemsize
        if tokens.record.bytes != expected_bytes:
            raise IntegrityError(
                f"{corpus.dataset}/combined_bins/{split}: has {count_of(tokens.record.bytes, 'byte')}, but "
                f"{ledger.tokens} {meta_values['dtype']} tokens need {count_of(expected_bytes, 'byte')}. Rebuild "
                "token_bins"
            )
        return WrittenFiles(
            inputs={str(r.partition): r.content for _, r in shards},
            # Take the BOS id of the first shard, because `read_shard_receipts` rejects shards with different BOS ids.
            facts=CombinedBinsFacts(
                **meta_values, shards=len(shards), bos_id=TokenBinsFacts.from_receipt(shards[0][1]).bos_id
            ),
            ledger=ledger.of_documents,
            joined=(tokens,),
        )

    return ensure_built(_build_recipe(corpus, split, shards, meta_values), store, write, corpus.verify)


def _iterate_end_files(store: ArtifactStore, shards: Sequence[tuple[Artifact, Receipt]]) -> Iterator[tuple[Path, int]]:
    """Yield each shard's file of document ends and its number of tokens.

    A local copy of the file exists only until the next shard is requested.
    """
    for shard, receipt in shards:
        handle = ArtifactHandle(store, shard, receipt)
        yield handle.path(ENDS), (receipt.ledger or Ledger()).tokens


def build_combined_bins_spec(corpus: CorpusDeclaration, split: str, *, token_bins: ArtifactSpec) -> ArtifactSpec:
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
        shards = read_shard_receipts(corpus, store, load_manifest(corpus, store), split)
        return [_build_recipe(corpus, split, shards, build_meta(corpus))]

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
        metadata=_build_metadata,
        places=partial(_locate_in_bins, corpus, split),
        check_groups=(WholeArtifactChecks(checks=CHECKS, open=partial(_open_combined, corpus, split)),),
    )


def require_current_combined(
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
    if dict(receipt.inputs) != {key: shard.content for key, shard in shards.items() if split_name(key) == split}:
        raise IntegrityError(f"{artifact}: was not built from the current shards. Run the dataset first")
    return receipt


def _locate_in_bins(
    corpus: CorpusDeclaration, split: str, store: ArtifactStore, shards: Mapping[str, Receipt]
) -> Locate:
    receipt = require_current_combined(corpus, store, split, shards)
    itemsize = flat_bins.token_dtype(CombinedBinsFacts.from_receipt(receipt).dtype).itemsize

    def locate(span: DocumentSpan) -> Iterator[TokenRange]:
        if span.split == split:
            artifact = str(corpus.artifact(COMBINED_BINS, split))
            yield TokenRange(
                artifact=artifact, file=f"{split}.bin", start=span.start, stop=span.stop, itemsize=itemsize
            )

    return locate


def _build_metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    facts = CombinedBinsFacts.from_receipt(receipt)
    return {
        "tokenizer": facts.tokenizer,
        # Store these numbers as text, because Dagster plots numeric metadata, and a plot of constants is useless.
        "vocab_size": str(facts.vocab_size),
        "eos_token_id": str(facts.eos_token_id),
        "dtype": facts.dtype,
        "shards": facts.shards,
    }


def check_combined_bins(
    corpus: CorpusDeclaration, store: ArtifactStore, split: str, listed_hashes: NDArray[np.uint64]
) -> Finding:
    """Check that neither the combined bins of a split nor its current shards contain documents with these ids.

    Args:
        corpus: The dataset.
        store: The store of its artifacts.
        split: One of its splits.
        listed_hashes: The ids on the retraction list.
    """
    input_receipts = read_shard_receipts(corpus, store, load_manifest(corpus, store), split)
    # Download the shards' ids only if the retraction list has ids, because the check otherwise needs only receipts.
    names = [IDS] if len(listed_hashes) else []
    shards = [(store.local(artifact, names), receipt) for artifact, receipt in input_receipts]
    return check_built_without(shards, listed_hashes, store.require(corpus.artifact(COMBINED_BINS, split)))


Shards = Sequence[tuple[Path, Receipt]]
"""Directory and receipt of each shard of the split, in manifest order."""


@dataclass(frozen=True)
class OpenedCombinedBins(OpenedArtifact):
    """Combined bins of a split, opened for checks, and the shards from which they were built."""

    corpus: CorpusDeclaration
    split: str
    manifest: Manifest
    input_shards: Sequence[tuple[Artifact, Receipt]]

    @cached_property
    def shards(self) -> Shards:
        """The shards with only their document ends; tokens are not downloaded, because their digests are compared."""
        return [(self.store.local(artifact, [ENDS]), receipt) for artifact, receipt in self.input_shards]

    @cached_property
    def bundle(self) -> TokenizerBundle:
        """The declared tokenizer."""
        return load_declared_tokenizer(self.corpus.tokenizer)

    @cached_property
    def facts(self) -> CombinedBinsFacts:
        """Facts in the receipt; raises IntegrityError if a fact is missing."""
        return CombinedBinsFacts.from_receipt(self.receipt)

    @property
    def tokens_path(self) -> Path:
        """The token file of the split."""
        return self.directory / f"{self.split}.bin"

    @property
    def separator_id(self) -> int:
        """Id of the declared separator."""
        return self.bundle.choose_separator(self.corpus.document.separator, self.corpus.document.special_tokens).id

    @cached_property
    def _index(self) -> StreamIndex:
        # Create the index on first use, because it is needed only to name the source row of an invalid token.
        return StreamIndex(
            {self.split: [IndexedShard(self.store, shard, receipt) for shard, receipt in self.input_shards]}
        )

    def find_token_source(self, token: int) -> str:
        """Return the source file and row that contain a token."""
        file, row = self._index.source(*self._index.locate_token(self.split, None, token))
        return f"{file}: row {row}"


def _open_combined(corpus: CorpusDeclaration, split: str, store: ArtifactStore, _: Sequence[str]) -> OpenedCombinedBins:
    manifest = load_manifest(corpus, store)
    artifact, input_receipts = (
        corpus.artifact(COMBINED_BINS, split),
        read_shard_receipts(corpus, store, manifest, split),
    )
    return OpenedCombinedBins(artifact, store, corpus, split, manifest, input_receipts).with_local_files()


def check_concatenation(directory: Path, receipt: Receipt, shards: Shards, *, split: str) -> Finding:
    """Check that the combined file is the concatenation of its shards in order, with the same document ends.

    One pass over the combined file computes the digest of each shard's range and of the whole file. A shard is read
    only if its range differs, to name the byte. Document ends are compared with the shards' ends, shifted.
    """
    path = directory / f"{split}.bin"
    claimed_digest = receipt.file(path.name).sha256
    size, expected_bytes = path.stat().st_size, sum(r.file(TOKENS).bytes for _, r in shards)
    defects = []
    if size != expected_bytes:
        defects.append(
            f"{path.name}: has {count_of(size, 'byte')}, but its {count_of(len(shards), 'shard has', 'shards have')} "
            f"{expected_bytes}"
        )
    ranges, file_digest = _digest_ranges(path, [r.file(TOKENS).bytes for _, r in shards])
    start = 0
    for (shard, shard_receipt), digest in zip(shards, ranges, strict=True):
        record = shard_receipt.file(TOKENS)
        if digest != record.sha256:
            difference = _find_first_difference(path, start, shard / TOKENS, record.bytes)
            stop = start + record.bytes
            byte_range = f"bytes {start} to {stop}"
            defects.append(
                f"{path.name}: {byte_range} do not match shard {describe_artifact(shard_receipt)}: {difference}"
            )
        start += record.bytes
    if file_digest != claimed_digest:
        defects.append(
            f"{path.name}: has sha256 {file_digest}, but the receipt of {describe_artifact(receipt)} lists "
            f"{claimed_digest}"
        )
    # Skip the document ends after a defect in the tokens, because different tokens usually have different ends, which
    # would only repeat the defect.
    if not defects:
        defects += _compare_ends(directory / ENDS, shards)
    return build_verdict(
        defects,
        f"{path.name} is the concatenation of its {count_of(len(shards), 'shard')} ({count_of(size, 'byte')}).",
        _REBUILD,
        facts={"bytes": size, "shards": len(shards), "shard_bytes": expected_bytes},
    )


def _digest_ranges(path: Path, sizes: Sequence[int]) -> tuple[list[str], str]:
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
        # Also digest the bytes after the last range, because the digest of the file covers them.
        while data := file.read(_BLOCK):
            file_digest.update(data)
    return ranges, file_digest.hexdigest()


def _find_first_difference(path: Path, start: int, shard: Path, size: int) -> str:
    """Describe the first difference between a range of the combined file and the shard's own file."""
    if not shard.is_file():
        return f"{shard} is missing, so the differing byte is unknown"
    with open(path, "rb") as combined, open(shard, "rb") as shard_file:
        combined.seek(start)
        position = 0
        while position < size:
            combined_bytes, shard_bytes = (
                combined.read(min(_BLOCK, size - position)),
                shard_file.read(min(_BLOCK, size - position)),
            )
            shared = min(len(combined_bytes), len(shard_bytes))
            differing_positions = np.flatnonzero(
                np.frombuffer(combined_bytes, np.uint8, shared) != np.frombuffer(shard_bytes, np.uint8, shared)
            )
            if len(differing_positions) or len(combined_bytes) != len(shard_bytes) or not shared:
                offset = position + (int(differing_positions[0]) if len(differing_positions) else shared)
                return f"the first difference is at byte {start + offset} (byte {offset} of the shard)"
            position += shared
    return "the bytes are equal to the shard's file, which does not match its own receipt. Verify the shard"


def _compare_ends(path: Path, shards: Shards) -> Iterator[str]:
    ends = document_ends.open_ends(path)
    document = offset = 0
    for shard, receipt in shards:
        shard_ends = document_ends.open_ends(shard / ENDS)
        for start in range(0, len(shard_ends), document_ends.BLOCK):
            expected_ends = shard_ends[start : start + document_ends.BLOCK] + np.uint64(offset)
            combined_ends = ends[document : document + len(expected_ends)]
            if not np.array_equal(combined_ends, expected_ends):
                differing_documents = np.flatnonzero(combined_ends != expected_ends[: len(combined_ends)])
                index = document + (int(differing_documents[0]) if len(differing_documents) else len(combined_ends))
                yield (
                    f"{path.name}: differs from shard {describe_artifact(receipt)} at document {index} (byte "
                    f"{index * 8})"
                )
                return
            document += len(expected_ends)
        offset += require_ledger(receipt).tokens
    if len(ends) != document:
        yield f"{path.name}: has {count_of(len(ends), 'document')}, but its shards have {document:,} in total"


def check_totals(receipt: Receipt, shards: Shards) -> Finding:
    """Check that every document count in the combined ledger is the sum of the shards' counts."""
    counts = require_ledger(receipt).of_documents.to_json()
    defects = []
    if receipt.facts.get("shards", len(shards)) != len(shards):
        defects.append(
            f"{describe_artifact(receipt)}: its receipt lists {count_of(receipt.facts['shards'], 'shard')}, "
            f"but the split has {len(shards):,}"
        )
    summed = Ledger.total(require_ledger(r) for _, r in shards).of_documents.to_json()
    defects += [
        f"{describe_artifact(receipt)}: the ledger's `{k}` is {counts[k]}, but the sum over "
        f"{count_of(len(shards), 'shard')} is {v}"
        for k, v in summed.items()
        if _remove_zeros(counts[k]) != _remove_zeros(v)
    ]
    return build_verdict(
        defects,
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


def _remove_zeros(value: Any) -> Any:
    """Return drop counts without the reasons that dropped nothing, because these make no difference."""
    return {k: v for k, v in value.items() if v} if isinstance(value, dict) else value


def check_sources(receipts: Sequence[Receipt], entries: Sequence[ManifestEntry], split: str) -> Finding:
    """Check that the shards contain each manifest file of the split exactly once, in order, and no other files.

    `entries` are all entries of the manifest. Files are compared by path, not by ordinal, because files that were added
    after a receipt may have shifted the ordinals. A file belongs to another split if its path does or, if the manifest
    has digests, its bytes do. A copy of a train file under a validation path is therefore also a leak.
    """
    foreign = {e.sha256: e for e in entries if e.split != split and e.sha256}
    by_path = {e.relpath: e for e in entries}
    shard_by_file: dict[str, str] = {}
    defects = []
    previous = -1
    for receipt in receipts:
        for line in receipt.sources:
            file, location = line["file"], f"{describe_artifact(receipt)}: {line['file']}"
            entry = by_path.get(file)
            if file in shard_by_file:
                defects.append(f"{location} is in the split twice, first in {shard_by_file[file]}")
            shard_by_file.setdefault(file, describe_artifact(receipt))
            if entry is None:
                defects.append(f"{location} is not in the manifest")
            elif entry.split != split:
                defects.append(f"{location} belongs to split {entry.split}, not {split}")
            elif entry.sha256 and entry.sha256 != line["sha256"]:
                defects.append(f"{location} has sha256 {line['sha256']}, but the manifest lists {entry.sha256}")
            elif entry.ordinal < previous:
                defects.append(
                    f"{location} comes after the file with ordinal {previous}, contrary to the order of the manifest"
                )
            previous = entry.ordinal if entry is not None else previous
            # Skip files without documents, because such files may have equal bytes (for example, no bytes) without
            # sharing a document.
            if line["documents"] and (twin := foreign.get(line["sha256"])) is not None:
                defects.append(f"{location} has the same bytes as {twin.relpath} in split {twin.split}")
    members = [e for e in entries if e.split == split]
    missing = [e.relpath for e in members if e.relpath not in shard_by_file]
    if missing:
        defects.insert(
            0,
            f"{split}: {len(missing)} of {count_of(len(members), 'file is', 'files are')} missing: "
            f"{join_first(missing)}",
        )
    return build_verdict(
        defects,
        f"{split} has exactly its {count_of(len(members), 'file')}, each once and in manifest order.",
        "Rebuild the shards that these files belong to, then `combined_bins`",
        facts={"files": len(shard_by_file), "files_in_manifest": len(members), "missing": len(missing)},
    )


def check_meta(
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
    # Compare bytes instead of loading `meta.pkl`, because loading even a small pickle can run code or take gigabytes of
    # memory.
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
            defects.append(f"{directory / 'meta.json'}: {key} is {meta_values.get(key)!r}, but {source} {value!r}")
    return build_verdict(
        defects,
        f"meta.pkl and meta.json agree: dtype {dtype}, vocabulary size {bundle.vocab_size}, separator id "
        f"{separator_id}.",
        _REBUILD,
        facts={"vocab_size": str(bundle.vocab_size), "eos_token_id": str(separator_id), "dtype": dtype},
    )


def _check_alignment(combined: OpenedCombinedBins) -> Finding:
    return alignment(
        combined.tokens_path,
        combined.facts.dtype,
        document_ends.open_ends(combined.directory / ENDS),
        separator_id=combined.separator_id,
        vocab_size=combined.bundle.vocab_size,
        seed=combined.seed,
        bos_id=combined.facts.bos_id,
        literal_separators=combined.receipt.ledger.literal_separators if combined.receipt.ledger else 0,
    )


def _check_random_batches(combined: OpenedCombinedBins) -> Finding:
    vocab_size = combined.bundle.vocab_size
    return random_batches_load(
        combined.tokens_path, combined.facts.dtype, vocab_size, seed=combined.seed, source_at=combined.find_token_source
    )


def _check_retractions(combined: OpenedCombinedBins) -> Finding:
    corpus = combined.corpus
    removed_ids = read_retracted_ids(corpus.retractions, corpus.document.ids(sensitive=corpus.sensitive))
    return check_combined_bins(corpus, combined.store, combined.split, removed_ids)


CHECKS: tuple[Check[OpenedCombinedBins], ...] = (
    Check(
        "matches_shards",
        "The file is the byte-for-byte concatenation of its shards in manifest order.",
        lambda opened: check_concatenation(opened.directory, opened.receipt, opened.shards, split=opened.split),
    ),
    Check(
        "totals_match",
        "The ledger is the sum of the shards' ledgers.",
        lambda opened: check_totals(opened.receipt, opened.shards),
    ),
    Check(
        "sources_complete",
        "The bins contain every file of the split exactly once, and no file of another split.",
        lambda opened: check_sources([r for _, r in opened.input_shards], opened.manifest.entries, opened.split),
    ),
    Check(
        "meta_matches",
        "meta.pkl matches the tokenizer, the token files and meta.json.",
        lambda opened: check_meta(
            opened.directory, opened.bundle, opened.separator_id, opened.facts.dtype, opened.receipt.facts
        ),
    ),
    Check(
        "labels_aligned",
        "Labels are the inputs shifted by one token, and every document ends with the separator.",
        _check_alignment,
    ),
    Check(
        "random_batches_load",
        "Random batches can be loaded, and a unigram model has a lower loss on them than a uniform model. "
        "With fewer than eight blocks of 256 tokens, a failure only warns.",
        _check_random_batches,
    ),
    Check(
        "looks_like_text",
        "Decoded samples of the tokens, near the start and in the middle of the data, look like text.",
        lambda opened: looks_like_text(
            opened.tokens_path, opened.directory / ENDS, opened.facts.dtype, opened.bundle, seed=opened.seed
        ),
        blocking=False,
    ),
    Check(
        "no_retracted_document",
        "No document in the shards is on the retraction list, and the shards are unchanged.",
        _check_retractions,
    ),
    Check(
        "disk_headroom",
        "The free disk space is at least 20% of the file's size.",
        lambda opened: disk_headroom(opened.directory, opened.receipt.total_bytes // 5, 0.0),
        blocking=False,
    ),
)
