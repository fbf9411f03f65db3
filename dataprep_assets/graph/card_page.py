"""Renders a data card as its two files: `dataset_card.md` for people, `croissant.json` for machines. Pure functions."""

from collections.abc import Iterable, Iterator, Sequence

from dataprep_assets.formats import croissant
from dataprep_assets.graph.card_contents import Card, CardArtifact, CardRecords, CardSource
from dataprep_assets.graph.privacy import Privacy
from dataprep_assets.plural import count_of

PAGE = "dataset_card.md"
_UNDECLARED = "not declared"


def card_files(card: Card) -> dict[str, bytes]:
    """The files of a card, file name → bytes."""
    return {PAGE: _page(card).encode(), croissant.NAME: croissant.to_bytes(_described(card))}


def license_url(license: str) -> str:
    """The URL of a license that SPDX lists; an expression of several, or free text, is returned unchanged."""
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    try:
        known = str(canonicalize_license_expression(license))
    except InvalidLicenseExpression:
        return license
    single = " " not in known and not known.startswith("LicenseRef-")
    return f"https://spdx.org/licenses/{known}" if single else known


# --- for machines


def _described(card: Card) -> croissant.Description:
    declared = card.declared
    files = [
        croissant.DescribedFile(
            id=file.path,
            url=f"../{file.path}",
            bytes=file.record.bytes,
            sha256=file.record.sha256,
            made_by=artifact.name if artifact.version is None else f"{artifact.name}, version {artifact.version}",
        )
        for artifact in card.artifacts
        for file in artifact.described
    ]
    # no file of a sensitive dataset is named: its products are described as folders
    sets = [] if files else [_file_set(card, artifact) for artifact in card.artifacts if artifact.product]
    records = []
    for one in card.records:
        paths = [file.id for file in files if file.id.startswith(f"{one.artifact}/{one.prefix}")]
        if len(paths) > 1:
            sets.append(_parquet_set(one, paths))
        records += [_rows(one, paths)] if paths else []
    return croissant.Description(
        name=card.dataset,
        description=_about(card),
        licenses=[license_url(license) for license in card.licenses],
        url=declared.homepage,
        creators=[(creator.kind.capitalize(), creator.name, creator.url) for creator in declared.creators],
        published=declared.published.isoformat() if declared.published is not None else None,
        version=declared.version,
        cite_as=declared.citation,
        sources=[_source(source) for source in card.sources],
        files=files,
        sets=sets,
        records=records,
    )


def _about(card: Card) -> str:
    return " ".join(filter(None, (card.description, _totals(card), f"See {PAGE}.")))


def _totals(card: Card) -> str:
    """The totals in a sentence; of a sensitive dataset they stand in the tables only."""
    if card.privacy.closed:
        return ""
    total, shown = card.ledger, card.privacy.count
    tokens = f"{shown(total.tokens)} tokens, " if total.tokens else ""
    return (
        f"{shown(total.rows_in)} rows in, {shown(total.documents)} documents, {tokens}"
        f"{shown(sum(total.dropped.values()))} rows dropped, {shown(card.retracted)} of them retracted."
    )


def _source(source: CardSource) -> croissant.DescribedSource:
    return croissant.DescribedSource(
        name=" ".join(filter(None, (source.place or source.name, source.revision and f"at {source.revision}"))),
        license=license_url(source.license) if source.license is not None else None,
        url=source.homepage,
        citation=source.citation,
    )


def _about_files(card: Card, artifact: CardArtifact) -> str:
    return artifact.name if card.privacy.closed else f"{artifact.files:,} files, {artifact.bytes:,} bytes."


def _file_set(card: Card, artifact: CardArtifact) -> croissant.DescribedFiles:
    return croissant.DescribedFiles(
        id=artifact.name,
        includes=f"../{artifact.name}/**",
        about=_about_files(card, artifact),
    )


def _parquet_set(records: CardRecords, paths: Sequence[str]) -> croissant.DescribedFiles:
    return croissant.DescribedFiles(
        id=f"{records.artifact}/{records.prefix}*",
        includes="*.parquet",
        about=f"The files of the split {records.split}.",
        encoding=croissant.PARQUET,
        contained_in=paths,
    )


def _rows(records: CardRecords, paths: Sequence[str]) -> croissant.DescribedRecords:
    several = len(paths) > 1
    return croissant.DescribedRecords(
        id=f"{records.artifact}/{records.split}",
        about=f"The rows of the split {records.split}.",
        source=f"{records.artifact}/{records.prefix}*" if several else paths[0],
        several=several,
        columns=records.columns,
    )


# --- for people


def _page(card: Card) -> str:
    parts = [f"# {card.dataset}", card.description, _totals(card)]
    if card.sensitive:
        parts.append("This dataset is sensitive: its card holds counts alone.")
    parts += ["## Licence", *_license(card)]
    parts += ["## Sources", _sources(card.sources, card.privacy), *_citations(card)]
    parts += ["## Counts", _counts(card), "## Dropped", _dropped(card)]
    parts += ["## Tokenizer", _tokenizer(card), "## Files", _products(card), "## Lineage", _lineage(card)]
    for section in card.sections:
        parts += [f"## {section.title}", section.text]
    parts += ["## Checks", *_checks(card)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _license(card: Card) -> Iterator[str]:
    if card.declared.license is not None:
        yield card.declared.license
    elif card.licenses:
        yield f"That of the sources: {', '.join(card.licenses)}."
    else:
        yield f"{_UNDECLARED.capitalize()}."
    if without := [source.name for source in card.sources if source.license is None]:
        yield f"No licence is declared for {', '.join(without)}."
    told = [f"{creator.name}" + (f" <{creator.url}>" if creator.url else "") for creator in card.declared.creators]
    facts = [
        ("Made by", ", ".join(told)),
        ("Published", card.declared.published and card.declared.published.isoformat()),
        ("Version", card.declared.version),
        ("Page", card.declared.homepage and f"<{card.declared.homepage}>"),
    ]
    if lines := [f"* {name}: {value}" for name, value in facts if value]:
        yield "\n".join(lines)


def _sources(sources: Sequence[CardSource], privacy: Privacy) -> str:
    rows = [
        (
            source.name,
            source.kind,
            source.place or "–",
            source.revision or "–",
            _count(source.files, privacy),
            _count(source.bytes, privacy),
            source.license or _UNDECLARED,
            f"<{source.homepage}>" if source.homepage else "–",
        )
        for source in sources
    ]
    return _table(("source", "kind", "place", "revision", "files", "bytes", "licence", "page"), rows)


def _citations(card: Card) -> Iterator[str]:
    cited = [(source.name, source.citation) for source in card.sources if source.citation]
    for name, citation in [*([("this dataset", card.declared.citation)] if card.declared.citation else []), *cited]:
        # longer than any run of backticks in the citation, which would end the block
        fence = "`" * max(3, *(len(run) + 1 for run in _runs_of_ticks(citation or "")))
        yield f"To cite {name}:\n\n{fence}\n{(citation or '').strip()}\n{fence}"


def _runs_of_ticks(text: str) -> Iterable[str]:
    run = ""
    for character in f"{text} ":
        if character == "`":
            run += character
        else:
            yield run
            run = ""


def _counts(card: Card) -> str:
    shown = [[s.files, s.rows, s.documents, s.tokens] for s in card.splits]
    told = [["–" if count is None else card.privacy.count(count) for count in counts] for counts in shown]
    rows = [(split.split, *counts) for split, counts in zip(card.splits, told, strict=True)]
    return _table(("split", "source files", "rows", "documents", "tokens"), rows)


def _dropped(card: Card) -> str:
    reasons = {**card.ledger.dropped, "retracted": card.retracted}
    return _table(("reason", "rows"), [(reason, card.privacy.count(reasons[reason])) for reason in sorted(reasons)])


def _tokenizer(card: Card) -> str:
    if card.tokenizer is None:
        return "Nothing is tokenized."
    tokenizer = card.tokenizer
    facts = [
        ("name", tokenizer.name),
        ("SHA-256 of its files", tokenizer.sha256),
        ("ids", f"{tokenizer.vocab_size:,}"),
    ]
    if tokenizer.separator_id is not None:
        token = f" `{tokenizer.separator}`" if tokenizer.separator else ""
        facts.append(("token that ends a document", f"{tokenizer.separator_id}{token}"))
    if tokenizer.reference:
        tables = ", ".join(f"{name} by {table}" for name, table in tokenizer.reference.items())
        facts.append(("ids as Hugging Face tokenizers gives them", tables))
    if tokenizer.engine:
        facts.append(("engine", card.privacy.text(tokenizer.engine, tokenizer.engine.partition(" ")[0])))
    return "\n".join(f"* {name}: {value}" for name, value in facts)


def _products(card: Card) -> str:
    rows = [
        (
            artifact.name,
            _partitions(artifact, card.privacy),
            card.privacy.count(artifact.files),
            card.privacy.count(artifact.bytes),
        )
        for artifact in card.artifacts
        if artifact.product
    ]
    table = _table(("artifact", "partitions", "files", "bytes"), rows)
    return table if card.sensitive else f"{table}\n\nEach file with its size and SHA-256: `{croissant.NAME}`."


def _lineage(card: Card) -> str:
    rows = [
        (
            artifact.name,
            ", ".join(artifact.made_of) or "the sources",
            "–" if artifact.version is None else str(artifact.version),
            _partitions(artifact, card.privacy),
            artifact.content or "–",
        )
        for artifact in card.artifacts
    ]
    return _table(("artifact", "made of", "version of the step", "partitions", "content"), rows)


def _partitions(artifact: CardArtifact, privacy: Privacy) -> str:
    if artifact.partitions is None:
        return "–"
    if privacy.closed:
        return f"{privacy.count(artifact.partitions)} {artifact.noun}s"
    return count_of(artifact.partitions, artifact.noun)


def _checks(card: Card) -> Iterator[str]:
    yield (
        "What is proven of the artifacts whenever they are made. `dataprep run` makes this card after the checks that "
        "block; their latest results are in Dagster and in `dataprep status`."
    )
    if card.again is not None:
        yield f"Made again from the source, and compared: {card.privacy.text(str(card.again), card.again.level)}."
    rows = [(c.artifact, c.name, "blocks" if c.blocking else "warns", c.description) for c in card.checks]
    yield _table(("artifact", "check", "when it fails", "proves"), rows)


def _count(value: int | None, privacy: Privacy) -> str:
    return "–" if value is None else privacy.count(value)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    # a bar or the end of a line would end the cell
    return " ".join(text.replace("|", "\\|").split())
