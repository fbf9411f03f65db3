"""The artifact `<dataset>/data_card`: a description of the dataset for people and machines, next to its products.

The card is built only from receipts and the declaration. Its key is a digest of its whole content, so it is rebuilt
only when the content changes, and its bytes are the same on every machine. The template `dataset_card.md.jinja` renders
the page for people. This module computes the values that the template cannot compute.

Entry point: `build_card_specs`, one line of a layer's `dataset.py`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.losses import LossTable, find_losses
from dataprep_assets.engine.artifact.metadata_values import Markdown, ShownValue, Table
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.contents import (
    PAGE,
    Card,
    CardArtifact,
    CardRecords,
    CardSubject,
    CardTokenizer,
    SplitCounts,
    gather_card,
)
from dataprep_assets.engine.checks.check import SAMPLE, Check, Finding, Level, build_verdict
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.engine.privacy import load_privacy
from dataprep_assets.errors import count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats import croissant
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.stores.files import digest_value

if TYPE_CHECKING:
    import jinja2

VERSION = 9
DATA_CARD = "data_card"
_REMEDY = "Rebuild data_card with `dataprep run`"


class CardFacts(Facts):
    """Counts of the described dataset.

    Attributes:
        undeclared: Keys that Croissant requires and the declaration lacks.
        check_level: The declared level.
        rebuilt_share: Share of the documents that the checks rebuild; None if they rebuild none.
        splits: Counts per split.
        planned: Names of the artifacts with their splits. A lock uses them to detect artifacts that are no longer
            declared.
    """

    rows: int
    documents: int
    tokens: int
    dropped: int
    retracted: int
    described_files: int
    undeclared: tuple[str, ...]
    check_level: Level = SAMPLE
    rebuilt_share: float | None = None
    splits: tuple[SplitCounts, ...] = ()
    planned: tuple[str, ...] = ()


def build_card_specs(subject: CardSubject) -> list[ArtifactSpec]:
    """Return the specs that end a dataset: its card and, if declared, its publication on the Hub."""
    card = build_data_card_spec(subject)
    if subject.declaration.publish is None:
        return [card]
    # Import the module only if the dataset is published, because every command calls this function.
    from dataprep_assets.engine.publishing.published import build_published_spec

    return [card, build_published_spec(subject, subject.declaration.publish, card=card)]


def build_data_card_spec(subject: CardSubject) -> ArtifactSpec:
    """Return the spec of a dataset's card, which is built after all other artifacts."""
    # Use only the last artifacts, which no other artifact reads, as direct inputs, because together they depend on all
    # others.
    used_sources = {source for spec in subject.specs for source in spec.inputs}
    # Declare the receipts of artifacts whose bytes may depend on locations, because the card contains their digests and
    # sizes.
    receipt_names = {
        f"receipts of {spec.path[-1]}" for spec in subject.specs if spec.kept and spec.names_places is not None
    }
    return ArtifactSpec(
        declaration=subject.declaration,
        name=DATA_CARD,
        version=VERSION,
        description="The data card: `dataset_card.md` for people, `croissant.json` (Croissant 1.1) for machines.",
        kinds={"json", "file"},
        inputs=tuple(spec for spec in subject.specs if spec not in used_sources),
        verification="full",
        names_places=frozenset(receipt_names) if receipt_names else None,
        recipes=lambda store, _: [_build_recipe(gather_card(subject, store))],
        build=lambda request: [_build_card(subject, request.store)],
        metadata=partial(_build_metadata, subject),
        check_groups=(WholeArtifactChecks(checks=_CHECKS, open=partial(_open_card, subject)),),
    )


def _build_recipe(card: Card) -> Recipe:
    """Return the recipe of the card: its content, under the names that appear in reported changes."""
    settings: dict[str, Any] = {
        "description": card.description,
        "sensitive": card.sensitive,
        "card": card.declared.model_dump(mode="json", exclude_defaults=True),
        "sources": {s.name: {k: v for k, v in asdict(s).items() if v is not None} for s in card.sources},
    }
    if card.sensitive:
        settings["small_cell"] = card.privacy.below
    sources = {
        "counts": digest_value([[asdict(split) for split in card.splits], *_read_totals(card).values()]),
        "tokenizer": digest_value(asdict(card.tokenizer) if card.tokenizer is not None else None),
        "checks": digest_value([asdict(check) for check in card.checks]),
        "columns": digest_value([asdict(records) for records in card.records]),
        "rebuild_count": digest_value(None if card.rebuild_count is None else asdict(card.rebuild_count)),
        "sections": digest_value([asdict(section) for section in card.sections]),
        "planned": digest_value(card.planned),
        **{f"receipts of {artifact.name}": digest_value(asdict(artifact)) for artifact in card.artifacts},
    }
    upstream = dict(content for artifact in card.artifacts for content in artifact.contents)
    return Recipe(
        artifact=Artifact(dataset=card.dataset, name=DATA_CARD),
        key=digest_value([DATA_CARD, VERSION, settings, sources, upstream]),
        version=VERSION,
        settings=settings,
        sources=sources,
        upstream=upstream,
    )


def _read_totals(card: Card) -> dict[str, Any]:
    """Return the ledger's totals that a card shows."""
    return {name: getattr(card.ledger, name) for name in ("rows_in", "documents", "tokens", "dropped")}


def _build_card(subject: CardSubject, store: ArtifactStore) -> Outcome:
    card = gather_card(subject, store)
    recipe = _build_recipe(card)

    def write(staged: Path) -> WrittenFiles:
        for name, data in build_card_files(card).items():
            (staged / name).write_bytes(data)
        return WrittenFiles(inputs=recipe.sources, facts=_build_facts(card))

    outcome = Outcome.from_receipt(*ensure_built(recipe, store, write))
    products = sum(artifact.bytes for artifact in card.artifacts if artifact.product)
    return replace(outcome, metadata={"product_bytes": products, "build_seconds": round(card.build_seconds, 1)})


def _build_facts(card: Card) -> CardFacts:
    total = card.ledger
    return CardFacts(
        rows=total.rows_in,
        documents=total.documents,
        tokens=total.tokens,
        dropped=sum(total.dropped.values()),
        retracted=card.retracted,
        described_files=sum(len(artifact.described) for artifact in card.artifacts),
        undeclared=tuple(_find_undeclared_keys(card)),
        splits=card.splits,
        planned=card.planned,
        **{}
        if card.rebuild_count is None
        else {"check_level": card.rebuild_count.level, "rebuilt_share": round(card.rebuild_count.share, 4)},
    )


def _find_undeclared_keys(card: Card) -> Iterator[str]:
    declaration = card.declared
    for name, is_declared in {
        "card.license": bool(card.licenses),
        "card.homepage": declaration.homepage is not None,
        "card.creators": bool(declaration.creators),
        "card.published": declaration.published is not None,
    }.items():
        if not is_declared:
            yield name
    yield from (f"license of {source.name}" for source in card.sources if source.license is None)


def _build_metadata(subject: CardSubject, store: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    facts = CardFacts.from_receipt(receipt)
    artifact = Artifact(dataset=receipt.dataset, name=DATA_CARD)
    page = (store.local(artifact, [PAGE]) / PAGE).read_text(encoding="utf-8")
    losses = LossTable(find_losses(subject.specs, store), load_privacy(subject.declaration)).list_counts()
    return {
        "card": Markdown(page, ready=True),
        "rows": facts.rows,
        "documents": facts.documents,
        "tokens": facts.tokens,
        "dropped": facts.dropped,
        "retracted": facts.retracted,
        "undeclared": ", ".join(facts.undeclared) or "nothing",
        **(
            {}
            if facts.rebuilt_share is None
            else {"check_level": facts.check_level, "rebuilt_share": facts.rebuilt_share}
        ),
        # Recorded with each build, so that the site can compare the builds.
        "losses": Table(losses),
    }


@dataclass(frozen=True)
class _OpenedCard:
    """A card to check: its folder, its receipt, and its expected content according to the current receipts."""

    directory: Path
    receipt: Receipt
    card: Card


def _open_card(subject: CardSubject, store: ArtifactStore, _: Sequence[str]) -> _OpenedCard:
    artifact = subject.declaration.artifact(DATA_CARD)
    return _OpenedCard(store.local(artifact), store.require(artifact), gather_card(subject, store))


def _compare_card_with_receipts(card: _OpenedCard) -> Finding:
    """Check that every line of the two files and the counts in the card's receipt match the current receipts."""
    sensitive, expected_files = card.card.sensitive, build_card_files(card.card)
    lines = sum(len(data.splitlines()) for data in expected_files.values())
    has_same_counts = CardFacts.from_receipt(card.receipt) == _build_facts(card.card)
    count_defects = (
        [] if has_same_counts else ["the counts in its receipt differ from the counts in the other receipts"]
    )
    return build_verdict(
        [
            *(
                d
                for name, data in expected_files.items()
                for d in _find_wrong_lines(card.directory / name, data, sensitive)
            ),
            *count_defects,
        ],
        f"{count_of(lines, 'line matches', 'lines match')} the receipts.",
        _REMEDY,
    )


_CHECKS = (
    Check(
        "card_matches_receipts",
        "The card's counts, digests and lineage match the current receipts.",
        _compare_card_with_receipts,
    ),
)


def _find_wrong_lines(path: Path, expected_content: bytes, sensitive: bool) -> Iterator[str]:
    content = path.read_bytes()
    lines = zip_longest(content.splitlines(), expected_content.splitlines())
    for number, (line, expected_line) in enumerate(lines, 1):
        if line != expected_line:
            difference = (
                "differs from the receipts"
                if sensitive
                else f"is {_format_line(line)}, but must be {_format_line(expected_line)} to match the receipts"
            )
            yield f"{path.name}: line {number} {difference}"


def _format_line(line: bytes | None) -> str:
    return "missing" if line is None else f"{line.decode(errors='replace').strip()!r:.160}"


# --- Files of the card


def build_card_files(card: Card) -> dict[str, bytes]:
    """Return the files of a card: file name → bytes."""
    page = _load_template().render(build_page_facts(card))
    return {PAGE: page.encode(), croissant.NAME: croissant.encode_description(_describe_card(card))}


def find_license_url(license: str) -> str:
    """Return the URL of a license that SPDX lists; return a compound expression or free text unchanged."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    try:
        expression = str(canonicalize_license_expression(license))
    except InvalidLicenseExpression:
        return license
    single = " " not in expression and not expression.startswith("LicenseRef-")
    return f"https://spdx.org/licenses/{expression}" if single else expression


def _summarize_card(card: Card) -> str:
    """Return the totals in a sentence; empty for a sensitive dataset, which shows them only in tables."""
    if card.privacy.closed:
        return ""
    total = card.ledger
    tokens = f"{count_of(total.tokens, 'token')}, " if total.tokens else ""
    return (
        f"{count_of(total.rows_in, 'row')} read, {count_of(total.documents, 'document')}, {tokens}"
        f"{count_of(sum(total.dropped.values()), 'row')} dropped, {card.retracted:,} of them retracted."
    )


# --- Croissant description, for machines


def _describe_card(card: Card) -> croissant.Node:
    declaration = card.declared
    files = [
        croissant.build_file_node(
            file.path,
            f"../{file.path}",
            size=file.record.bytes,
            sha256=file.record.sha256,
            made_by=artifact.name if artifact.version is None else f"{artifact.name}, version {artifact.version}",
        )
        for artifact in card.artifacts
        for file in artifact.described
    ]
    # Describe the products of a sensitive dataset as folders, because file names may reveal private data.
    sets = [
        croissant.build_file_set_node(
            a.name,
            f"../{a.name}/**",
            a.name if card.privacy.closed else f"{count_of(a.files, 'file')}, {count_of(a.bytes, 'byte')}.",
        )
        for a in card.artifacts
        if a.product and not files
    ]
    records = []
    for record_set in card.records:
        prefix = f"{record_set.artifact}/{record_set.prefix}"
        if paths := [file["@id"] for file in files if file["@id"].startswith(prefix)]:
            sets += [_describe_parquet_set(record_set, paths)] if len(paths) > 1 else []
            source = {"fileSet": {"@id": f"{prefix}*"}} if len(paths) > 1 else {"fileObject": {"@id": paths[0]}}
            description = f"The rows of the split {record_set.split}."
            records.append(
                croissant.build_records_node(
                    f"{record_set.artifact}/{record_set.split}", description, source, record_set.columns
                )
            )
    return {
        "name": card.dataset,
        "description": " ".join(filter(None, (card.description, _summarize_card(card), f"See {PAGE}."))),
        "license": [find_license_url(license) for license in card.licenses],
        "url": declaration.homepage,
        "creator": [croissant.build_creator_node(c.kind.capitalize(), c.name, c.url) for c in declaration.creators],
        "datePublished": declaration.published.isoformat() if declaration.published is not None else None,
        "version": declaration.version,
        "citeAs": declaration.citation,
        "prov:wasDerivedFrom": [
            croissant.build_source_node(
                " ".join(filter(None, (source.place or source.name, source.revision and f"at {source.revision}"))),
                license=find_license_url(source.license) if source.license is not None else None,
                url=source.homepage,
                citation=source.citation,
            )
            for source in card.sources
        ],
        "distribution": [*files, *sets],
        "recordSet": records,
    }


def _describe_parquet_set(records: CardRecords, paths: Sequence[str]) -> croissant.Node:
    description = f"The files of the split {records.split}."
    return croissant.build_file_set_node(
        f"{records.artifact}/{records.prefix}*",
        "*.parquet",
        description,
        encoding=croissant.PARQUET,
        contained_in=paths,
    )


# --- Page, for people


def build_page_facts(card: Card) -> dict[str, Any]:
    """Return the variables of the page's template, with counts in their public form."""
    declaration, reasons = card.declared, {**card.ledger.dropped, "retracted": card.retracted}
    creators = [f"{creator.name}" + (f" <{creator.url}>" if creator.url else "") for creator in declaration.creators]
    descriptions = {
        "Created by": ", ".join(creators),
        "Published": declaration.published,
        "Version": declaration.version,
        "Home page": declaration.homepage and f"<{declaration.homepage}>",
    }
    cited = [("this dataset", declaration.citation), *((source.name, source.citation) for source in card.sources)]
    return {
        "card": card,
        "totals": _summarize_card(card),
        "unlicensed": [source.name for source in card.sources if source.license is None],
        "about": [(name, value) for name, value in descriptions.items() if value],
        "citations": [(name, citation) for name, citation in cited if citation],
        "dropped": [(reason, card.privacy.public_count(reasons[reason])) for reason in sorted(reasons)],
        "count": partial(_format_count, card),
        "partitions": partial(_describe_partitions, card),
        "splits": [
            (s.split, [_format_count(card, n) for n in (s.files, s.rows, s.documents, s.tokens)]) for s in card.splits
        ],
        "tokenizer": None if card.tokenizer is None else list(_describe_tokenizer(card, card.tokenizer)),
        "rebuild_count": None
        if card.rebuild_count is None
        else card.privacy.public_text(str(card.rebuild_count), card.rebuild_count.level),
    }


def _format_count(card: Card, count: int | None) -> str | None:
    return None if count is None else card.privacy.public_count(count)


def _describe_tokenizer(card: Card, tokenizer: CardTokenizer) -> list[tuple[str, str]]:
    token = f" `{tokenizer.separator}`" if tokenizer.separator else ""
    tables = ", ".join(f"{name} by {table}" for name, table in tokenizer.reference.items())
    facts = [
        ("name", tokenizer.name),
        ("SHA-256 of its files", tokenizer.sha256),
        ("vocabulary size", f"{tokenizer.vocab_size:,}"),
        ("token that ends a document", tokenizer.separator_id is not None and f"{tokenizer.separator_id}{token}"),
        ("Unicode versions of Hugging Face tokenizers", tables),
        ("chat template", tokenizer.chat_template),
        ("conversations", tokenizer.conversations),
        ("engine", tokenizer.engine and card.privacy.public_text(tokenizer.engine, tokenizer.engine.partition(" ")[0])),
    ]
    return [(name, value) for name, value in facts if isinstance(value, str) and value]


@cache
def _load_template() -> "jinja2.Template":
    import jinja2

    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=folder, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    environment.filters |= {"row": _format_row, "number": _format_number, "fence": _choose_fence}
    return environment.get_template(f"{PAGE}.jinja")


def _format_row(cells: Sequence[str | None]) -> str:
    return f"| {' | '.join('–' if cell is None else _format_cell(cell) for cell in cells)} |"


def _format_cell(text: str) -> str:
    # Escape vertical bars and join lines, because an unescaped bar or a line ending would end the cell.
    return " ".join(text.replace("|", "\\|").split())


def _format_number(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def _describe_partitions(card: Card, artifact: CardArtifact) -> str | None:
    if artifact.partitions is None:
        return None
    if card.privacy.closed:
        return f"{card.privacy.public_count(artifact.partitions)} {artifact.noun}s"
    return count_of(artifact.partitions, artifact.noun)


def _choose_fence(citation: str) -> str:
    """Return a code fence with more backticks than any run of backticks in the citation, so none ends the block."""
    return "`" * max([3, *(len(run) + 1 for run in re.findall("`+", citation))])
