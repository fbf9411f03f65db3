"""Artifact `<dataset>/training_summary`: the European summary of training content, from the tokens that steps read.

`training_summary.md` is for people, `training_summary.json` for programs. Both have the fields of the template of the
European Commission, where each answer comes from, the counts, and the query behind each count. The page has the answers
first, and the rest in an annex. The bytes depend only on the answers, the schedule and the document tables of its
sources.

Entry point: `build_summary_spec`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.metadata_values import Markdown, ShownValue
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.checks.check import Check, Finding, build_verdict
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.engine.privacy import Privacy, load_privacy
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats.document_index import TOKEN_BINS
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.schedule.declaration import ScheduleDeclaration
from dataprep_assets.pipelines.schedule.schedule_checks import OpenedInPlaceArtifact
from dataprep_assets.pipelines.schedule.summary_counts import (
    NO_VALUE,
    NOT_RECORDED,
    CountsByLabel,
    ReadCounts,
    ScheduleReads,
    SourceReads,
    count_reads,
    find_tables,
)
from dataprep_assets.pipelines.schedule.summary_declaration import TrainingSummaryDeclaration
from dataprep_assets.pipelines.schedule.summary_fields import (
    KEY,
    NOT_DECLARED,
    SECTION_TITLES,
    ComputedAnswers,
    TemplateField,
    choose_range,
    find_large_sources,
    list_fields,
)
from dataprep_assets.serving.sampler.simulation import simulate_reads
from dataprep_assets.serving.sampler.training_data import SCHEDULE_ARTIFACT, TrainingData
from dataprep_assets.stores.files import digest_value
from dataprep_assets.table import format_share

VERSION = 2
TRAINING_SUMMARY, PAGE, DATA = "training_summary", "training_summary.md", "training_summary.json"
TEMPLATE = "C(2025) 8311, Article 53(1)(d) of Regulation (EU) 2024/1689"
_MAX_SMALL_PROVIDER_DOMAINS = 1000
_CODE = "dataprep_assets.pipelines.schedule.summary_counts.count_reads"
_WITHHELD = "not shown, because the dataset is sensitive"
_HOSTS = "host names of URLs, not registered domains"
_MAX_CELL = 200
"""Longer answers are paragraphs instead of cells of a table."""
_REMEDY = "Run the dataset again to rebuild the summary"
Row = dict[str, Any]


class SummaryFacts(Facts):
    """Facts of a summary's receipt: the number of steps, the tokens that they read, and the missing answers."""

    steps: int
    tokens: int
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SummaryContent:
    """Content of a summary, in its public form.

    Attributes:
        schedule: Name and digest of the schedule, the number of steps that the summary covers, and of all steps.
        fields: Fields of the template.
        total: Counts of the whole schedule.
        sources: A row of counts per source.
        languages: A row of counts per language; None for a sensitive dataset.
        domains: A row of counts per listed domain; None for a sensitive dataset.
        domain_count: Number of domains of the crawled sources; None for a sensitive dataset.
        unknown_domains: A row of counts per crawled source with tokens that have no known domain.
        queries: Name → the query behind a table of counts.
    """

    schedule: Row
    fields: Sequence[TemplateField]
    total: Row
    sources: Sequence[Row]
    languages: Sequence[Row] | None
    domains: Sequence[Row] | None
    domain_count: int | None
    unknown_domains: Sequence[Row]
    queries: Mapping[str, Row]

    @property
    def missing(self) -> list[str]:
        """Keys of the missing answers."""
        return list(dict.fromkeys(key for field in self.fields for key in field.missing))


def build_summary_spec(
    declaration: ScheduleDeclaration, summary: TrainingSummaryDeclaration, schedule: ArtifactSpec
) -> ArtifactSpec:
    """Return the spec of the summary of a schedule that declares `training_summary`."""
    return ArtifactSpec(
        declaration=declaration,
        name=TRAINING_SUMMARY,
        version=VERSION,
        description="The European summary of training content: `training_summary.md` and `training_summary.json`.",
        kinds={"json", "file"},
        inputs=(schedule,),
        recipes=lambda store, _: [_build_recipe(declaration, summary, store)],
        build=lambda request: [Outcome.from_receipt(*build_summary(declaration, summary, request.store))],
        metadata=_build_metadata,
        sensitive_input=""
        if declaration.sensitive
        else "training_summary: {name} is sensitive, so the summary must withhold small counts. Set `sensitive: true`, "
        "or remove `training_summary`",
        check_groups=(
            WholeArtifactChecks(
                checks=SUMMARY_CHECKS,
                open=lambda store, _: OpenedSummary(
                    declaration.artifact(TRAINING_SUMMARY), store, declaration, summary
                ),
            ),
        ),
    )


def _build_recipe(
    declaration: ScheduleDeclaration, summary: TrainingSummaryDeclaration, store: ArtifactStore
) -> Recipe:
    data = TrainingData(store, declaration.dataset)
    tables = find_tables(data, store)
    # Include the token bins, because a table of an older shard does not describe the current files.
    shards = [Artifact(dataset=table.dataset, name=TOKEN_BINS, partition=table.partition) for table in tables]
    settings: dict[str, Any] = {KEY: summary.model_dump(mode="json", exclude_defaults=True)}
    if declaration.sensitive:
        settings["small_cell"] = declaration.small_cell
    sources = {TOKEN_BINS: digest_value([shard and shard.content for shard in store.receipts(shards)])}
    upstream = {
        SCHEDULE_ARTIFACT: data.handle.receipt.content,
        **{f"{table.dataset}:{table.name}/{table.partition}": receipt.content for table, receipt in tables.items()},
    }
    return Recipe(
        artifact=declaration.artifact(TRAINING_SUMMARY),
        key=digest_value([TRAINING_SUMMARY, VERSION, settings, sources, upstream]),
        version=VERSION,
        settings=settings,
        sources=sources,
        upstream=upstream,
    )


def build_summary(
    declaration: ScheduleDeclaration, summary: TrainingSummaryDeclaration, store: ArtifactStore
) -> tuple[Receipt, bool]:
    """Build the summary; return the receipt and whether it was reused.

    Raises ConfigError if `steps` exceeds the schedule.
    """
    recipe = _build_recipe(declaration, summary, store)

    def write(staged: Path) -> WrittenFiles:
        content, facts = gather_summary(declaration, summary, store)
        for name, text in render_files(content).items():
            (staged / name).write_bytes(text)
        return WrittenFiles(inputs=dict(recipe.upstream), facts=facts)

    return ensure_built(recipe, store, write, declaration.verify)


def gather_summary(
    declaration: ScheduleDeclaration, summary: TrainingSummaryDeclaration, store: ArtifactStore
) -> tuple[SummaryContent, SummaryFacts]:
    """Count the data that the steps read, and return the summary and the facts for its receipt."""
    data, privacy = TrainingData(store, declaration.dataset), load_privacy(declaration, store)
    reads = count_reads(data, store, _choose_steps(summary, data))
    names = list(reads.sources)
    sources = [
        {
            "source": name,
            "dataset": source.dataset,
            "kind": origin.kind if (origin := summary.find_source(name)) is not None else NOT_DECLARED,
            **_format_counts(source.total, privacy),
        }
        for name, source in reads.sources.items()
    ]
    languages = None if privacy.closed else _list_rows("language", reads.languages)
    domain_count, domains = (None, None) if privacy.closed else _choose_domains(summary, reads)
    unknown_domains = [
        {"source": name, **_format_counts(counts, privacy)}
        for name, counts in _count_unknown_domains(summary, reads).items()
    ]
    total = _format_counts(reads.total, privacy)
    computed = ComputedAnswers(
        size=f"{choose_range(reads.total.distinct_tokens)} ({_describe_counts(total)})",
        languages=_describe_rows(languages, "language", reads.total),
        sources={row["source"]: _describe_counts(row) for row in sources},
        large_sources=find_large_sources(
            summary, {name: source.total.distinct_tokens for name, source in reads.sources.items()}
        ),
        domains=_WITHHELD if domains is None else _describe_domains(domain_count or 0, domains, unknown_domains),
    )
    content = SummaryContent(
        schedule={
            "dataset": declaration.dataset,
            "digest": data.schedule.digest,
            "steps": reads.steps,
            "steps_in_schedule": data.steps,
        },
        fields=list_fields(summary, names, computed),
        total=total,
        sources=sources,
        languages=languages,
        domains=domains,
        domain_count=domain_count,
        unknown_domains=unknown_domains,
        queries=_describe_queries(data, store, reads),
    )
    facts = SummaryFacts(steps=reads.steps, tokens=reads.total.tokens, missing=tuple(content.missing))
    return content, facts


def _choose_steps(summary: TrainingSummaryDeclaration, data: TrainingData) -> int:
    try:
        return summary.choose_steps(data.steps)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _choose_domains(summary: TrainingSummaryDeclaration, reads: ScheduleReads) -> tuple[int, list[Row]]:
    """Return the number of domains of the crawled sources, and the rows of the largest ones, as the template asks."""
    counts: CountsByLabel = {}
    for source in _select_crawled_sources(summary, reads).values():
        for domain, own in source.domains.items():
            counts.setdefault(domain, ReadCounts()).add(own.tokens, own.distinct_tokens, own.documents)
    rows = _list_rows("domain", counts)
    named_rows = [row for row in rows if _is_domain(row["domain"])]
    # Round up, so that at least one domain is listed.
    count = (
        min(-(-len(named_rows) // 20), _MAX_SMALL_PROVIDER_DOMAINS)
        if summary.small_provider
        else -(-len(named_rows) // 10)
    )
    return len(named_rows), [*named_rows[:count], *(row for row in rows if not _is_domain(row["domain"]))]


def _count_unknown_domains(summary: TrainingSummaryDeclaration, reads: ScheduleReads) -> CountsByLabel:
    """Return the counts of tokens without a known domain per crawled source that has any."""
    counts: CountsByLabel = {}
    for name, source in _select_crawled_sources(summary, reads).items():
        for label, own in source.domains.items():
            if not _is_domain(label):
                counts.setdefault(name, ReadCounts()).add(own.tokens, own.distinct_tokens, own.documents)
    return counts


def _select_crawled_sources(summary: TrainingSummaryDeclaration, reads: ScheduleReads) -> dict[str, SourceReads]:
    return {
        name: source
        for name, source in reads.sources.items()
        if (origin := summary.find_source(name)) is not None and origin.kind == "crawled"
    }


def _is_domain(label: str) -> bool:
    return label not in (NO_VALUE, NOT_RECORDED)


def _list_rows(column: str, counts: CountsByLabel) -> list[Row]:
    """Return a row per label, the largest first."""
    rows = [{column: label, **asdict(own)} for label, own in counts.items()]
    return sorted(rows, key=lambda row: (-row["distinct_tokens"], row[column]))


def _format_counts(counts: ReadCounts, privacy: Privacy) -> Row:
    # Show distinct tokens as `tokens`, because these are the names by which small counts are withheld.
    public = privacy.public_row({"tokens": counts.tokens, "documents": counts.documents})
    distinct = privacy.public_row({"tokens": counts.distinct_tokens, "documents": counts.documents})
    return {"tokens": public["tokens"], "distinct_tokens": distinct["tokens"], "documents": public["documents"]}


def _describe_counts(row: Row) -> str:
    return (
        f"{_format_number(row['distinct_tokens'])} distinct tokens, {_format_number(row['tokens'])} tokens read, "
        f"{_format_number(row['documents'])} documents"
    )


def _format_number(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value


def _describe_rows(rows: Sequence[Row] | None, column: str, total: ReadCounts) -> str:
    if rows is None:
        return _WITHHELD
    return ", ".join(
        f"{row[column]} {format_share(row['distinct_tokens'] / max(total.distinct_tokens, 1))}" for row in rows
    )


def _describe_domains(domain_count: int, rows: Sequence[Row], unknown_rows: Sequence[Row]) -> str:
    names = [row["domain"] for row in rows if _is_domain(row["domain"])]
    unknown_tokens = ", ".join(f"{row['source']} {_format_number(row['distinct_tokens'])}" for row in unknown_rows)
    return f"{len(names):,} of {count_of(domain_count, 'domain')} ({_HOSTS}): {', '.join(names) or 'none'}" + (
        f" (distinct tokens without a known domain per source: {unknown_tokens})" if unknown_tokens else ""
    )


def _describe_queries(data: TrainingData, store: ArtifactStore, reads: ScheduleReads) -> dict[str, Row]:
    """Return the query behind each table of counts."""
    schedule = f"{data.name}/{SCHEDULE_ARTIFACT}"
    tables = [str(table) for table in find_tables(data, store)]
    common = {"filter": f"step < {reads.steps}", "function": _CODE}
    ends = ["schedule.json", "documents/*/document_ends.bin"]
    return {
        "total": {"artifacts": [schedule], "columns": ends, **common},
        "sources": {"artifacts": [schedule], "columns": ends, **common, "group_by": "source"},
        "languages": {
            "artifacts": [schedule, *tables],
            "columns": [*ends, "documents.parquet: file, row, language"],
            **common,
            "group_by": "language",
        },
        "domains": {
            "artifacts": [schedule, *tables],
            "columns": [*ends, "documents.parquet: file, row, host"],
            **common,
            "filter": f"{common['filter']} and the kind of the source is crawled",
            "group_by": "host, and source for tokens without a known host",
        },
    }


# --- Files


def render_files(content: SummaryContent) -> dict[str, bytes]:
    """Return the files of a summary: file name → bytes."""
    value = {
        "template": TEMPLATE,
        "schedule": content.schedule,
        "fields": [asdict(field) for field in content.fields],
        "missing": content.missing,
        "counts": {
            "total": content.total,
            "sources": content.sources,
            "languages": content.languages,
            "domains": content.domains,
            "domain_count": content.domain_count,
            "unknown_domains": content.unknown_domains,
        },
        "queries": content.queries,
    }
    return {
        DATA: json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n",
        PAGE: ("\n".join(_render_page(content)) + "\n").encode(),
    }


def _render_page(content: SummaryContent) -> Iterator[str]:
    yield from ("# Public summary of training content", "")
    yield f"Template {TEMPLATE}. The numbers cover {_describe_scope(content.schedule)}."
    yield from _render_sections(content.fields)
    yield from _render_annex(content)


def _describe_scope(schedule: Row) -> str:
    covered_steps, steps = schedule["steps"], schedule["steps_in_schedule"]
    amount = "all" if covered_steps == steps else f"the first {covered_steps:,} of"
    return f"{amount} {count_of(steps, 'step')} of the schedule `{schedule['dataset']}`"


def _render_sections(fields: Sequence[TemplateField]) -> Iterator[str]:
    """Yield the answers under the headings of the template, without its optional answers that are not declared."""
    remaining_numbers = list(SECTION_TITLES)
    for section, section_fields in groupby(fields, lambda field: field.section):
        shown_fields = [field for field in section_fields if not field.is_omitted]
        has_heading = section in remaining_numbers
        while section in remaining_numbers:
            number = remaining_numbers.pop(0)
            title = f"{number} {SECTION_TITLES[number]}".removeprefix("0 ")
            yield from ("", f"{'#' * (number.count('.') + 2)} {title}")
        if not shown_fields and has_heading:
            yield from ("", "None.")
        for is_paragraph, answers in groupby(shown_fields, _needs_paragraph):
            if is_paragraph:
                for field in answers:
                    # Name the section, because the comments on section 2.2 follow section 2.2.2.
                    label = f"Additional comments on section {section}" if field.is_comment else field.name
                    yield from ("", f"**{label}**", "", field.answer)
            else:
                yield ""
                yield from _render_table([{"field": field.name, "answer": field.answer} for field in answers])


def _needs_paragraph(field: TemplateField) -> bool:
    return field.is_comment or len(field.answer) > _MAX_CELL or "\n" in field.answer


def _render_annex(content: SummaryContent) -> Iterator[str]:
    schedule = content.schedule
    yield from ("", "## Annex: How the answers were obtained", "", "### Scope", "")
    yield (
        f"- The numbers cover {_describe_scope(schedule)}, steps 0 to {schedule['steps'] - 1:,}. The digest of the "
        f"schedule is `{schedule['digest']}`."
    )
    yield (
        "- The numbers do not cover other training phases, such as post-training on other data, unless the schedule "
        "includes them."
    )
    yield f"- Domains are {_HOSTS}."
    yield from ("", "### Origin of each answer", "")
    yield from _render_table(
        [
            {
                "section": field.section,
                "field": field.name,
                "origin": field.origin,
                "key": field.key and f"`{field.key}`",
                "query": field.query,
            }
            for field in content.fields
        ]
    )
    tables: dict[str, Sequence[Row] | None] = {
        "total": [content.total],
        "sources": content.sources,
        "languages": content.languages,
        f"domains ({_HOSTS})": content.domains,
        "crawled tokens without a known domain": content.unknown_domains,
    }
    for name, rows in tables.items():
        yield from ("", f"### Counts: {name}", "")
        if rows is None:
            yield f"{_WITHHELD.capitalize()}."
        else:
            yield from _render_table(rows)
    yield from ("", "### Queries", "")
    yield from _render_table([{"query": name, **query} for name, query in content.queries.items()])
    yield from ("", "### Missing answers", "")
    yield from [f"- `{key}`" for key in content.missing] or ["None."]


def _render_table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a Markdown table with all columns of its rows."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not columns:
        yield "None."
        return
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(_format_cell(row.get(name, '')) for name in columns)} |"


def _format_cell(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else _format_number(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _build_metadata(store: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    facts = SummaryFacts.from_receipt(receipt)
    artifact = Artifact(dataset=receipt.dataset, name=TRAINING_SUMMARY)
    page = (store.local(artifact, [PAGE]) / PAGE).read_text(encoding="utf-8")
    return {
        "summary": Markdown(page, ready=True),
        "tokens": facts.tokens,
        "missing": ", ".join(facts.missing) or "none",
    }


# --- Checks


@dataclass(frozen=True)
class OpenedSummary(OpenedInPlaceArtifact):
    """A summary, opened for checks."""

    summary: TrainingSummaryDeclaration

    @cached_property
    def rebuilt(self) -> tuple[SummaryContent, SummaryFacts]:
        """The summary, counted again from the schedule and the document tables."""
        return gather_summary(self.declaration, self.summary, self.store)


def _check_rebuild(artifact: OpenedSummary) -> Finding:
    content, facts = artifact.rebuilt
    files = render_files(content)
    folder = artifact.store.local(artifact.artifact, list(files))
    defects = [f"{name} differs" for name, data in files.items() if (folder / name).read_bytes() != data]
    if SummaryFacts.from_receipt(artifact.receipt) != facts:
        defects.append("the facts in its receipt differ")
    return build_verdict(defects, f"{count_of(len(files), 'file')} rebuilt with the same bytes.", _REMEDY)


def _check_reads(artifact: OpenedSummary) -> Finding:
    data = TrainingData(artifact.store, artifact.declaration.dataset)
    reads = count_reads(data, artifact.store, _choose_steps(artifact.summary, data))
    defects = []
    # Compare only windows, because the simulation estimates the tokens of packed documents.
    if all(revision.samples == "windows" for revision in data.schedule.revisions):
        defects = [
            f"the schedule reads {count_of(reading.tokens, 'token')} of {reading.source}, but its documents have "
            f"{token_count:,} of these tokens"
            for reading in simulate_reads(data.sampler, reads.steps)
            if (token_count := reads.sources[reading.source].total.tokens if reading.source in reads.sources else 0)
            != reading.tokens
        ]
    return build_verdict(
        defects,
        f"{count_of(reads.total.tokens, 'token')} of {count_of(len(reads.sources), 'source')} counted.",
        "Do not publish the summary, and report a bug",
    )


def _check_domains(artifact: OpenedSummary) -> Finding:
    content, _ = artifact.rebuilt
    sizes = {row["source"]: row["distinct_tokens"] for row in content.sources}
    return build_verdict(
        [
            f"{row['source']} was crawled, but {_format_number(row['distinct_tokens'])} of its "
            f"{_format_number(sizes[row['source']])} distinct tokens have no known domain"
            for row in content.unknown_domains
        ],
        "Every token of a crawled source has a known domain.",
        "Set `document.url_field` in its dataset, and run both again",
        warning=True,
    )


def _check_answers(artifact: OpenedSummary) -> Finding:
    _, facts = artifact.rebuilt
    return build_verdict(
        [f"{key} is not declared" for key in facts.missing],
        "Every required answer is declared.",
        "Add the keys to the declaration",
        warning=True,
    )


SUMMARY_CHECKS: tuple[Check[OpenedSummary], ...] = (
    Check(
        "files_intact",
        "Every file in the receipt exists, with the recorded size and SHA-256.",
        lambda artifact: artifact.check_files(_REMEDY),
    ),
    Check(
        "rebuild_matches",
        "Counting the tokens again in the schedule and the document tables reproduces both files.",
        _check_rebuild,
    ),
    Check(
        "tokens_match_schedule",
        "The token counts of the sources match a simulation of the schedule (only for windows).",
        _check_reads,
    ),
    Check("answers_complete", "Every answer that the template requires is declared.", _check_answers, blocking=False),
    Check("domains_known", "Every token of a crawled source has a known domain.", _check_domains, blocking=False),
)
