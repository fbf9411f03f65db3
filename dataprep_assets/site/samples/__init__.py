"""Pages with samples of a dataset's rows: the kept rows, and the dropped rows by reason.

Kept rows are read from the files that the trainer reads, and decoded with the dataset's tokenizer. Dropped rows are
read from the source. A sensitive dataset has no such page.

Entry point: `list_sample_pages`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from dataprep_assets.curation.benchmarks.columns import BENCHMARK
from dataprep_assets.curation.selection import DUPLICATE
from dataprep_assets.engine.trace.document_table import Values
from dataprep_assets.engine.trace.sample import SampledRow
from dataprep_assets.errors import DataprepError, count_of
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.site.pages import PageEnvironment
from dataprep_assets.site.samples.dropped import DroppedRows
from dataprep_assets.site.samples.facts import MAX_ROWS, SEED, SampleFacts
from dataprep_assets.site.samples.kept import build_kept_row, describe_loss
from dataprep_assets.site.samples.texts import show_text, show_tokens
from dataprep_assets.site.stored import StoredDataset
from dataprep_assets.stores.files import digest_value

_TEMPLATE = "samples.html.j2"
_VERSION = 3
"""Increase if the same artifacts give different pages."""
_MAX_REASONS = 18
"""Maximum number of pages of dropped rows of a dataset."""


@dataclass(frozen=True, kw_only=True)
class SamplePage:
    """A page with samples.

    Attributes:
        slug: Name of its file, without `.html`.
        title: Title, which is also the text of links to it.
        digest: Digest of the artifacts that the page shows.
        heading: Heading of the page.
        read: Reads the data; called when the page is rendered.
    """

    slug: str
    title: str
    digest: str
    heading: str
    read: Callable[[], SampleFacts] = field(repr=False)

    def render(self, environment: PageEnvironment) -> str:
        """Return the page. If the data cannot be read, the page says so."""
        try:
            facts = self.read()
        except (DataprepError, OSError) as error:
            facts = SampleFacts(introduction=(), rows=(), problems=[f"The data cannot be read: {error}"])
        return environment.render(
            _TEMPLATE,
            title=self.heading,
            facts=facts,
            visible=show_text,
            show_tokens=show_tokens,
        )


def list_sample_pages(dataset: StoredDataset) -> list[SamplePage]:
    """Return the pages of a dataset: the kept rows, then the dropped rows by reason, the most frequent reason first.

    Returns no page for a sensitive dataset, or if nothing is built. Only receipts are read.
    """
    if dataset.component.declaration.sensitive:
        return []
    reasons = _count_reasons(dataset)
    # Declared keys, such as the tokenizer and the expressions of rules, are also on the pages.
    declaration_digest = digest_value([_VERSION, dataset.component.declaration.model_dump(mode="json")])
    return [
        *_list_kept_pages(dataset, declaration_digest, list(reasons)[_MAX_REASONS:]),
        *_list_dropped_pages(dataset, declaration_digest, reasons),
    ]


def _list_kept_pages(dataset: StoredDataset, declaration_digest: str, left_out: Sequence[str]) -> Iterator[SamplePage]:
    try:
        artifacts = dataset.component.list_sampled_artifacts(dataset.store)
    except DataprepError:  # no plan yet
        return
    contents = _list_contents(dataset.store, artifacts)
    if artifacts and any(contents.values()):
        yield SamplePage(
            slug="kept",
            title="Kept",
            digest=digest_value([declaration_digest, contents, _list_table_contents(dataset), list(left_out)]),
            heading=f"{dataset.name}: kept rows",
            read=partial(_describe_kept, dataset, left_out),
        )


def _describe_kept(dataset: StoredDataset, left_out: Sequence[str]) -> SampleFacts:
    sample = dataset.component.sample(dataset.store, MAX_ROWS, str(SEED))
    sampled_rows = list(sample)
    values = _read_values(dataset, sampled_rows)
    rows = [build_kept_row(dataset.name, row, values.get((row.partition, row.file, row.row))) for row in sampled_rows]
    is_all = len(rows) == sample.total
    summary = f"All rows ({sample.total:,})" if is_all else f"{count_of(len(rows), 'random row')} of {sample.total:,}"
    introduction = [
        f"{summary} in the order of the data, read from the files that the trainer reads, not from the source."
    ]
    if loss := describe_loss(part for row in sampled_rows for part in row.parts):
        introduction.append(f"These rows have {loss}.")
    if left_out:
        introduction.append(f"There is no page for these rare reasons of dropped rows: {', '.join(left_out)}.")
    return SampleFacts(introduction=introduction, rows=rows)


def _read_values(dataset: StoredDataset, sample: Sequence[SampledRow]) -> Mapping[tuple[str, str, int], Values]:
    """Return the values that the rules read: shard, file and row → column → value; empty if there are no rules."""
    if not dataset.component.has_rules:
        return {}
    table, values = dataset.component.documents(dataset.store), dict[tuple[str, str, int], Values]()
    for partition in dict.fromkeys(row.partition for row in sample):
        rows = {(row.file, row.row) for row in sample if row.partition == partition}
        values |= {
            (partition, *location): row_values
            for location, row_values in table.read_rule_values(partition, rows).items()
        }
    return values


def _count_reasons(dataset: StoredDataset) -> Mapping[str, int]:
    try:
        reasons = dataset.component.documents(dataset.store).reasons()
    except DataprepError:  # no document table, or no plan yet
        return {}
    return {reason: count for reason, count in reasons.items() if count}


def _list_dropped_pages(
    dataset: StoredDataset, declaration_digest: str, reasons: Mapping[str, int]
) -> Iterator[SamplePage]:
    if not reasons:
        return
    contents, dropped_rows = _list_table_contents(dataset), DroppedRows(dataset)
    readers = {DUPLICATE: dropped_rows.describe_duplicates, BENCHMARK: dropped_rows.describe_contaminated}
    phrases = {DUPLICATE: "near-duplicates", BENCHMARK: "contaminated"}
    for reason in list(reasons)[:_MAX_REASONS]:
        phrase = phrases.get(reason)
        yield SamplePage(
            slug=_build_slug(reason),
            title=phrase.capitalize() if phrase else f"Dropped: {reason}",
            digest=digest_value([declaration_digest, reason, contents]),
            heading=f"{dataset.name}: {phrase or f'dropped as {reason}'}",
            read=readers.get(reason, partial(dropped_rows.describe_rule, reason)),
        )


def _build_slug(reason: str) -> str:
    slug = {DUPLICATE: "near-duplicates", BENCHMARK: "contaminated"}.get(reason)
    if slug is None:
        slug = "dropped-" + re.sub(r"[^A-Za-z0-9_-]", "-", reason)
        # Add a digest if characters were replaced, because two reasons could otherwise have the same name.
        slug += "" if slug == f"dropped-{reason}" else f"-{digest_value(reason)[:8]}"
    return slug


def _list_table_contents(dataset: StoredDataset) -> dict[str, str]:
    """Return the content of each shard of the document table; empty if there is none, or no plan yet."""
    try:
        return _list_contents(
            dataset.store,
            [
                artifact
                for spec in dataset.specs
                if spec.name == "documents"
                for artifact in spec.artifacts(dataset.store)
            ],
        )
    except DataprepError:
        return {}


def _list_contents(store: ArtifactStore, artifacts: Sequence[Artifact]) -> dict[str, str]:
    """Return the content of each finished artifact; empty for an artifact that is not built."""
    receipts = store.receipts(artifacts)
    return {
        str(artifact): "" if receipt is None else receipt.content
        for artifact, receipt in zip(artifacts, receipts, strict=True)
    }
