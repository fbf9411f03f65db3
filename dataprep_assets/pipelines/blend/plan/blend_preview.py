"""The blend preview (`<dataset>/blend_preview`): an estimate of the blend before any file is fetched or tokenized.

A check stops the run if a dataset would round to zero samples.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pydantic import Field

from dataprep_assets.bounds import report_position
from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure
from dataprep_assets.engine.artifact.metadata_values import Shown, Table
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest
from dataprep_assets.engine.checks.check import Check, Finding, OpenedArtifact, Row, verdict
from dataprep_assets.engine.checks.verdicts import WholeChecks
from dataprep_assets.errors import count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats.flat_bins import token_dtype
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.blend_sample import row_texts
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration, Stage
from dataprep_assets.pipelines.blend.output.share_plot import plot_shares
from dataprep_assets.pipelines.blend.plan.discovery import open_place, present_part
from dataprep_assets.pipelines.blend.plan.fields import describe_all_refused, fault_of_files, read_fields, why_unusable
from dataprep_assets.pipelines.blend.plan.plan import (
    BLEND_PLAN,
    BlendPlan,
    PlannedUnit,
    from_file_on,
    load_blend_plan,
    plan_key,
)
from dataprep_assets.pipelines.blend.sft.sampled_tokens import row_counter, row_refusal
from dataprep_assets.pipelines.blend.stream import blend_dtype
from dataprep_assets.planning.blend import record_repeats, record_shares, requested_shares, source_outlooks
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.sources.access import SourceAccess
from dataprep_assets.sources.readers.rows import RowBlock, count_rows
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.source import disk_headroom
from dataprep_assets.stream.tokenizer import load_bundle
from dataprep_assets.tokenization.engines import ReferenceEngine
from dataprep_assets.tokenization.losses import encode_or_name, row_of

# Rows and tokens are estimated from a sample of each dataset. Local datasets are sampled by their first, middle and
# last file, and remote ones by their smallest file. A file that is read to its end is counted exactly.

FILES = 3
ROWS_PER_FILE = 2000
"""Number of rows to read per file, which takes about a second."""
DOCUMENTS_PER_FILE = 100
"""Number of rows to tokenize per file, the first ones that were read."""
_ARROW_BYTES = 16 << 20
"""Minimum bytes to read of an Arrow file; its batches end within pieces of a few MiB, so few pieces miscount rows."""


@dataclass(frozen=True, kw_only=True)
class SourcePreview:
    """The estimates of one dataset; `samples` are the training samples of its share.

    In a trial (`sample`, `max_rows`), `rows`, `tokens`, `bytes_to_fetch` and `disk_bytes` describe what it reads. The
    shares, `epochs` and `samples` always describe the whole dataset.
    """

    split: str
    name: str
    path: str
    weight: float
    files: int
    source_bytes: int
    rows: int
    tokens: int
    shards: int
    requested: float
    realisable: float
    epochs: float
    samples: int
    bytes_to_fetch: int
    disk_bytes: int

    @property
    def rounds_to_zero(self) -> bool:
        """Whether its share of the training is less than one sample."""
        return self.samples < 1


@dataclass(frozen=True)
class _Amount:
    rows: float
    tokens: float


def preview_blend(blend: BlendDeclaration, plan: BlendPlan) -> list[SourcePreview]:
    """Return the preview of every dataset, split by split."""
    amounts = {unit.name: _estimate(blend, unit) for unit in plan.units}
    previews = []
    for split in dict.fromkeys(unit.home for unit in plan.units):
        units = [unit for unit in plan.units if unit.home == split]
        looks = _record_prospects(units, amounts) if blend.stage == "rl" else _token_prospects(blend, units, amounts)
        for unit, look in zip(units, looks, strict=True):
            part = _part(blend, unit, amounts[unit.name])
            amount = _Amount(rows=part * amounts[unit.name].rows, tokens=part * amounts[unit.name].tokens)
            chosen_entries = {piece.entry for index in unit.chosen for piece in unit.shards[index].parts}
            access = open_place(unit.dataset, blend.sources).access
            previews.append(
                SourcePreview(
                    split=split,
                    name=unit.name,
                    path=unit.dataset.path,
                    weight=unit.dataset.weight,
                    files=len(unit.entries),
                    source_bytes=unit.size_bytes,
                    rows=round(amount.rows),
                    tokens=round(amount.tokens),
                    shards=len(unit.chosen),
                    requested=look.requested,
                    realisable=look.realisable,
                    epochs=look.epochs,
                    samples=look.samples,
                    bytes_to_fetch=access.bytes_to_fetch([entry for entry in unit.entries if entry in chosen_entries]),
                    disk_bytes=_disk_bytes(blend, part * unit.size_bytes, amount)
                    + _split_file_bytes(blend, units, part * unit.size_bytes, look.epochs),
                )
            )
    return previews


@dataclass(frozen=True, kw_only=True)
class _Prospect:
    """The requested share of a dataset, and the share that its data allows."""

    requested: float
    realisable: float
    epochs: float
    samples: int


def _token_prospects(
    blend: BlendDeclaration, units: Sequence[PlannedUnit], amounts: Mapping[str, _Amount]
) -> list[_Prospect]:
    looks = source_outlooks(
        requested_shares({unit.name: unit.dataset.weight for unit in units}),
        {unit.name: round(amounts[unit.name].tokens) for unit in units},
        train_tokens=blend.train_tokens,
        max_epochs=blend.max_epochs,
    )
    return [
        _Prospect(
            requested=look.requested,
            realisable=look.realisable,
            # without tokens the number is infinite, which JSON cannot represent
            epochs=look.epochs if look.tokens else 0.0,
            samples=int(look.wanted_tokens // _tokens_per_sample(blend, look.tokens)) if look.tokens else 0,
        )
        for look in looks
    ]


def _record_prospects(units: Sequence[PlannedUnit], amounts: Mapping[str, _Amount]) -> list[_Prospect]:
    """Return the prospects of RL datasets, which repeat records according to the weights; a sample is a record."""
    weights = {unit.name: unit.dataset.weight for unit in units}
    rows = {unit.name: round(amounts[unit.name].rows) for unit in units}
    repeats = record_repeats(weights)
    requested, realisable = record_shares(rows, weights), record_shares(rows, repeats)
    return [
        _Prospect(
            requested=requested[name],
            realisable=realisable[name],
            epochs=float(repeats[name]) if rows[name] else 0.0,
            samples=rows[name] * repeats[name],
        )
        for name in weights
    ]


def _tokens_per_sample(blend: BlendDeclaration, tokens: int) -> int:
    """Return the tokens per sample of a dataset: a packed row may be partly filled, a sequence is always full."""
    return min(sample_size(blend), tokens) if blend.stage == "sft" else sample_size(blend)


def sample_size(blend: BlendDeclaration) -> int:
    """Return the tokens per training sample; for RL a sample is a record."""
    sizes = {"pretrain": blend.pretrain_options.sequence_length, "sft": blend.sft_options.pack_size, "rl": 1}
    return sizes[blend.stage]


def _part(blend: BlendDeclaration, unit: PlannedUnit, whole: _Amount) -> float:
    """Return the part of a dataset that its chosen shards read, each at most its first `max_rows` rows."""
    size = sum(unit.shards[index].total_bytes for index in unit.chosen)
    part = size / unit.size_bytes if unit.size_bytes else 1.0
    row_limit = float("inf") if blend.max_rows is None else blend.max_rows * len(unit.chosen)
    return min(part, row_limit / whole.rows) if whole.rows else part


def _disk_bytes(blend: BlendDeclaration, source_bytes: float, amount: _Amount) -> int:
    """Estimate the bytes of the shards: ids, ends and index; ids and mask, uncompressed; or, for RL, the source."""
    if blend.stage == "pretrain":
        # a document takes 8 bytes for its end and, in the idx, 4 for its length, 8 for its pointer and 8 for its index
        return round(amount.tokens * token_dtype(blend_dtype(blend)).itemsize + amount.rows * (8 + 4 + 8 + 8))
    return round(amount.tokens * (4 + 1)) if blend.stage == "sft" else round(source_bytes)


def _split_file_bytes(blend: BlendDeclaration, units: Sequence[PlannedUnit], source_bytes: float, epochs: float) -> int:
    """Return the bytes of an RL dataset in the file of its split; 0 if the file is a link to the only shard."""
    # several shards, or one that is read more than once, are copied into a separate file
    is_link = sum(len(unit.chosen) for unit in units) == 1 and epochs <= 1
    return 0 if blend.stage != "rl" or is_link else round(source_bytes * epochs)


def sampled_paths(blend: BlendDeclaration, unit: PlannedUnit) -> list[Path]:
    """Return the files to search for faults of a dataset: all local files, or the preview's file of a remote one."""
    access = open_place(unit.dataset, blend.sources).access
    entries = _sampled_files(unit, access) if access.mirrored else unit.entries
    access.fetch(entries)
    return [access.path(entry) for entry in entries]


def _estimate(blend: BlendDeclaration, unit: PlannedUnit) -> _Amount:
    access = open_place(unit.dataset, blend.sources).access
    entries = _sampled_files(unit, access)
    access.fetch(entries)
    counter = row_counter(blend, unit.dataset) if blend.stage == "sft" and blend.tokenizer else None
    count = counter or partial(_tokens_a_row, blend, unit)
    estimates = [_estimate_file(blend, unit, entry, access, count) for entry in entries]
    sampled_bytes = sum(entry.size_bytes for entry in entries)
    scale = unit.size_bytes / sampled_bytes if sampled_bytes else 0.0
    return _Amount(rows=scale * sum(a.rows for a in estimates), tokens=scale * sum(a.tokens for a in estimates))


def _sampled_files(unit: PlannedUnit, access: SourceAccess) -> list[ManifestEntry]:
    if access.mirrored:
        # empty files and files of unknown size come last, because they are not representative
        return [min(unit.entries, key=lambda e: (e.size_bytes or 1 << 62, e.ordinal))]
    last_index = len(unit.entries) - 1
    return [unit.entries[i] for i in sorted({0, last_index // 2, last_index})][:FILES]


def _estimate_file(
    blend: BlendDeclaration,
    unit: PlannedUnit,
    entry: ManifestEntry,
    access: SourceAccess,
    tokens_a_row: Callable[[str, RowBlock], float],
) -> _Amount:
    """Estimate the rows and tokens of one file from its first rows."""
    path = access.path(entry)
    columns = read_fields(blend, unit.dataset)
    reader = present_part(blend, unit.dataset, entry, path).read_rows(columns)
    sample = RowBlock()
    enough = _ARROW_BYTES if entry.format == "arrow" else 0
    rows, looked_at, read, is_complete = 0, 0, 0, True
    for block in reader:
        # A piece of the file gives several blocks, so rows are compared with bytes only when the next piece begins.
        # After all bytes are read, the remaining rows cost little and make the count exact.
        if reader.bytes_read > read:
            if rows >= ROWS_PER_FILE and read >= enough and reader.bytes_read < entry.size_bytes:
                is_complete = False
                break
            read = reader.bytes_read
        rows += len(block.rows)
        few = zip(block.rows, block.numbers, block.offsets, strict=True)
        for row, number, byte in itertools.islice(few, DOCUMENTS_PER_FILE - len(sample.rows)):
            looked_at += 1
            if any(row_texts(blend, unit, row)):
                sample.add(row, number, byte)
    if not is_complete:
        if entry.format == "parquet":
            # the footer has the number of rows, without reading a page
            rows = count_rows(path, format=entry.format, compression=None, label=entry.relpath)
        else:
            # both are stored (compressed) bytes, so this is also true for compressed files
            rows = round(rows * entry.size_bytes / max(1, read))
    # rows without text have no tokens, and are assumed to be as frequent in the rest of the file
    with_text = rows * len(sample.rows) / max(1, looked_at)
    return _Amount(rows=rows, tokens=with_text * (tokens_a_row(entry.relpath, sample) if sample.rows else 0.0))


def _tokens_a_row(blend: BlendDeclaration, unit: PlannedUnit, label: str, some: RowBlock) -> float:
    if blend.tokenizer is None:
        return 0.0
    report_position(label, some.numbers[0])
    texts = ["\n".join(row_texts(blend, unit, row)) for row in some.rows]
    bundle = load_bundle(blend.tokenizer)
    encode = ReferenceEngine(bundle, "text").encode
    ids, _ = encode_or_name(encode, texts, bundle.name, lambda index: row_of(label, some.numbers[index]))
    options = blend.pretrain_options
    added = options.add_bos + options.add_eos if blend.stage == "pretrain" else 0
    return len(ids) / len(texts) + added


VERSIONS: dict[Stage, int] = {"pretrain": 2, "sft": 4, "rl": 2}
"""Version of the step, by stage."""
BLEND_PREVIEW = "blend_preview"
PREVIEW = "preview.json"


class BlendPreviewFacts(Facts):
    """The preview of every dataset (`sources`), the datasets that round to zero, and sums over all datasets.

    `faults` has a sentence for each of the latter that is empty or lacks the field to read.
    """

    run_hash: str
    sources: tuple[SourcePreview, ...]
    rounds_to_zero: tuple[str, ...]
    rows: int
    tokens: int
    shards: int
    bytes_to_fetch: int
    disk_bytes: int
    faults: dict[str, str] = Field(default_factory=dict)


def blend_preview_spec(blend: BlendDeclaration, *, plan: ArtifactSpec) -> ArtifactSpec:
    """Return the spec of the preview of a blend's `plan`."""
    return ArtifactSpec(
        declaration=blend,
        name=BLEND_PREVIEW,
        version=VERSIONS[blend.stage],
        description="Rows, tokens, epochs and possible weights of each dataset, estimated from a sample.",
        kinds={"json"},
        inputs=(plan,),
        verification="full",
        names_places=frozenset(),  # it contains the paths of the datasets
        recipes=lambda store, _: [_recipe(blend, store, load_blend_plan(blend, store))],
        build=partial(_build, blend),
        metadata=_metadata,
        check_groups=(WholeChecks(checks=_CHECKS, open=partial(_open, blend)),),
    )


def _recipe(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> Recipe:
    settings = {
        "train_tokens": blend.train_tokens,
        "max_epochs": blend.max_epochs,
        "tokens_per_sample": sample_size(blend),
    }
    return Recipe(
        artifact=blend.artifact(BLEND_PREVIEW),
        key=digest_value(["blend_preview", VERSIONS[blend.stage], plan_key(plan), list(settings.values())]),
        version=VERSIONS[blend.stage],
        settings=settings,
        upstream={BLEND_PLAN: store.require(blend.artifact(BLEND_PLAN)).content},
    )


def _build(blend: BlendDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    yield Outcome.from_receipt(*build_blend_preview(blend, request.store, load_blend_plan(blend, request.store)))


def build_blend_preview(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> tuple[Receipt, bool]:
    """Read a sample of every dataset of `plan` and commit `preview.json`, whose rows are also the fact `sources`.

    `blend` is the declaration, `store` receives the preview. Returns the receipt and whether it was reused, because the
    plan is the same. Datasets that round to zero are listed in the fact `rounds_to_zero`, and a check fails on them.
    """

    def write(staged: Path) -> WrittenFiles:
        previews = preview_blend(blend, plan)
        faults = _faults(blend, plan, {source.name: source for source in previews if source.rounds_to_zero})
        (staged / PREVIEW).write_text(_text(previews), encoding="utf-8")
        return WrittenFiles(
            inputs={unit.name: unit.plan_hash for unit in plan.units},
            facts=_facts(plan, previews, faults),
        )

    return ensure(_recipe(blend, store, plan), store, write)


def _text(found: Sequence[SourcePreview]) -> str:
    """Return the text of `preview.json`."""
    rows = [asdict(source) for source in found]
    return json.dumps(rows, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _facts(plan: BlendPlan, found: Sequence[SourcePreview], faults: Mapping[str, str]) -> BlendPreviewFacts:
    return BlendPreviewFacts(
        run_hash=plan.run_hash,
        sources=tuple(found),
        rounds_to_zero=tuple(source.name for source in found if source.rounds_to_zero),
        rows=sum(source.rows for source in found),
        tokens=sum(source.tokens for source in found),
        shards=sum(source.shards for source in found),
        bytes_to_fetch=sum(source.bytes_to_fetch for source in found),
        disk_bytes=sum(source.disk_bytes for source in found),
        # omitted if empty, so that receipts without faults do not change
        **{"faults": dict(faults)} if faults else {},
    )


def _faults(blend: BlendDeclaration, plan: BlendPlan, sources: Mapping[str, SourcePreview]) -> dict[str, str]:
    """Return dataset → fault, for the given datasets that have a fault of their own."""
    faults: dict[str, str] = {}
    for unit in plan.units:
        if (source := sources.get(unit.name)) is not None:
            paths = sampled_paths(blend, unit)
            # Specific faults come first: a field that no row has, rows that are all rejected, conversations that are
            # all too long, too little data. Only the first fault is reported, because the others may follow from it.
            fault = fault_of_files(blend, unit.dataset, paths, whole=len(paths) == len(unit.entries))
            if fault is None and not (source.tokens or (blend.stage == "rl" and source.rows)):
                fault = describe_all_refused(blend, unit.dataset, paths, _refusal(blend, unit))
            if (fault := fault or _too_long(blend, unit, source) or _too_small(blend, unit, source)) is not None:
                faults[unit.name] = fault
    return faults


def _refusal(blend: BlendDeclaration, unit: PlannedUnit) -> Callable[[dict[str, Any]], str | None]:
    """Return the function that explains why a row cannot be trained on; a template may also reject conversations."""
    if blend.stage == "rl":  # transforms decide for RL
        return lambda _: None
    return row_refusal(blend, unit.dataset) if blend.stage == "sft" else partial(why_unusable, blend, unit.dataset)


def _too_long(blend: BlendDeclaration, unit: PlannedUnit, source: SourcePreview) -> str | None:
    """Return a fault if long conversations are dropped and no sampled conversation is left."""
    if blend.stage != "sft" or source.tokens or blend.sft_options.too_long != "drop":
        return None
    return (
        f"{unit.name}: none of the sampled conversations{from_file_on(blend, unit)} is left. `too_long: drop` drops "
        f"conversations longer than `pack_size: {blend.sft_options.pack_size}`. Raise it, or set `too_long: truncate`"
    )


def _too_small(blend: BlendDeclaration, unit: PlannedUnit, source: SourcePreview) -> str | None:
    """Return a fault if the whole dataset, repeated up to the limit, is less than a sample, which no weight can fix.

    Only streams can have this fault: a packed row may stay half empty, and an RL sample is a record.
    """
    size, times = sample_size(blend), blend.max_epochs or 1
    if blend.stage != "pretrain" or source.tokens * times >= size:
        return None
    epochs = f", {times:g} times over," if times != 1 else ""
    # the number of rows has no unit, because receipts store only the sentence, and not the type of its numbers
    return (
        f"{unit.name}: {count_of(source.tokens, 'token')} in total (rows: "
        f"{source.rows:,}{from_file_on(blend, unit)}){epochs} are fewer than one sample of {size:,}"
    )


def _metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    facts = BlendPreviewFacts.of(receipt)
    rows = [asdict(source) for source in facts.sources]
    return {
        "preview": Table(rows),
        "requested_and_realisable": plot_shares(rows, "realisable"),
        "expected_rows": facts.rows,
        "expected_tokens": facts.tokens,
        "expected_shards": facts.shards,
        "bytes_to_fetch": facts.bytes_to_fetch,
        "disk_bytes": facts.disk_bytes,
        "rounds_to_zero": ", ".join(facts.rounds_to_zero) or "none",
    }


@dataclass(frozen=True)
class _OpenedPreview(OpenedArtifact):
    """A preview, opened for checks."""

    blend: BlendDeclaration

    @cached_property
    def facts(self) -> BlendPreviewFacts:
        """The receipt's facts; raises IntegrityError if one is missing."""
        return BlendPreviewFacts.of(self.receipt)

    def other_claims(self) -> Iterator[str]:
        """Yield contradictions between the receipt, the file and the plan."""
        facts, file = self.facts, self.directory / PREVIEW
        if facts != _facts(load_blend_plan(self.blend, self.store), facts.sources, facts.faults):
            yield f"{self.blend.dataset}: the receipt of its preview contradicts itself, or belongs to a different plan"
        if not file.is_file() or file.read_bytes() != _text(facts.sources).encode():
            yield f"{file}: does not match the receipt of the preview"


def _open(blend: BlendDeclaration, store: ArtifactStore, _: Sequence[str]) -> _OpenedPreview:
    return _OpenedPreview(blend.artifact(BLEND_PREVIEW), store, blend).with_files()


_FAULT_ADVICE = "Set the field that its rows have, correct its rows or its path, add data, or set its weight to 0"


def every_dataset_sampled(preview: Receipt, others: Iterable[str] = ()) -> Finding:
    """Check that every dataset with a weight has data, and that its share of the training is at least one sample.

    `preview` is the receipt, `others` are defects found by other checks.
    """
    facts = BlendPreviewFacts.of(preview)
    sources, faults = facts.sources, facts.faults
    zero = [source for source in sources if source.rounds_to_zero]
    # datasets with a fault come first, because no weight helps them
    zero.sort(key=lambda source: source.name not in faults)
    sentences = [
        faults.get(source.name)
        or f"{source.name}: a share of {source.requested:.6f} "
        f"is {count_of(source.samples, 'sample')} of {count_of(source.tokens, 'token')}"
        for source in zero
    ]
    return verdict(
        [*sentences, *others],
        f"Each of {count_of(len(sources), 'dataset')} contributes at least one sample.",
        _FAULT_ADVICE if faults else "Raise its weight, or `train_tokens`, or set its weight to 0",
        facts={"datasets": len(sources), "rounded_to_zero": len(zero)},
        table=[_preview_row(source) for source in sources],
    )


def _preview_row(source: SourcePreview) -> Row:
    names = ("split", "name", "rows", "tokens", "requested", "realisable", "epochs", "samples", "shards")
    row = asdict(source)
    return {name: row[name] for name in names}


_CHECKS: tuple[Check[_OpenedPreview], ...] = (
    Check(
        "every_dataset_sampled",
        "Every dataset with a weight has data and contributes at least one training sample.",
        lambda preview: every_dataset_sampled(preview.receipt, preview.other_claims()),
    ),
    Check(
        "disk_headroom",
        "There is room for downloads and artifacts, with 20 % to spare.",
        lambda preview: disk_headroom(preview.store.root, preview.facts.bytes_to_fetch + preview.facts.disk_bytes),
        blocking=False,
    ),
)
