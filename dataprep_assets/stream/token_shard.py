"""The build of one shard of token bins: files are encoded into parts, and the parts are sealed into the artifact.

Files are encoded in parallel, each into its own part. The shard is sealed (the kernel joins the parts, which are then
hashed and committed) as soon as its last file is done. The order of bytes is the manifest's, regardless of the number
and order of workers. A killed run keeps the finished parts, so a rerun repeats only the unfinished files. `shard_job`
distributes this work over workers.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.curation.dropped_rows import DroppedRows
from dataprep_assets.curation.retractions import describe_ids
from dataprep_assets.engine.artifact.build import Facts
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.errors import BadRecordError, DataprepError, IntegrityError, count_of
from dataprep_assets.execution.run_task import report_work
from dataprep_assets.formats import document_ends, document_index, flat_bins, megatron
from dataprep_assets.formats.document_index import IDS, ROWS, FileRows, SourceRowIndex
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.commit import convert_disk_errors, publish_directory
from dataprep_assets.integrity.receipt import LOSSES, Ledger, Receipt, format_current_time, read_versions, record_files
from dataprep_assets.stores.files import canonical_json, digest_value, read_boot_id
from dataprep_assets.stream.token_stream import EncodedPart, PartFiles, SourcePart, StreamPlan
from dataprep_assets.table import format_share
from dataprep_assets.tokenization.engines import SpecialTokens

# Version 2 added the document index. Version 3 refuses files without a readable row. Version 4 was introduced together
# with new versions of all steps. `STREAM_VERSION` is the version of the tokens.
VERSION = 4
TOKEN_BINS, TOKENS, ENDS = document_index.TOKEN_BINS, document_index.TOKENS, document_index.ENDS
QUARANTINE = "quarantine.jsonl"
MEGATRON_INDEX = "tokens.idx"


class TokenBinsFacts(Facts):
    """Facts of a shard's receipt: the settings that determine its ids, and the certificate of the engine.

    `truncated` counts documents truncated to the plan's maximum length, if there is one. `document_ids` is the source
    of the hashes in `document_ids.bin` (None: the file does not exist), `id_field` the field's name, and `id_key` the
    digest of the key of a keyed hash. `retracted` are the ids (16 hex digits) whose documents were dropped; for a shard
    with a selection, the selection has them instead.
    """

    dtype: str
    separator_id: int | None
    bos_id: int | None
    special_tokens: SpecialTokens
    certificate: dict[str, Any]
    truncated: int = 0
    document_ids: Literal["text", "field"] | None = None
    id_field: str | None = None
    id_key: str | None = None
    retracted: tuple[str, ...] = ()


def require_separator(receipt: Receipt, facts: TokenBinsFacts) -> int:
    """Return the id that ends every document of a shard; raises IntegrityError if its documents have no separator."""
    if facts.separator_id is None:
        raise IntegrityError(f"{receipt.artifact}/{receipt.partition}: no separator in its receipt. Rebuild the shard")
    return facts.separator_id


def build_document_rows(directory: Path, receipt: Receipt) -> SourceRowIndex:
    """Return the source row of each document of a shard, in the receipt's `sources`.

    `directory` contains the shard's `document_rows.bin`, if the receipt lists it.
    """
    files = [FileRows(documents=line["documents"], first_row=line.get("rows", [1])[0]) for line in receipt.sources]
    has_rows_file = any(record.path == ROWS for record in receipt.files)
    return SourceRowIndex(
        files, document_index.open_runs(directory / ROWS) if has_rows_file else document_index.build_empty_runs()
    )


@dataclass(frozen=True, kw_only=True)
class TokenShard:
    """A shard to build: its destination, and its files in manifest order.

    Attributes:
        artifact: The shard's artifact.
        store: The store of the artifact.
        files: The shard's files, in order.
        plan: Everything that determines the bytes of the stream.
        budget: Maximum share of rows that may be dropped as bad.
        sizes: Bytes of each file as stored.
        megatron: Whether to add Megatron's index of the stream (`tokens.idx`, next to `tokens.bin`).
        salt: Any text; it changes the key, to force a new build.
        retracted: Ids of the plan's retraction list that apply to the shard, as far as is known before the build. With
            these ids, the key is the finished shard's key.
        ruled_out: The rows of the files that the dataset's selection drops; None if there is no selection.
        exceeded_budget: The budget, if the finished shard exceeds it (`find_exceeded_budget`).
    """

    artifact: Artifact
    store: ArtifactStore
    files: tuple[SourcePart, ...]
    plan: StreamPlan
    budget: float
    sizes: tuple[int, ...]
    megatron: bool = False
    salt: str = ""
    retracted: tuple[str, ...] = ()
    ruled_out: DroppedRows | None = None
    exceeded_budget: float | None = None

    @property
    def directory(self) -> Path:
        """The directory in which the shard's artifact is built."""
        return self.store.directory(self.artifact)

    @property
    def partition(self) -> str:
        """The shard's partition key."""
        return self.artifact.partition or ""

    @property
    def source_bytes(self) -> int:
        """Total size of the files as stored."""
        return sum(self.sizes)

    @property
    def key(self) -> str:
        """Digest of everything that determines the shard's bytes."""
        files = [_build_file_identity(f) for f in self.files]
        # The key omits the reasons for dropping rows, because they do not change the shard's bytes.
        ruled_out = "" if self.ruled_out is None else self.ruled_out.digest
        options = [self.megatron, self.salt, list(self.retracted), ruled_out]
        # Add the budget only if it is exceeded, because it does not change the shard's bytes.
        exceeded = [] if self.exceeded_budget is None else [self.exceeded_budget]
        return digest_value(["token_bins", VERSION, self.plan.key_parts(), files, options, *exceeded])

    @property
    def staging_key(self) -> str:
        """The key under which parts are staged; parts built with a different retraction list cannot be used."""
        retraction_list = self.plan.retracted.hex()
        return digest_value([self.key, retraction_list]) if retraction_list else self.key

    @property
    def recipe(self) -> Recipe:
        """The named values that enter the key."""
        stream = self.plan.key_parts()
        tokenizer = stream.pop("tokenizer")
        version = stream.pop("stream")
        policy = stream.pop("bad_records")
        files = {_format_source_name(file): file.sha256 for file in self.files}
        return Recipe(
            artifact=self.artifact,
            key=self.key,
            version=VERSION,
            settings={
                **stream,
                "stream_version": version,
                "bad_records.policy": policy,
                "bad_records.budget": self.exceeded_budget,
                **{name: limit for file in self.files for name, limit in file.limits.items()},
                "megatron": self.megatron,
                "salt": self.salt or None,
                "retracted": describe_ids(self.retracted) or None,
                "selection": str(self.ruled_out or "") or None,
            },
            sources={"tokenizer": tokenizer, **files},
        )


def _format_source_name(file: SourcePart) -> str:
    return file.label if file.rows is None else f"{file.label}[{file.rows.first}:{file.rows.stop}]"


def _build_file_identity(file: SourcePart) -> list[Any]:
    identity = [file.label, file.sha256, file.format, file.compression, *file.limits.values()]
    return identity if file.rows is None else [*identity, [file.rows.first, file.rows.stop]]


def _list_part_files(staged: Path, piece: int) -> PartFiles:
    kinds = ("tokens", "ends", "ids", "rows")
    return PartFiles(**{kind: staged / f"{piece:08d}.{kind}" for kind in kinds})


def _get_counters_path(staged: Path, piece: int) -> Path:
    return staged / f"{piece:08d}.json"


def find_finished_part(staged: Path, piece: int) -> EncodedPart | None:
    """Return the counts of a part that an earlier run finished; None if the part must be built.

    `piece` is the file's position in its shard. The ordinal in the manifest is unsuitable: it changes when another
    split gains a file, and a later run would then use one file's part for another.

    A part is not synced to disk, so it is trusted only within the boot that wrote it: it survives a kill, but perhaps
    not a crash of the machine.
    """
    try:
        value = load_untrusted_json(_get_counters_path(staged, piece).read_bytes())
        ledger = Ledger.from_json(value["ledger"])
        sizes = _read_sizes(_list_part_files(staged, piece))
    except (OSError, ValueError, KeyError, DataprepError):
        return None
    # Reuse a part only if it was certainly written since the last boot, because a crash before that boot may have lost
    # the part's unsynced bytes.
    if read_boot_id() is None or value["boot"] != read_boot_id() or value["sizes"] != sizes:
        return None
    return EncodedPart(
        ledger=ledger,
        quarantine=tuple(tuple(q) for q in value["quarantine"]),
        cpu_seconds=value["cpu_seconds"],
        wall_seconds=value["wall_seconds"],
        truncated=value["truncated"],
        retracted=tuple(value["retracted"]),
    )


def _read_sizes(files: PartFiles) -> list[int]:
    return [path.stat().st_size for path in files.all_files]


def encode_piece(plan: StreamPlan, part: SourcePart, staged: Path, piece: int) -> EncodedPart:
    """Encode one file, as a worker's task, into its part of the staging directory; a rename adds its counters last.

    Args:
        plan: Everything that determines the bytes of the stream.
        part: The source file.
        staged: The shard's staging directory.
        piece: The file's position in its shard, from 0.
    """
    # Import the encoder here, because every command imports this module for the names and keys of shards.
    from dataprep_assets.stream.part_encoder import encode_part

    files, counters = _list_part_files(staged, piece), _get_counters_path(staged, piece)
    # Remove old files instead of overwriting them, because after a kill between publishing and cleaning up, a part may
    # be a hard link to the published shard's tokens. Remove the old counters, because they do not describe the new
    # files.
    for leftover in (*files.all_files, counters):
        leftover.unlink(missing_ok=True)
    with convert_disk_errors(staged):
        encoded_part = encode_part(plan, part, files, report_work)
        value = asdict(encoded_part) | {"boot": read_boot_id(), "sizes": _read_sizes(files)}
        draft = counters.with_suffix(".draft")
        draft.write_bytes(canonical_json(value))
        os.replace(draft, counters)
    return encoded_part


def complete_shard(shard: TokenShard, parts: Iterable[EncodedPart]) -> TokenShard:
    """Return the shard with the retracted ids that its encoded files contained, and so with its final key."""
    retracted = tuple(sorted({document_id for part in parts for document_id in part.retracted}))
    return replace(shard, retracted=retracted, exceeded_budget=None)


def seal_shard(shard: TokenShard, staged: Path, parts: Mapping[int, EncodedPart]) -> Receipt:
    """Join the parts of a complete shard, write its receipt and commit it, as a worker's task.

    Args:
        shard: The shard.
        staged: Its staging directory.
        parts: The counts of each file, by the file's position in the shard.

    Raises BadRecordError if more rows were dropped than the budget allows.
    """
    in_order, shard = [parts[piece] for piece in range(len(shard.files))], complete_shard(shard, parts.values())
    # Require room for a second copy of every part, because the parts stay until the joined files are published.
    needed = sum(sum(_read_sizes(_list_part_files(staged, piece))) for piece in range(len(shard.files)))
    with convert_disk_errors(staged, needed):
        return _seal_parts(shard, staged, in_order)


def _seal_parts(shard: TokenShard, staged: Path, in_order: Sequence[EncodedPart]) -> Receipt:
    """Join the parts of a shard, write its receipt, and publish it in place of `staged`."""
    # Check the ledger before joining, so that a refused shard does not cost a copy of its parts.
    ledger = Ledger.total(p.ledger for p in in_order)
    ledger.require_balance(str(shard.artifact))
    _check_budget(shard, ledger, in_order)
    final = staged / "final"
    # Remove files left here by a run that was killed while sealing, because joining fails if a file exists.
    _clear_directory(final)
    final.mkdir()
    paths = [_list_part_files(staged, piece) for piece in range(len(shard.files))]
    flat_bins.concatenate([p.tokens for p in paths], final / TOKENS)
    document_ends.concatenate(
        [(p.ends, part.ledger.tokens) for p, part in zip(paths, in_order, strict=True)], final / ENDS
    )
    # Check the joined tokens before the receipt is written, because a part may be shorter or longer than its ledger
    # says.
    flat_bins.validate(final / TOKENS, shard.plan.dtype, ledger.tokens)
    if shard.plan.ids is not None:
        document_index.concatenate_ids([p.ids for p in paths], final / IDS, ledger.documents)
    document_index.concatenate_runs(
        [(p.rows, part.ledger.documents) for p, part in zip(paths, in_order, strict=True)], final / ROWS
    )
    if shard.megatron:
        ends = document_ends.open_ends(final / ENDS)
        megatron.write_idx(final / MEGATRON_INDEX, ends, dtype=shard.plan.dtype)
    quarantine = [
        {"file": f.label, "row": row, "byte": byte, "reason": reason}
        for f, part in zip(shard.files, in_order, strict=True)
        for row, byte, reason in part.quarantine
    ]
    if quarantine:
        (final / QUARANTINE).write_bytes(b"".join(canonical_json(q) + b"\n" for q in quarantine))
    receipt = Receipt(
        dataset=shard.artifact.dataset,
        artifact=shard.artifact.name,
        partition=shard.artifact.partition,
        key=shard.key,
        inputs={f.label: f.sha256 for f in shard.files} | {"tokenizer": shard.plan.tokenizer_digest},
        files=record_files(final),
        facts=_build_facts(shard, in_order).to_json(),
        ledger=ledger,
        sources=tuple(_build_source_line(f, p) for f, p in zip(shard.files, in_order, strict=True)),
        measured={
            "created": format_current_time(),
            "versions": read_versions(),
            "cpu_seconds": round(sum(p.cpu_seconds for p in in_order), 3),
            "wall_seconds": round(sum(p.wall_seconds for p in in_order), 3),
        },
        recipe=shard.recipe.to_json(),
    )
    # Remove the parts last, because they are needed to seal the shard again after a kill before publishing. After a
    # later kill, the next run removes them.
    receipt.write(final)
    publish_directory(final, shard.directory)
    shard.store.publish(shard.artifact)
    _clear_directory(staged)
    return receipt


def _build_facts(shard: TokenShard, parts: Sequence[EncodedPart]) -> TokenBinsFacts:
    plan = shard.plan
    # Do not set facts that do not apply, so that the receipt omits them.
    optional_facts: dict[str, Any] = {}
    if shard.retracted:
        optional_facts["retracted"] = shard.retracted
    if plan.max_tokens is not None:
        optional_facts["truncated"] = sum(part.truncated for part in parts)
    if plan.ids is not None:
        optional_facts |= {"document_ids": "text" if plan.ids.id_field is None else "field"} | plan.ids.key_parts()
    return TokenBinsFacts(
        dtype=plan.dtype,
        separator_id=plan.separator_id,
        bos_id=plan.bos_id,
        special_tokens=plan.special_tokens,
        certificate=plan.certificate,
        **optional_facts,
    )


def _build_source_line(file: SourcePart, part: EncodedPart) -> dict[str, Any]:
    ledger = part.ledger
    return {
        "file": file.label,
        "sha256": file.sha256,
        "rows_in": ledger.rows_in,
        "documents": ledger.documents,
        "dropped": dict(ledger.dropped),
        "tokens": ledger.tokens,
        **{name: count for name in LOSSES if (count := getattr(ledger, name))},
        **({"rows": [file.rows.first, file.rows.stop]} if file.rows is not None else {}),
    }


def _check_budget(shard: TokenShard, ledger: Ledger, parts: Sequence[EncodedPart]) -> None:
    from dataprep_assets.sources.readers.unreadable import format_budget_advice

    bad_row_count = sum(len(p.quarantine) for p in parts)  # documents filtered by the plan are not bad rows
    if bad_row_count and bad_row_count > shard.budget * ledger.rows_in:
        worst = Counter({f.label: len(p.quarantine) for f, p in zip(shard.files, parts, strict=True)}).most_common(1)[0]
        first_bad = next((f, *p.quarantine[0]) for f, p in zip(shard.files, parts, strict=True) if p.quarantine)
        file, row, byte, reason = first_bad
        if (record := file.record_at(row, shard.plan.fields)) is not None and record.bad:
            reason = str(record.bad[0])  # the record's error has more detail than the counted reason
        drops = ", ".join(f"{reason} {count:,}" for reason, count in ledger.dropped.items())
        raise BadRecordError(
            f"{shard.artifact}: {bad_row_count} of {count_of(ledger.rows_in, 'row')} would be dropped ({drops}), more "
            f"than the budget of {format_share(shard.budget)}. The first bad row is {file.label}, row {row}, byte "
            f"{byte}: {reason}. The file with the most bad rows is {worst[0]}, with {worst[1]}. "
            f"{format_budget_advice(bad_row_count, ledger.rows_in)}",
            file=file.label,
            row=row,
        )


def _clear_directory(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
