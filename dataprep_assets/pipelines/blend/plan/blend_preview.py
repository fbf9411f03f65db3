"""The artifact `<dataset>/blend_preview`: what the blend will be, before anything is fetched or tokenized.

Its proof stops the run if a dataset would round to zero. `preview.py` makes the estimates.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pydantic import Field

from dataprep_assets.engine.artifact.build import WrittenFiles, ensure
from dataprep_assets.engine.artifact.facts import Facts
from dataprep_assets.engine.artifact.metadata_values import Shown, Table
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest
from dataprep_assets.engine.checks.check import Check, OpenedArtifact
from dataprep_assets.engine.checks.finding import Finding, Row, verdict
from dataprep_assets.engine.checks.groups import WholeChecks
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration, Stage
from dataprep_assets.pipelines.blend.output.share_plot import plotted
from dataprep_assets.pipelines.blend.plan.fields import all_refused, fault_of_files, of_no_use
from dataprep_assets.pipelines.blend.plan.plan import (
    BLEND_PLAN,
    BlendPlan,
    PlannedUnit,
    from_file_on,
    load_blend_plan,
    plan_key,
)
from dataprep_assets.pipelines.blend.plan.preview import SourcePreview, preview_blend, sample_size, sampled_paths
from dataprep_assets.pipelines.blend.sft.sampled_tokens import row_refusal
from dataprep_assets.stream.snapshot_files import disk_headroom

VERSIONS: dict[Stage, int] = {"pretrain": 2, "sft": 4, "rl": 2}
"""The version of the step, by stage."""
BLEND_PREVIEW = "blend_preview"
PREVIEW = "preview.json"


class BlendPreviewFacts(Facts):
    """The preview of every dataset (`sources`), the datasets that round to zero, and sums over all datasets.

    `faults` has a sentence for each of these datasets that is empty or lacks the field to read.
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
    """The preview of a blend's `plan`."""
    return ArtifactSpec(
        declaration=blend,
        name=BLEND_PREVIEW,
        version=VERSIONS[blend.stage],
        description="Rows, tokens, epochs and realisable weights of each dataset, from a sample of it.",
        kinds={"json"},
        inputs=(plan,),
        verification="full",
        names_places=frozenset(),  # it names the paths of the datasets
        recipes=lambda store, _: [_recipe(blend, store, load_blend_plan(blend, store))],
        build=partial(_build, blend),
        metadata=_metadata,
        check_groups=(WholeChecks(checks=_CHECKS, open=partial(_opened, blend)),),
    )


def _recipe(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> Recipe:
    asked = {
        "train_tokens": blend.train_tokens,
        "max_epochs": blend.max_epochs,
        "tokens_per_sample": sample_size(blend),
    }
    return Recipe(
        artifact=blend.artifact(BLEND_PREVIEW),
        key=digest_value(["blend_preview", VERSIONS[blend.stage], plan_key(plan), list(asked.values())]),
        version=VERSIONS[blend.stage],
        settings=asked,
        upstream={BLEND_PLAN: store.require(blend.artifact(BLEND_PLAN)).content},
    )


def _build(blend: BlendDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    yield Outcome.from_receipt(*build_blend_preview(blend, request.store, load_blend_plan(blend, request.store)))


def build_blend_preview(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> tuple[Receipt, bool]:
    """Read a sample of every dataset of `plan` and commit `preview.json`; its rows are the fact `sources`.

    `blend` is the declaration, `store` gets the preview. Returns the receipt and whether it was reused: it is of the
    same plan. A dataset that rounds to zero is named in the fact `rounds_to_zero`; a proof fails on it.
    """

    def write(staged: Path) -> WrittenFiles:
        found = preview_blend(blend, plan)
        faults = _faults(blend, plan, {source.name: source for source in found if source.rounds_to_zero})
        (staged / PREVIEW).write_text(_text(found), encoding="utf-8")
        return WrittenFiles(
            inputs={unit.name: unit.plan_hash for unit in plan.units},
            facts=_facts(plan, found, faults),
        )

    return ensure(_recipe(blend, store, plan), store, write)


def _text(found: Sequence[SourcePreview]) -> str:
    """The text of `preview.json`."""
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
        # a field that is not set is not written: receipts without faults stay as they were before there were any
        **{"faults": dict(faults)} if faults else {},
    )


def _faults(blend: BlendDeclaration, plan: BlendPlan, sources: Mapping[str, SourcePreview]) -> dict[str, str]:
    """Dataset → what is wrong with it, for those of these datasets that have a fault of their own."""
    found: dict[str, str] = {}
    for unit in plan.units:
        if (source := sources.get(unit.name)) is not None:
            paths = sampled_paths(blend, unit)
            # From the particular to the general: a field that no row has, rows that are all refused, conversations that
            # are all too long, too little data. The first that is true is told: the others may follow from it.
            fault = fault_of_files(blend, unit.dataset, paths, whole=len(paths) == len(unit.entries))
            if fault is None and not (source.tokens or (blend.stage == "rl" and source.rows)):
                fault = all_refused(blend, unit.dataset, paths, _refusal(blend, unit))
            if (fault := fault or _too_long(blend, unit, source) or _too_small(blend, unit, source)) is not None:
                found[unit.name] = fault
    return found


def _refusal(blend: BlendDeclaration, unit: PlannedUnit) -> Callable[[dict[str, Any]], str | None]:
    """What tells why nothing of a row can be trained: conversations may also be refused by their template."""
    if blend.stage == "rl":  # its transforms decide
        return lambda _: None
    return row_refusal(blend, unit.dataset) if blend.stage == "sft" else partial(of_no_use, blend, unit.dataset)


def _too_long(blend: BlendDeclaration, unit: PlannedUnit, source: SourcePreview) -> str | None:
    """That no conversation that was looked at is left, where long ones are dropped."""
    if blend.stage != "sft" or source.tokens or blend.sft_options.too_long != "drop":
        return None
    return (
        f"{unit.name}: of the conversations that were looked at{from_file_on(blend, unit)} none is left. With "
        f"`too_long: drop` those longer than `pack_size: {blend.sft_options.pack_size}` are left out: raise it, or "
        "have them truncated"
    )


def _too_small(blend: BlendDeclaration, unit: PlannedUnit, source: SourcePreview) -> str | None:
    """That all of a dataset, as often as it may come, is less than a sample, if so: no weight helps that either.

    Of streams alone: a packed row may stay half empty, and a sample of RL is a record.
    """
    size, times = sample_size(blend), blend.max_epochs or 1
    if blend.stage != "pretrain" or source.tokens * times >= size:
        return None
    epochs = f", {times:g} times over," if times != 1 else ""
    # a receipt keeps it, without types: no noun behind the number tells that it is one
    return (
        f"{unit.name}: {source.tokens:,} tokens in all (rows: {source.rows:,}{from_file_on(blend, unit)}){epochs} are "
        f"less than a sample of {size:,}"
    )


def _metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    facts = BlendPreviewFacts.of(receipt)
    rows = [asdict(source) for source in facts.sources]
    return {
        "preview": Table(rows),
        "requested_and_realisable": plotted(rows, "realisable"),
        "expected_rows": facts.rows,
        "expected_tokens": facts.tokens,
        "expected_shards": facts.shards,
        "bytes_to_fetch": facts.bytes_to_fetch,
        "disk_bytes": facts.disk_bytes,
        "rounds_to_zero": ", ".join(facts.rounds_to_zero) or "none",
    }


@dataclass(frozen=True)
class _OpenedPreview(OpenedArtifact):
    """A preview to check."""

    blend: BlendDeclaration

    @cached_property
    def facts(self) -> BlendPreviewFacts:
        """The receipt's facts; raises IntegrityError when one is missing."""
        return BlendPreviewFacts.of(self.receipt)

    def other_claims(self) -> Iterator[str]:
        """Claims of the receipt or the file that contradict each other or the plan."""
        facts, file = self.facts, self.directory / PREVIEW
        if facts != _facts(load_blend_plan(self.blend, self.store), facts.sources, facts.faults):
            yield f"{self.blend.dataset}: the receipt of its preview contradicts itself, or is of another plan"
        if not file.is_file() or file.read_bytes() != _text(facts.sources).encode():
            yield f"{file}: is not what the receipt of the preview says"


def _opened(blend: BlendDeclaration, store: ArtifactStore, _: Sequence[str]) -> _OpenedPreview:
    return _OpenedPreview(blend.artifact(BLEND_PREVIEW), store, blend).opened()


_FAULT_ADVICE = "Name the field that its rows have, correct its rows or its path, give it more, or set its weight to 0"


def nothing_rounds_to_zero(preview: Receipt, others: Iterable[str] = ()) -> Finding:
    """Every dataset with a weight has data, and its share of the training is at least one sample.

    `preview` is the receipt, `others` are defects found elsewhere.
    """
    facts = BlendPreviewFacts.of(preview)
    sources, faults = facts.sources, facts.faults
    zero = [source for source in sources if source.rounds_to_zero]
    # datasets with a fault first: no weight helps them
    zero.sort(key=lambda source: source.name not in faults)
    told = [
        faults.get(source.name)
        or f"{source.name}: a share of {source.requested:.6f} is {source.samples} samples of {source.tokens} tokens"
        for source in zero
    ]
    return verdict(
        [*told, *others],
        f"Each of {len(sources)} datasets is at least one sample.",
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
        "nothing_rounds_to_zero",
        "Every dataset with a weight has data, and its share is at least one training sample.",
        lambda preview: nothing_rounds_to_zero(preview.receipt, preview.other_claims()),
    ),
    Check(
        "disk_headroom",
        "What is to be fetched and made will fit, with 20 % to spare.",
        lambda preview: disk_headroom(preview.store.root, preview.facts.bytes_to_fetch + preview.facts.disk_bytes),
        blocking=False,
    ),
)
