"""The fields of the European Commission's template for the summary of training content, with their answers.

The template C(2025) 8311 defines the names of the fields. An answer is declared, derived from the kinds of the
declared sources, or computed from the schedule (`summary_counts`). A required answer that is not declared is missing:
the summary shows it as `NOT_DECLARED`, and `dataprep check` lists its key. An optional answer that is not declared is
`NO_ANSWER`.

Entry points: `list_fields`, `find_missing_answers`, `find_contradictions`.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from dataprep_assets.pipelines.schedule.summary_declaration import SourceKind, SummarySource, TrainingSummaryDeclaration

KEY = "training_summary"
SECTION_TITLES = {
    "0": "Version of the summary",
    "1": "General information",
    "1.1": "Provider",
    "1.2": "Model",
    "1.3": "Training data",
    "2": "Data sources",
    "2.1": "Publicly available datasets",
    "2.2": "Private datasets from third parties",
    "2.2.1": "Licensed datasets",
    "2.2.2": "Other private datasets",
    "2.3": "Crawled data",
    "2.4": "User data",
    "2.5": "Synthetic data",
    "2.6": "Other data sources",
    "3": "Data processing",
    "3.1": "Reservations of rights",
    "3.2": "Illegal content",
    "3.3": "Other information",
}
"""Number of a section of the template → a short title, in order. The template does not number the section `0`."""
NOT_DECLARED: Final = "not declared"
NOT_APPLICABLE, NO_ANSWER = "not applicable", "none"
TEXT_RANGES = (
    (1_000_000_000, "Less than 1 billion tokens"),
    (10_000_000_000_001, "1 billion to 10 trillion tokens"),
)
"""First number of tokens above a range of the template → the range. The last range has no upper limit."""
LARGEST_RANGE = "More than 10 trillion tokens"
LARGE_PERCENT = 3
"""A public dataset is large if it has more than this percentage of the data of all public datasets of its modality.

See section 2.1 of the template and of its explanatory notice, C(2025) 8311.
"""
CLAIMS: Mapping[str, SourceKind] = {"crawlers": "crawled", "user_interactions": "user", "user_services": "user"}
"""Key of an answer → the kind of source that it claims to be in the training data."""

Form = Literal["text", "yes or no", "range", "list", "date", "month"]
Origin = Literal["declared", "derived", "computed", "not declared"]


@dataclass(frozen=True, kw_only=True)
class TemplateField:
    """A field of the template.

    Attributes:
        section: Number of its section.
        name: Name in the template.
        form: Form of its answer.
        origin: Where the answer comes from; `not declared` if the declaration could have it, but does not.
        key: Key of the answer in the declaration; for a derived answer, the key from which it is derived.
        answer: The answer, as text.
        missing: Keys of required answers that are not declared.
        query: Name of the query that computes its numbers; empty if it has none.
    """

    section: str
    name: str
    form: Form
    origin: Origin
    key: str = ""
    answer: str = ""
    missing: tuple[str, ...] = ()
    query: str = ""

    @property
    def is_comment(self) -> bool:
        """Whether the field is for comments on its section."""
        return self.key.startswith(f"{KEY}.comments.")

    @property
    def is_omitted(self) -> bool:
        """Whether the answer is optional and not declared."""
        return self.origin == NOT_DECLARED and not self.missing


@dataclass(frozen=True, kw_only=True)
class ComputedAnswers:
    """Answers that are computed from the schedule, as text."""

    size: str = ""
    languages: str = ""
    sources: Mapping[str, str] | None = None
    """Name of each source that was read → its size; None before the schedule is built."""
    large_sources: Collection[str] = ()
    """Names of the sources that belong to large public datasets."""
    domains: str = ""


def choose_range(tokens: int) -> str:
    """Return the template's range of a number of tokens."""
    return next((label for limit, label in TEXT_RANGES if tokens < limit), LARGEST_RANGE)


def find_large_sources(summary: TrainingSummaryDeclaration, tokens: Mapping[str, int]) -> list[str]:
    """Return the names of the sources that belong to large public datasets (`LARGE_PERCENT`).

    Sources with the same link, or else the same title, are one public dataset.

    Args:
        summary: The declared answers.
        tokens: Name of each source that was read → its distinct tokens.
    """
    datasets = {
        name: origin.link or origin.title or name
        for name in tokens
        if (origin := summary.find_source(name)) is not None and origin.kind == "public"
    }
    sizes: Counter[str] = Counter()
    for name, dataset in datasets.items():
        sizes[dataset] += tokens[name]
    return [name for name, dataset in datasets.items() if 100 * sizes[dataset] > LARGE_PERCENT * sizes.total()]


def find_missing_answers(summary: TrainingSummaryDeclaration, names: Sequence[str]) -> list[str]:
    """Return the keys of missing answers about sources of the schedule, in the order of the template."""
    fields = list_fields(summary, names, ComputedAnswers())
    return list(dict.fromkeys(key for field in fields for key in field.missing))


def find_contradictions(summary: TrainingSummaryDeclaration, names: Sequence[str]) -> dict[str, SourceKind]:
    """Return each declared answer that needs a kind of source that the schedule does not read: key → the kind."""
    fields = _Fields(summary, names, ComputedAnswers())
    return {f"{KEY}.{key}": kind for key, kind in CLAIMS.items() if fields.is_claimed(key) and not fields.reads(kind)}


def list_fields(
    summary: TrainingSummaryDeclaration, names: Sequence[str], computed: ComputedAnswers
) -> list[TemplateField]:
    """Return the fields of the template in order.

    Args:
        summary: The declared answers.
        names: Names of the sources that the schedule reads.
        computed: Answers that are computed from the schedule.
    """
    return list(_Fields(summary, names, computed).iterate())


class _Fields:
    def __init__(self, summary: TrainingSummaryDeclaration, names: Sequence[str], computed: ComputedAnswers) -> None:
        self._summary, self._computed = summary, computed
        self._sources = {name: summary.find_source(name) for name in names}
        self._unknown = tuple(f"{KEY}.sources.{name}" for name, source in self._sources.items() if source is None)

    def iterate(self) -> Iterator[TemplateField]:
        """Yield the fields of all sections."""
        yield from self._list_general_fields()
        yield from self._list_datasets()
        yield from self._list_collected_data()
        yield from self._list_processing_fields()

    def _list_general_fields(self) -> Iterator[TemplateField]:
        yield self._ask("0", "Version of the Summary", "text", "version")
        yield self._ask("0", "Last update", "date", "updated")
        yield self._ask("1.1", "Provider name and contact details", "text", "provider")
        yield self._ask("1.1", "Authorised representative name and contact details", "text", "representative")
        yield self._ask("1.2", "Versioned model name(s)", "list", "models")
        yield self._ask("1.2", "Model dependencies", "text", "dependencies")
        yield self._ask("1.2", "Date of placement of the model on the Union market", "text", "placement")
        yield TemplateField(
            section="1.3",
            name="Modality",
            form="list",
            origin="derived",
            answer="Text (the schedule has no other modality)",
        )
        yield self._compute("1.3", "Training data size", "range", self._computed.size, "total")
        yield self._ask("1.3", "Types of content", "text", "content_types")
        yield self._ask("1.3", "Latest date of data acquisition/collection for model training", "month", "acquired")
        yield self._ask("1.3", "Model continuously trained on new data after this date", "yes or no", "continuous")
        yield self._ask("1.3", "Linguistic characteristics of the overall training data", "text", "languages")
        yield self._compute(
            "1.3", "Languages detected in the training data", "list", self._computed.languages, "languages"
        )
        yield self._ask("1.3", "Other relevant characteristics of the overall training data", "text", "characteristics")
        yield self._comment("1.3")

    def _list_datasets(self) -> Iterator[TemplateField]:
        yield self._use("2.1", "Publicly available datasets used to train the model", "public")
        yield self._name_modality("2.1", "public")
        yield self._list_large_datasets()
        yield self._describe_other_datasets()
        yield self._comment("2.1")
        yield self._use(
            "2.2.1", "Commercial licensing agreements with rightsholders or their representatives", "licensed"
        )
        yield self._name_modality("2.2.1", "licensed")
        yield self._use("2.2.2", "Private datasets obtained from other third parties", "private")
        yield self._name_modality("2.2.2", "private")
        yield self._ask(
            "2.2.2",
            "Publicly known private datasets, and general description of the others",
            "text",
            "private_datasets",
            kind="private",
        )
        yield self._comment("2.2")

    def _list_collected_data(self) -> Iterator[TemplateField]:
        yield self._use("2.3", "Crawlers used by the provider or on its behalf", "crawled")
        crawlers = self._summary.crawlers
        yield self._name_crawlers("Crawler name(s)/identifier(s)", [crawler.name for crawler in crawlers])
        yield self._name_crawlers(
            "Purposes of the crawler(s)", [f"{crawler.name}: {crawler.purpose}" for crawler in crawlers]
        )
        yield self._name_crawlers(
            "General description of crawler behaviour", [f"{crawler.name}: {crawler.behavior}" for crawler in crawlers]
        )
        periods = [f"{crawler.name}: {crawler.collected_from} to {crawler.collected_until}" for crawler in crawlers]
        yield self._name_crawlers("Period of data collection", periods)
        yield self._ask("2.3", "Type of content and online sources crawled", "text", "crawled_content", kind="crawled")
        yield self._name_modality("2.3", "crawled")
        is_unknown = self._has("crawled") and self._summary.small_provider is None
        yield TemplateField(
            section="2.3",
            name="Summary of the most relevant domain names crawled",
            form="list",
            origin="computed",
            key=f"{KEY}.small_provider",
            answer=self._computed.domains if self._has("crawled") else NOT_APPLICABLE,
            missing=(f"{KEY}.small_provider",) if is_unknown else (),
            query="domains",
        )
        yield self._comment("2.3")
        yield self._ask(
            "2.4", "Data from user interactions with the AI model", "yes or no", "user_interactions", "user"
        )
        yield self._ask("2.4", "Data from user interactions with other services", "yes or no", "user_services", "user")
        yield self._ask(
            "2.4", "General description of the services or products", "text", "user_description", kind="user"
        )
        yield self._name_modality("2.4", "user")
        yield self._comment("2.4")
        yield self._use("2.5", "Synthetic AI-generated data created by the provider or on its behalf", "synthetic")
        yield self._name_modality("2.5", "synthetic")
        yield self._ask(
            "2.5", "General-purpose AI model(s) used to generate the synthetic data", "list", "generators", "synthetic"
        )
        yield self._ask(
            "2.5", "Other AI models used to generate the synthetic data", "text", "other_generators", kind="synthetic"
        )
        yield self._comment("2.5")
        yield self._use("2.6", "Other data sources used to train the model", "other")
        yield self._ask("2.6", "Description of these data sources and the data", "text", "other_sources", kind="other")
        yield self._comment("2.6")

    def _list_processing_fields(self) -> Iterator[TemplateField]:
        yield self._ask("3.1", "Signatory to the Code of Practice", "yes or no", "code_of_practice")
        yield self._ask("3.1", "Measures to respect reservations of rights", "text", "opt_out")
        yield self._comment("3.1")
        yield self._ask("3.2", "Measures to avoid or remove illegal content", "text", "illegal_content")
        yield self._optional(
            "3.3", "Other relevant information about data processing", "processing", self._summary.processing
        )

    # --- Answers

    def _name_crawlers(self, name: str, texts: Sequence[str]) -> TemplateField:
        return self._answer("2.3", name, "list", "crawlers", "; ".join(texts), "crawled")

    def reads(self, kind: SourceKind) -> bool:
        """Return whether a source has the kind, or may have it, because a source has no declared kind."""
        return bool(self._unknown) or self._find_evidence(kind) == "sources"

    def is_claimed(self, key: str) -> bool:
        """Return whether the answer claims that a kind of source was used, as in `CLAIMS`."""
        return bool(getattr(self._summary, key))

    def _has(self, kind: SourceKind) -> bool:
        return self._find_evidence(kind) is not None

    def _find_evidence(self, kind: SourceKind) -> str | None:
        """Return the key that declares that the kind was used; None if no key does."""
        if any(source is not None and source.kind == kind for source in self._sources.values()):
            return "sources"
        return next(
            (key for key, claimed_kind in CLAIMS.items() if claimed_kind == kind and self.is_claimed(key)), None
        )

    def _ask(self, section: str, name: str, form: Form, key: str, kind: SourceKind | None = None) -> TemplateField:
        """Return a field with a declared answer, which is required if a source has the `kind`."""
        value = getattr(self._summary, key)
        if isinstance(value, bool):
            text = "Yes" if value else "No"
        elif isinstance(value, tuple):
            text = "; ".join(value)
        else:
            text = "" if value is None else str(value)
        return self._answer(section, name, form, key, text, kind)

    def _answer(
        self, section: str, name: str, form: Form, key: str, text: str, kind: SourceKind | None
    ) -> TemplateField:
        if not text and kind is not None and not self._has(kind):
            answer = NOT_DECLARED if self._unknown else "No" if form == "yes or no" else NOT_APPLICABLE
            return self._derive(section, name, form, answer)
        return TemplateField(
            section=section,
            name=name,
            form=form,
            origin="declared" if text else NOT_DECLARED,
            key=f"{KEY}.{key}",
            answer=text or NOT_DECLARED,
            missing=() if text else (f"{KEY}.{key}",),
        )

    def _optional(self, section: str, name: str, key: str, text: str | None) -> TemplateField:
        return TemplateField(
            section=section,
            name=name,
            form="text",
            origin="declared" if text else NOT_DECLARED,
            key=f"{KEY}.{key}",
            answer=text or NO_ANSWER,
        )

    def _compute(self, section: str, name: str, form: Form, answer: str, query: str) -> TemplateField:
        return TemplateField(section=section, name=name, form=form, origin="computed", answer=answer, query=query)

    def _comment(self, section: str) -> TemplateField:
        text = next((comment for number, comment in self._summary.comments.items() if number == section), None)
        return self._optional(section, "Additional comments (optional)", f"comments.{section}", text)

    def _derive(
        self,
        section: str,
        name: str,
        form: Form,
        answer: str,
        missing: tuple[str, ...] = (),
        query: str = "",
        key: str | None = None,
    ) -> TemplateField:
        return TemplateField(
            section=section,
            name=name,
            form=form,
            origin="derived",
            key=f"{KEY}.{key or 'sources'}",
            answer=answer,
            missing=missing,
            query=query,
        )

    def _use(self, section: str, name: str, kind: SourceKind) -> TemplateField:
        """Return whether the kind was used."""
        answer = "Yes" if self._has(kind) else NOT_DECLARED if self._unknown else "No"
        return self._derive(section, name, "yes or no", answer, self._unknown, key=self._find_evidence(kind))

    def _name_modality(self, section: str, kind: SourceKind) -> TemplateField:
        answer = "Text" if self._has(kind) else NOT_DECLARED if self._unknown else NOT_APPLICABLE
        return self._derive(section, "Type of modality covered", "list", answer, key=self._find_evidence(kind))

    def _list_large_datasets(self) -> TemplateField:
        """Return the large public datasets, each with its size."""
        sources = {n: source for n, source in self._sources.items() if source is not None and source.kind == "public"}
        missing = tuple(
            f"{KEY}.sources.{n}.link" for n, source in sources.items() if not (source.link or source.description)
        )
        empty = NOT_DECLARED if self._unknown else NO_ANSWER if sources else NOT_APPLICABLE
        return self._derive(
            "2.1",
            "List of large publicly available datasets",
            "list",
            "; ".join(self._describe_datasets(is_large=True)) or empty,
            missing,
            "sources",
        )

    def _describe_other_datasets(self) -> TemplateField:
        """Return the public datasets that are not large, each with its size, before the declared description."""
        field = self._ask(
            "2.1", "General description of other publicly available datasets", "text", "other_datasets", kind="public"
        )
        if not (datasets := list(self._describe_datasets(is_large=False))):
            return field
        return replace(field, answer="; ".join([*datasets, field.answer]), query="sources")

    def _describe_datasets(self, is_large: bool) -> Iterator[str]:
        sizes = self._computed.sources or {}
        for name, source in self._sources.items():
            if source is not None and source.kind == "public" and (name in self._computed.large_sources) == is_large:
                yield ", ".join(filter(None, [*_format_source(name, source), sizes.get(name)]))


def _format_source(name: str, source: SummarySource) -> Iterator[str]:
    yield source.title or name
    yield from filter(None, (source.link, source.description))
    if source.collected_from or source.collected_until:
        yield f"collected {source.collected_from or '?'} to {source.collected_until or '?'}"
