"""The blend preview (`<dataset>/blend_preview`): an estimate of the blend before the build downloads and tokenizes it.

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
from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.metadata_values import ShownValue, Table
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest
from dataprep_assets.engine.checks.check import Check, Finding, OpenedArtifact, Row, build_verdict
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.errors import count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats.flat_bins import token_dtype
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.blend_sample import find_row_texts
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration, Stage
from dataprep_assets.pipelines.blend.output.share_plot import plot_shares, rename_columns
from dataprep_assets.pipelines.blend.plan.discovery import open_place, open_source_part
from dataprep_assets.pipelines.blend.plan.fields import (
    describe_all_refused,
    explain_unusable,
    find_fault,
    list_read_fields,
    reads_json,
)
from dataprep_assets.pipelines.blend.plan.plan import (
    BLEND_PLAN,
    BlendPlan,
    PlannedUnit,
    compute_plan_key,
    describe_first_file,
    load_blend_plan,
)
from dataprep_assets.pipelines.blend.sft.sampled_tokens import build_refusal_function, build_row_counter
from dataprep_assets.pipelines.blend.stream import choose_dtype
from dataprep_assets.planning.blend import compute_outlooks, compute_record_shares, compute_repeats, normalize_weights
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.sources.access import SourceAccess
from dataprep_assets.sources.readers.rows import RowBlock, count_rows
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.source import disk_headroom
from dataprep_assets.stream.tokenizer import load_declared_tokenizer
from dataprep_assets.tokenization.engines import ReferenceEngine
from dataprep_assets.tokenization.losses import encode_or_locate, locate_row

# Rows and tokens are estimated from a sample of each dataset: from the first, middle and last file of a local dataset,
# and from the smallest file of a remote one. The number of rows is exact for a Parquet file, and for a file that is
# read to its end.

FILES = 3
ROWS_PER_FILE = 2000
"""Number of rows to read per file. Reading them takes about a second."""
DOCUMENTS_PER_FILE = 100
"""Number of rows to tokenize per file, beginning at its first row."""
_ARROW_BYTES = 16 << 20
"""Minimum number of bytes to read of an Arrow file, which is read in pieces of a few MiB.

Batches do not end where pieces end, so an estimate of the rows from only a few pieces would be inaccurate.
"""


@dataclass(frozen=True, kw_only=True)
class SourcePreview:
    """Estimates for one dataset; `samples` is the number of training samples that its share provides.

    In a trial (`sample`, `max_rows`), `rows`, `tokens`, `bytes_to_fetch` and `disk_bytes` count only the data that the
    trial reads. The shares, `epochs` and `samples` always describe the whole dataset.
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
        """Whether the dataset's share of the training data is less than one sample."""
        return self.samples < 1


@dataclass(frozen=True)
class _Amount:
    """Estimated rows and tokens of a dataset or file."""

    rows: float
    tokens: float


def preview_blend(blend: BlendDeclaration, plan: BlendPlan) -> list[SourcePreview]:
    """Return the preview of every dataset, split by split."""
    amounts = {unit.name: _estimate_amount(blend, unit) for unit in plan.units}
    previews = []
    for split in dict.fromkeys(unit.home for unit in plan.units):
        units = [unit for unit in plan.units if unit.home == split]
        prospects = (
            _estimate_record_prospects(units, amounts)
            if blend.stage == "rl"
            else _estimate_token_prospects(blend, units, amounts)
        )
        for unit, prospect in zip(units, prospects, strict=True):
            part = _estimate_part(blend, unit, amounts[unit.name])
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
                    requested=prospect.requested,
                    realisable=prospect.realizable,
                    epochs=prospect.epochs,
                    samples=prospect.samples,
                    bytes_to_fetch=access.bytes_to_fetch([entry for entry in unit.entries if entry in chosen_entries]),
                    disk_bytes=_estimate_disk_bytes(blend, part * unit.size_bytes, amount)
                    + _estimate_split_file_bytes(blend, units, part * unit.size_bytes, prospect.epochs),
                )
            )
    return previews


@dataclass(frozen=True, kw_only=True)
class _Prospect:
    """Requested share of a dataset, the share that its data allows (`realizable`), and its epochs and samples."""

    requested: float
    realizable: float
    epochs: float
    samples: int


def _estimate_token_prospects(
    blend: BlendDeclaration, units: Sequence[PlannedUnit], amounts: Mapping[str, _Amount]
) -> list[_Prospect]:
    """Return the prospects of datasets whose shares are shares of tokens, with repetitions limited by `max_epochs`."""
    outlooks = compute_outlooks(
        normalize_weights({unit.name: unit.dataset.weight for unit in units}),
        {unit.name: round(amounts[unit.name].tokens) for unit in units},
        train_tokens=blend.train_tokens,
        max_epochs=blend.max_epochs,
    )
    return [
        _Prospect(
            requested=outlook.requested,
            realizable=outlook.realizable,
            # Write 0 for a dataset without tokens, because its epochs are infinite, which JSON cannot represent.
            epochs=outlook.epochs if outlook.tokens else 0.0,
            samples=int(outlook.wanted_tokens // _count_tokens_per_sample(blend, outlook.tokens))
            if outlook.tokens
            else 0,
        )
        for outlook in outlooks
    ]


def _estimate_record_prospects(units: Sequence[PlannedUnit], amounts: Mapping[str, _Amount]) -> list[_Prospect]:
    """Return the prospects of RL datasets, whose records are repeated in proportion to the weights."""
    weights = {unit.name: unit.dataset.weight for unit in units}
    rows = {unit.name: round(amounts[unit.name].rows) for unit in units}
    repeats = compute_repeats(weights)
    requested, realizable = compute_record_shares(rows, weights), compute_record_shares(rows, repeats)
    return [
        _Prospect(
            requested=requested[name],
            realizable=realizable[name],
            epochs=float(repeats[name]) if rows[name] else 0.0,
            samples=rows[name] * repeats[name],
        )
        for name in weights
    ]


def _count_tokens_per_sample(blend: BlendDeclaration, tokens: int) -> int:
    """Return the tokens per sample of a dataset. Only a packed SFT row may have fewer tokens than the sample size."""
    return min(get_sample_size(blend), tokens) if blend.stage == "sft" else get_sample_size(blend)


def get_sample_size(blend: BlendDeclaration) -> int:
    """Return the number of tokens per training sample; 1 for pairs and RL, where each row is a sample."""
    sizes = {
        "pretrain": blend.pretrain_options.sequence_length,
        "sft": blend.sft_options.pack_size,
        "pairs": 1,
        "rl": 1,
    }
    return sizes[blend.stage]


def _estimate_part(blend: BlendDeclaration, unit: PlannedUnit, total_amount: _Amount) -> float:
    """Return the fraction of a dataset that is read: its chosen shards, or only the first `max_rows` rows of each."""
    size = sum(unit.shards[index].total_bytes for index in unit.chosen)
    part = size / unit.size_bytes if unit.size_bytes else 1.0
    row_limit = float("inf") if blend.max_rows is None else blend.max_rows * len(unit.chosen)
    return min(part, row_limit / total_amount.rows) if total_amount.rows else part


def _estimate_disk_bytes(blend: BlendDeclaration, source_bytes: float, amount: _Amount) -> int:
    """Estimate the size of the shards in bytes.

    Pretraining shards contain ids, ends and an index. SFT shards contain ids and masks, and their compression is
    ignored. Shards of pairs also contain the messages, and RL shards contain the records.
    """
    if blend.stage == "pretrain":
        # Each document takes 8 bytes for its end and, in the idx, 4 for its length, 8 for its pointer and 8 for its
        # document index.
        return round(amount.tokens * token_dtype(choose_dtype(blend)).itemsize + amount.rows * (8 + 4 + 8 + 8))
    if blend.stage == "pairs":
        return round(amount.tokens * (4 + 1) + source_bytes)
    return round(amount.tokens * (4 + 1)) if blend.stage == "sft" else round(source_bytes)


def _estimate_split_file_bytes(
    blend: BlendDeclaration, units: Sequence[PlannedUnit], source_bytes: float, epochs: float
) -> int:
    """Return the bytes of an RL dataset in its split's file; 0 for other stages, or if the file is only a link."""
    # The file is a link if it consists of one shard that is listed once. Otherwise, the shards are copied into the
    # file.
    is_link = sum(len(unit.chosen) for unit in units) == 1 and epochs <= 1
    return 0 if blend.stage != "rl" or is_link else round(source_bytes * epochs)


def fetch_sample_paths(blend: BlendDeclaration, unit: PlannedUnit) -> list[Path]:
    """Return the files to search for faults: all files of a local dataset, or the sampled file of a remote one."""
    access = open_place(unit.dataset, blend.sources).access
    entries = _sample_files(unit, access) if access.mirrored else unit.entries
    access.fetch(entries)
    return [access.path(entry) for entry in entries]


def _estimate_amount(blend: BlendDeclaration, unit: PlannedUnit) -> _Amount:
    access = open_place(unit.dataset, blend.sources).access
    entries = _sample_files(unit, access)
    access.fetch(entries)
    counter = build_row_counter(blend, unit.dataset) if blend.stage == "sft" and blend.tokenizer else None
    count = counter or partial(_count_tokens_per_row, blend, unit)
    estimates = [_estimate_file(blend, unit, entry, access, count) for entry in entries]
    sampled_bytes = sum(entry.size_bytes for entry in entries)
    scale = unit.size_bytes / sampled_bytes if sampled_bytes else 0.0
    return _Amount(rows=scale * sum(a.rows for a in estimates), tokens=scale * sum(a.tokens for a in estimates))


def _sample_files(unit: PlannedUnit, access: SourceAccess) -> list[ManifestEntry]:
    if access.mirrored:
        # Choose the smallest file, because it must be downloaded. Empty files and files of unknown size come last.
        return [min(unit.entries, key=lambda e: (e.size_bytes or 1 << 62, e.ordinal))]
    last_index = len(unit.entries) - 1
    return [unit.entries[i] for i in sorted({0, last_index // 2, last_index})][:FILES]


def _estimate_file(
    blend: BlendDeclaration,
    unit: PlannedUnit,
    entry: ManifestEntry,
    access: SourceAccess,
    tokens_per_row: Callable[[str, RowBlock], float],
) -> _Amount:
    """Estimate the rows and tokens of one file from its first rows."""
    path = access.path(entry)
    columns = list_read_fields(blend, unit.dataset)
    reader = open_source_part(blend, unit.dataset, entry, path).read_rows(columns, as_json=reads_json(blend))
    sample = RowBlock()
    min_bytes = _ARROW_BYTES if entry.format == "arrow" else 0
    rows, examined_rows, read_bytes, is_complete = 0, 0, 0, True
    for block in reader:
        # Stop only when the reader begins a new piece of the file, because a piece may contain several blocks, and the
        # estimate divides the rows of whole pieces by their bytes. Once all bytes are read, also read the remaining
        # rows, because this costs little and makes the count exact.
        if reader.bytes_read > read_bytes:
            if rows >= ROWS_PER_FILE and read_bytes >= min_bytes and reader.bytes_read < entry.size_bytes:
                is_complete = False
                break
            read_bytes = reader.bytes_read
        rows += len(block.rows)
        numbered_rows = zip(block.rows, block.numbers, block.offsets, strict=True)
        for row, number, byte in itertools.islice(numbered_rows, DOCUMENTS_PER_FILE - len(sample.rows)):
            examined_rows += 1
            if any(find_row_texts(blend, unit, row)):
                sample.add(row, number, byte)
    if not is_complete:
        if entry.format == "parquet":
            # The footer contains the exact number of rows, so no data page needs to be read.
            rows = count_rows(path, format=entry.format, compression=None, label=entry.relpath)
        else:
            # Both `size_bytes` and `read_bytes` count stored bytes, so the estimate is also valid for compressed files.
            rows = round(rows * entry.size_bytes / max(1, read_bytes))
    # Assume that rows without text, which have no tokens, are as frequent in the rest of the file as in the sample.
    text_rows = rows * len(sample.rows) / max(1, examined_rows)
    return _Amount(rows=rows, tokens=text_rows * (tokens_per_row(entry.relpath, sample) if sample.rows else 0.0))


def _count_tokens_per_row(blend: BlendDeclaration, unit: PlannedUnit, label: str, rows: RowBlock) -> float:
    if blend.tokenizer is None:
        return 0.0
    report_position(label, rows.numbers[0])
    texts = ["\n".join(find_row_texts(blend, unit, row)) for row in rows.rows]
    bundle = load_declared_tokenizer(blend.tokenizer)
    encode = ReferenceEngine(bundle, "text").encode
    ids, _ = encode_or_locate(encode, texts, bundle.name, lambda index: locate_row(label, rows.numbers[index]))
    options = blend.pretrain_options
    added = options.add_bos + options.add_eos if blend.stage == "pretrain" else 0
    return len(ids) / len(texts) + added


VERSIONS: dict[Stage, int] = {"pretrain": 2, "sft": 4, "pairs": 1, "rl": 2}
"""Stage → version of the preview's format."""
BLEND_PREVIEW = "blend_preview"
PREVIEW = "preview.json"


class BlendPreviewFacts(Facts):
    """Facts of a preview: the estimates for every dataset (`sources`), the datasets that round to zero, and totals.

    `faults` maps each dataset that rounds to zero because of a fault, such as a missing field, to a sentence.
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


def build_blend_preview_spec(blend: BlendDeclaration, *, plan: ArtifactSpec) -> ArtifactSpec:
    """Return the spec of the preview of a blend's `plan`."""
    return ArtifactSpec(
        declaration=blend,
        name=BLEND_PREVIEW,
        version=VERSIONS[blend.stage],
        description="Rows, tokens, epochs and possible weights of each dataset, estimated from a sample.",
        kinds={"json"},
        inputs=(plan,),
        verification="full",
        # A lock must not compare the bytes of `preview.json`, because it contains the datasets' paths, which differ
        # between machines.
        names_places=frozenset(),
        recipes=lambda store, _: [_build_recipe(blend, store, load_blend_plan(blend, store))],
        build=partial(_build_preview, blend),
        metadata=_build_metadata,
        check_groups=(WholeArtifactChecks(checks=_CHECKS, open=partial(_open_preview, blend)),),
    )


def _build_recipe(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> Recipe:
    settings = {
        "train_tokens": blend.train_tokens,
        "max_epochs": blend.max_epochs,
        "tokens_per_sample": get_sample_size(blend),
    }
    return Recipe(
        artifact=blend.artifact(BLEND_PREVIEW),
        key=digest_value(["blend_preview", VERSIONS[blend.stage], compute_plan_key(plan), list(settings.values())]),
        version=VERSIONS[blend.stage],
        settings=settings,
        upstream={BLEND_PLAN: store.require(blend.artifact(BLEND_PLAN)).content},
    )


def _build_preview(blend: BlendDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    yield Outcome.from_receipt(*build_blend_preview(blend, request.store, load_blend_plan(blend, request.store)))


def build_blend_preview(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> tuple[Receipt, bool]:
    """Read a sample of every dataset of `plan` and commit `preview.json`, whose rows are also the fact `sources`.

    `blend` is the declaration, and `store` receives the preview. Returns the receipt, and whether the preview was
    reused because the plan is unchanged. The fact `rounds_to_zero` lists the datasets that round to zero, for which a
    check fails.
    """

    def write(staged: Path) -> WrittenFiles:
        previews = preview_blend(blend, plan)
        faults = _find_faults(blend, plan, {source.name: source for source in previews if source.rounds_to_zero})
        (staged / PREVIEW).write_text(_format_preview(previews), encoding="utf-8")
        return WrittenFiles(
            inputs={unit.name: unit.plan_hash for unit in plan.units},
            facts=_build_facts(plan, previews, faults),
        )

    return ensure_built(_build_recipe(blend, store, plan), store, write)


def _format_preview(previews: Sequence[SourcePreview]) -> str:
    """Return the text of `preview.json`."""
    rows = [asdict(source) for source in previews]
    return json.dumps(rows, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _build_facts(plan: BlendPlan, previews: Sequence[SourcePreview], faults: Mapping[str, str]) -> BlendPreviewFacts:
    return BlendPreviewFacts(
        run_hash=plan.run_hash,
        sources=tuple(previews),
        rounds_to_zero=tuple(source.name for source in previews if source.rounds_to_zero),
        rows=sum(source.rows for source in previews),
        tokens=sum(source.tokens for source in previews),
        shards=sum(source.shards for source in previews),
        bytes_to_fetch=sum(source.bytes_to_fetch for source in previews),
        disk_bytes=sum(source.disk_bytes for source in previews),
        # Omit `faults` if there are none, because the receipt then shows only what needs attention.
        **{"faults": dict(faults)} if faults else {},
    )


def _find_faults(blend: BlendDeclaration, plan: BlendPlan, sources: Mapping[str, SourcePreview]) -> dict[str, str]:
    """Return a sentence for each dataset of `sources` that has a fault, by dataset."""
    faults: dict[str, str] = {}
    for unit in plan.units:
        if (source := sources.get(unit.name)) is not None:
            paths = fetch_sample_paths(blend, unit)
            # Search for the most specific fault first. In this order, the faults are: a missing field, no usable row,
            # only conversations that are too long, too little data. Report only the first fault, because it may cause
            # the others.
            fault = find_fault(blend, unit.dataset, paths, is_whole=len(paths) == len(unit.entries))
            if fault is None and not (source.tokens or (blend.stage == "rl" and source.rows)):
                fault = describe_all_refused(blend, unit.dataset, paths, _choose_refusal_function(blend, unit))
            if (
                fault := fault or _find_too_long(blend, unit, source) or _find_too_small(blend, unit, source)
            ) is not None:
                faults[unit.name] = fault
    return faults


def _choose_refusal_function(blend: BlendDeclaration, unit: PlannedUnit) -> Callable[[dict[str, Any]], str | None]:
    """Return a function that returns the reason why a row cannot be trained on; None if it can."""
    if blend.stage == "rl":  # accept every row, because only the transforms decide which records are usable
        return lambda _: None
    return (
        build_refusal_function(blend, unit.dataset)
        if blend.stage == "sft"
        else partial(explain_unusable, blend, unit.dataset)
    )


def _find_too_long(blend: BlendDeclaration, unit: PlannedUnit, source: SourcePreview) -> str | None:
    """Return a sentence if every sampled conversation is dropped because it is too long; otherwise None."""
    if blend.stage != "sft" or source.tokens or blend.sft_options.too_long != "drop":
        return None
    return (
        f"{unit.name}{describe_first_file(blend, unit)}: none of the sampled conversations is left, because "
        "`too_long: drop` "
        f"drops conversations longer than `pack_size: {blend.sft_options.pack_size}`. Raise `pack_size`, or set "
        "`too_long: truncate`"
    )


def _find_too_small(blend: BlendDeclaration, unit: PlannedUnit, source: SourcePreview) -> str | None:
    """Return a sentence if the whole dataset, repeated as often as allowed, is less than a sample; otherwise None.

    No weight can correct this fault. Only pretraining can have it, because a packed row may be partly filled, and a
    pair or an RL record is itself a sample.
    """
    size, times = get_sample_size(blend), blend.max_epochs or 1
    if blend.stage != "pretrain" or source.tokens * times >= size:
        return None
    epochs = f", read {times:g} times," if times != 1 else ""
    return (
        f"{unit.name}{describe_first_file(blend, unit)}: {count_of(source.tokens, 'token')} in total (rows: "
        f"{source.rows:,}){epochs} are less than one sample of {count_of(size, 'token')}"
    )


def _build_metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    facts = BlendPreviewFacts.from_receipt(receipt)
    rows = rename_columns([asdict(source) for source in facts.sources])
    return {
        "preview": Table(rows),
        "requested_and_realizable_shares": plot_shares(rows, "realizable"),
        "expected_rows": facts.rows,
        "expected_tokens": facts.tokens,
        "expected_shards": facts.shards,
        "download_bytes": facts.bytes_to_fetch,
        "disk_bytes": facts.disk_bytes,
        "datasets_rounded_to_zero": ", ".join(facts.rounds_to_zero) or "none",
    }


@dataclass(frozen=True)
class _OpenedPreview(OpenedArtifact):
    """A preview that is opened for checks."""

    blend: BlendDeclaration

    @cached_property
    def facts(self) -> BlendPreviewFacts:
        """Facts in the preview's receipt. Raises IntegrityError if a fact is missing."""
        return BlendPreviewFacts.from_receipt(self.receipt)

    def find_contradicted_claims(self) -> Iterator[str]:
        """Yield a sentence for each contradiction between the receipt, `preview.json` and the plan."""
        facts, file = self.facts, self.directory / PREVIEW
        if facts != _build_facts(load_blend_plan(self.blend, self.store), facts.sources, facts.faults):
            yield f"{self.blend.dataset}: the receipt of the preview is inconsistent, or belongs to a different plan"
        if not file.is_file() or file.read_bytes() != _format_preview(facts.sources).encode():
            yield f"{file}: does not match the receipt of the preview"


def _open_preview(blend: BlendDeclaration, store: ArtifactStore, _: Sequence[str]) -> _OpenedPreview:
    return _OpenedPreview(blend.artifact(BLEND_PREVIEW), store, blend).with_local_files()


_FAULT_ADVICE = "Set the correct field, correct the rows or the path, add data, or set the weight to 0"


def every_dataset_sampled(preview: Receipt, other_datasets: Iterable[str] = ()) -> Finding:
    """Check that every dataset with a weight has data, and that its share of the training data is at least one sample.

    `preview` is the preview's receipt, and `other_datasets` are defects found by other checks.
    """
    facts = BlendPreviewFacts.from_receipt(preview)
    sources, faults = facts.sources, facts.faults
    zero = [source for source in sources if source.rounds_to_zero]
    # List datasets with a fault first, because a different weight does not help them.
    zero.sort(key=lambda source: source.name not in faults)
    sentences = [
        faults.get(source.name)
        or f"{source.name}: a share of {source.requested:.6f} gives {count_of(source.samples, 'sample')}; the "
        f"dataset has {count_of(source.tokens, 'token')}"
        for source in zero
    ]
    return build_verdict(
        [*sentences, *other_datasets],
        f"Each of {count_of(len(sources), 'dataset')} contributes at least one sample.",
        _FAULT_ADVICE if faults else "Raise the weight or `train_tokens`, or set the weight to 0",
        facts={"datasets": len(sources), "rounded_to_zero": len(zero)},
        table=[_build_preview_row(source) for source in sources],
    )


def _build_preview_row(source: SourcePreview) -> Row:
    names = ("split", "name", "rows", "tokens", "requested", "realizable", "epochs", "samples", "shards")
    (row,) = rename_columns([asdict(source)])
    return {name: row[name] for name in names}


_CHECKS: tuple[Check[_OpenedPreview], ...] = (
    Check(
        "every_dataset_sampled",
        "Every dataset with a weight has data and contributes at least one training sample.",
        lambda preview: every_dataset_sampled(preview.receipt, preview.find_contradicted_claims()),
    ),
    Check(
        "disk_headroom",
        "The free disk space is at least 120% of the estimated size of downloads and artifacts.",
        lambda preview: disk_headroom(preview.store.root, preview.facts.bytes_to_fetch + preview.facts.disk_bytes),
        blocking=False,
    ),
)
