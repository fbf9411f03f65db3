"""The artifact `<dataset>/engine_certificate`, which permits the use of a fast tokenizer engine.

Every dataset that encodes text has the same kind of certificate. Only the sample documents (`CertificateSample`) come
from the dataset's own package. A certificate becomes void when the tokenizer, the mode, the engine, a library or the
source of the sample changes.
"""

import json
import shutil
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.metadata_values import ShownValue, Table
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest
from dataprep_assets.engine.checks.check import Check, Finding
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.errors import ConfigError, CorruptSourceError, FormatError, TokenizerError
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, find_installed_version, read_versions
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.declaration import TokenizerDeclaration
from dataprep_assets.stream.tokenizer import load_declared_tokenizer
from dataprep_assets.tokenization.bundle import TOKENIZER, SpecialToken, TokenizerBundle
from dataprep_assets.tokenization.certificate import (
    CLASSES,
    Certificate,
    certify,
    compare_on_adversarial_set,
    refuse_engine,
    refuses_all,
)
from dataprep_assets.tokenization.definition import CONFIG, RECORD
from dataprep_assets.tokenization.engines import (
    FastokensEngine,
    ReferenceEngine,
    SpecialTokens,
    try_in_process,
)
from dataprep_assets.tokenization.reference import SETTING, read_library_version


def engine_unchanged(
    certificate: Certificate, bundle: TokenizerBundle, special_tokens: str, other_changes: Sequence[str] = ()
) -> Finding:
    """Check that tokenizer, mode and installed versions equal the certified ones; also report `other_changes`."""
    pairs = {
        "tokenizer digest": (certificate.tokenizer_digest, bundle.digest),
        "special-token mode": (certificate.special_tokens, special_tokens),
        f"{certificate.engine} version": (
            certificate.engine_version,
            find_installed_version(certificate.engine) or "not installed",
        ),
        "tokenizers version": (certificate.reference_version, read_library_version()),
        "Unicode tables of tokenizers": (dict(certificate.reference_tables), bundle.reference_tables),
        "Unicode version": (certificate.unicode_version, unicodedata.unidata_version),
    }
    rows = tuple(
        {"setting": k, "certified": str(old), "current": str(new), "equal": str(old == new)}
        for k, (old, new) in pairs.items()
    )
    changed = [*(what for what, (old, new) in pairs.items() if old != new), *other_changes]
    return Finding(
        passed=not changed,
        facts={"documents_compared": sum(certificate.compared.values())},
        table=rows,
        summary=f"Changed since certification: {', '.join(changed)}. Rebuild `engine_certificate`."
        if changed
        else "The certificate covers this tokenizer, mode and these library versions.",
    )


def fast_engine_accepted(certificate: Certificate) -> Finding:
    """Check that the fast engine may encode every class of documents; warn if some classes go to the reference."""
    return Finding(
        passed=not certificate.refused,
        warning=True,
        facts={"refused_classes": len(certificate.refused), "documents_compared": sum(certificate.compared.values())},
        summary=f"{certificate.reason or 'Refused'}. Sent to the reference engine: {', '.join(certificate.refused)}."
        if certificate.refused
        else f"{certificate.engine} {certificate.engine_version} produced the reference's ids for every document.",
        table=tuple({"class": k, "engine": "tokenizers"} for k in certificate.refused),
    )


def separator_ends_documents(separator: SpecialToken, bundle: TokenizerBundle) -> Finding:
    """Check that the separator means the end of a document; warn if it is a chat-turn token (QwenLM/Qwen3#1422)."""
    chat = bundle.ends_chat_turn(separator.content)
    return Finding(
        passed=not chat,
        warning=True,
        facts={"separator_id": separator.id, "separator": separator.content},
        summary=f"{separator.content} ({separator.id}) ends a chat turn in {bundle.name}. A model pretrained on it "
        "stops in the middle of documents. Choose the tokenizer's end-of-document token."
        if chat
        else f"{separator.content} ({separator.id}) ends each document.",
    )


ENGINE_CERTIFICATE = "engine_certificate"
VERSION = 3
CERTIFICATE = "certificate.json"
DOCUMENTS_PER_FILE = 200
CHARACTERS_PER_DOCUMENT = 50_000
"""Maximum length of sample documents, so that the reference needs only a few seconds for a certificate."""


def read_first_texts(texts: Iterable[str]) -> Iterator[str]:
    """Yield the sample texts of a file: its first texts, with long ones truncated.

    For a damaged file, yield only the texts before the damage, because the build refuses the file with a better
    message.
    """
    with suppress(CorruptSourceError, OSError):
        for text in islice(texts, DOCUMENTS_PER_FILE):
            yield text[:CHARACTERS_PER_DOCUMENT]


class CertificateFacts(Facts):
    """Facts of a certificate's receipt.

    `months` are the months from which a sample of notes was drawn. `conversion` describes how a tokenizer without
    `tokenizer.json` was converted, and the comparison with its own ids.
    """

    engine: str
    engine_version: str
    reference_version: str
    refused: list[str]
    reason: str | None
    documents: int
    months: tuple[str, ...] = ()
    conversion: str | None = None

    @property
    def description(self) -> str:
        """The engine that encodes the texts, and the reason."""
        reference = f"{ReferenceEngine.name} {self.reference_version}"
        if refuses_all(self.refused):
            return f"{reference} ({self.reason})"
        exceptions = f"; {reference} for documents of class {', '.join(self.refused)}" if self.refused else ""
        return f"{self.engine} {self.engine_version} with the ids of {reference}{exceptions}"

    @classmethod
    def from_certificate(cls, certificate: Certificate, months: Sequence[str] | None = None) -> "CertificateFacts":
        """Return the facts of the receipt that is committed with a certificate.

        Args:
            certificate: The certificate.
            months: The months of a sample of notes; None for other samples.
        """
        facts = cls(
            engine=certificate.engine,
            engine_version=certificate.engine_version,
            reference_version=certificate.reference_version,
            refused=list(certificate.refused),
            reason=certificate.reason,
            documents=sum(certificate.compared.values()),
        )
        return facts if months is None else facts.model_copy(update={"months": tuple(months)})


@dataclass(frozen=True, kw_only=True)
class CertificateSample:
    """The documents on which an engine is certified.

    Attributes:
        kind: First part of the certificate's key.
        parts: Parts of the key that describe the sample's origin, as JSON values.
        texts: Draws the documents; called only if a certificate is built.
        sources: Name → digest of each source of the documents, for the recipe.
        settings: How the documents are read, for the recipe.
        months: The months of a sample of notes.
        guard: Context manager entered while the engine reads the documents; keeps their text out of errors.
    """

    kind: str
    parts: Sequence[Any]
    texts: Callable[[], Iterable[str]]
    sources: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    months: Sequence[str] | None = None
    guard: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True, kw_only=True)
class CertifiedEngine:
    """An engine to certify for a dataset.

    Attributes:
        dataset: The declaration of the dataset.
        tokenizer: The declared tokenizer and engine.
        special_tokens: Whether literal special tokens in documents are plain text or are matched.
        sample: Returns the sample for a store.
        separator: Content of the token that ends documents, or `auto`; None if there is no separator.
        at_hand: Whether the documents are on this machine. If so, `status` certifies the engine, so that it can predict
            downstream artifacts.
    """

    dataset: DatasetDeclaration
    tokenizer: TokenizerDeclaration
    special_tokens: SpecialTokens
    sample: Callable[[ArtifactStore], CertificateSample]
    separator: str | None = None
    at_hand: bool = False


def build_engine_certificate_spec(engine: CertifiedEngine, *, inputs: tuple[ArtifactSpec, ...] = ()) -> ArtifactSpec:
    """Return the spec of a dataset's engine certificate.

    Args:
        engine: The engine to certify, and its documents.
        inputs: The artifacts that determine the documents.
    """
    checks = _CHECKS if engine.separator is None else (*_CHECKS, _SEPARATOR_CHECK)
    return ArtifactSpec(
        declaration=engine.dataset,
        name=ENGINE_CERTIFICATE,
        version=VERSION,
        description="Comparison of the fast engine's ids with the reference engine's ids.",
        kinds={"json", "huggingface"},
        inputs=inputs,
        verification="full",
        recipes=partial(_build_recipes, engine),
        build=partial(_build_certificate, engine),
        foresee=partial(_predict_certificate_outcome, engine),
        metadata=partial(_build_metadata, engine),
        check_groups=(WholeArtifactChecks(checks=checks, open=partial(_open_certificate, engine)),),
    )


def _build_recipe(engine: CertifiedEngine, sample: CertificateSample) -> Recipe:
    # Read only the needed versions, because reading a package's metadata takes a millisecond.
    installed = read_versions(("fastokens", "tokenizers"))
    libraries = {name: installed[name] for name in ("fastokens", "tokenizers", "unicode")}
    engine_settings = [engine.special_tokens, engine.tokenizer.engine, sorted(engine.tokenizer.refuse)]
    bundle = load_declared_tokenizer(engine.tokenizer)
    digest, tables = bundle.digest, bundle.reference_tables
    return Recipe(
        artifact=engine.dataset.artifact(ENGINE_CERTIFICATE),
        key=digest_value([sample.kind, VERSION, digest, engine_settings, list(libraries.values()), *sample.parts]),
        version=VERSION,
        settings={
            # The Unicode tables are not part of the key, because the key contains the version of tokenizers, which
            # determines them.
            SETTING: tables,
            "special_tokens": engine.special_tokens,
            "tokenizer.engine": engine.tokenizer.engine,
            "tokenizer.refuse": sorted(engine.tokenizer.refuse),
            "installed": libraries,
            **sample.settings,
        },
        sources={"tokenizer": digest, **sample.sources},
    )


def _build_recipes(engine: CertifiedEngine, store: ArtifactStore, _: Sequence[str | None]) -> Iterator[Recipe]:
    yield _build_recipe(engine, engine.sample(store))


def _build_certificate(engine: CertifiedEngine, request: BuildRequest) -> Iterator[Outcome]:
    yield Outcome.from_receipt(*ensure_certificate(engine, request.store))


def _predict_certificate_outcome(engine: CertifiedEngine, request: BuildRequest) -> Iterator[Outcome]:
    """Certify if the documents are on this machine; else assume that the next certificate equals the current one.

    Downstream artifacts depend only on the refused classes, which rarely change with the sample or the version, and on
    the reference's Unicode tables. Nothing is assumed if the declaration changes the classes or if the tables differ.
    """
    if engine.at_hand:
        yield from _build_certificate(engine, request)
        return
    receipt = request.store.intact_receipt(engine.dataset.artifact(ENGINE_CERTIFICATE))
    if receipt is None:
        return
    stored_settings, now = receipt.recipe["settings"], _build_recipe(engine, engine.sample(request.store)).settings
    if all(
        stored_settings[name] == now[name]
        for name in ("special_tokens", "tokenizer.engine", "tokenizer.refuse", SETTING)
    ):
        yield Outcome.from_receipt(receipt, True)


def ensure_certificate(engine: CertifiedEngine, store: ArtifactStore) -> tuple[Receipt, bool]:
    """Certify the declared engine for the tokenizer, unless the current certificate is still valid.

    Returns:
        The receipt, and whether the certificate was reused.
    """
    bundle = load_declared_tokenizer(engine.tokenizer)
    sample = engine.sample(store)
    recipe = _build_recipe(engine, sample)

    def write(staged: Path) -> WrittenFiles:
        with sample.guard():
            certificate = certify_engine(bundle, engine.tokenizer, engine.special_tokens, sample.texts)
            conversion = _write_conversion(bundle, sample, staged)
        (staged / CERTIFICATE).write_bytes(_serialize(certificate))
        facts = CertificateFacts.from_certificate(certificate, sample.months)
        facts = facts if conversion is None else facts.model_copy(update={"conversion": conversion})
        return WrittenFiles(inputs=recipe.sources, facts=facts)

    return ensure_built(recipe, store, write)


def _write_conversion(bundle: TokenizerBundle, sample: CertificateSample, staged: Path) -> str | None:
    """Save a converted tokenizer next to its certificate, and describe the conversion; None for other tokenizers.

    Raises TokenizerError if the converted tokenizer and the original give different ids for a sample document.
    """
    if not (bundle.directory / RECORD).is_file():
        return None
    # Import the module only here, because most tokenizers are not converted and do not need it.
    from dataprep_assets.tokenization.conversion import require_equal

    description = require_equal(bundle, sample.texts())
    for name in (TOKENIZER, CONFIG, RECORD):
        shutil.copyfile(bundle.directory / name, staged / name)
    return description


def _serialize(certificate: Certificate) -> bytes:
    return (json.dumps(certificate.to_json(), indent=1, sort_keys=True) + "\n").encode()


def load_certificate(dataset: DatasetDeclaration, store: ArtifactStore) -> Certificate:
    """Return a dataset's committed certificate.

    Raises MissingArtifactError if it is missing, FormatError if it is invalid.
    """
    path = store.local(dataset.artifact(ENGINE_CERTIFICATE), [CERTIFICATE]) / CERTIFICATE
    try:
        return Certificate.from_json(load_untrusted_json(path.read_bytes()))
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise FormatError(f"{path}: invalid certificate: {error}. Rebuild `engine_certificate`") from error


def describe_engine(receipts: Mapping[ArtifactSpec, Sequence[Receipt]]) -> str | None:
    """Return the engine of a dataset's texts and the reason, from its receipts; None if there is no certificate."""
    receipt_lists = (spec_receipts for spec, spec_receipts in receipts.items() if spec.name == ENGINE_CERTIFICATE)
    return next(
        (
            CertificateFacts.from_receipt(receipt).description
            for spec_receipts in receipt_lists
            for receipt in spec_receipts
        ),
        None,
    )


def describe_engine_line(dataset: DatasetDeclaration, store: ArtifactStore) -> str:
    """Return the line about the engine for the end of a run; raises MissingArtifactError without a certificate."""
    return f"engine: {CertificateFacts.from_receipt(store.require(dataset.artifact(ENGINE_CERTIFICATE))).description}"


def certify_engine(
    bundle: TokenizerBundle, declaration: TokenizerDeclaration, mode: SpecialTokens, sample: Callable[[], Iterable[str]]
) -> Certificate:
    """Return the certificate of the declared engine; the sample is drawn only if it is needed.

    An engine that is not installed or cannot load the tokenizer is refused outright. Raises ConfigError if `refuse`
    names unknown classes.
    """
    if unknown := set(declaration.refuse) - set(CLASSES):
        raise ConfigError(
            f"tokenizer.refuse: unknown document classes {', '.join(sorted(unknown))}. Available: {', '.join(CLASSES)}"
        )
    engine_name = declaration.engine
    if engine_name == ReferenceEngine.name:
        return refuse_engine(bundle, mode, engine_name, "the declaration asks for the reference engine")
    try:
        certificate = _certify_fast_engine(bundle, mode, sample)
    except TokenizerError as error:
        # Remove the tokenizer's path from the message, because a certificate must not contain a path on this machine.
        return refuse_engine(bundle, mode, engine_name, str(error).removeprefix(f"{bundle.directory}").lstrip("/: "))
    # Use the order of `CLASSES`, not the declaration's order, so that equal certificates have equal bytes.
    refused_classes = tuple(k for k in CLASSES if k in (*certificate.refused, *declaration.refuse))
    if refused_classes == certificate.refused:
        return certificate
    extra = ", ".join(k for k in refused_classes if k not in certificate.refused)
    reason = "; ".join(filter(None, (certificate.reason, f"refused by declaration: {extra}")))
    return replace(certificate, refused=refused_classes, reason=reason)


def _certify_fast_engine(
    bundle: TokenizerBundle, mode: SpecialTokens, sample: Callable[[], Iterable[str]]
) -> Certificate:
    """Certify the fast engine on the adversarial set and the sample."""
    try_in_process(bundle, FastokensEngine.name)
    engine, reference = FastokensEngine(bundle, mode), ReferenceEngine(bundle, mode)
    adversarial = compare_on_adversarial_set(bundle, mode, engine, reference)
    return certify(bundle, mode, engine, sample(), reference=reference, adversarial=adversarial)


def _build_metadata(engine: CertifiedEngine, store: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    certificate = load_certificate(engine.dataset, store)
    rows = [
        {"origin": origin, "class": kind, "documents": count, "engine": where}
        for name, count in certificate.compared.items()
        for origin, _, kind in [name.partition(":")]
        for where in ["tokenizers" if kind in certificate.refused else certificate.engine]
    ]
    metadata: dict[str, ShownValue] = {
        "engine": certificate.engine,
        "engine_version": certificate.engine_version,
        "reference_version": certificate.reference_version,
        "refused_classes": ", ".join(certificate.refused) or "none",
    }
    if rows:
        metadata["compared"] = Table(rows)
    if certificate.reason:
        metadata["reason"] = certificate.reason
    if conversion := CertificateFacts.from_receipt(receipt).conversion:
        metadata["conversion"] = conversion
    if certificate.reference_tables:
        metadata["reference_tables"] = ", ".join(
            f"{name} {table}" for name, table in certificate.reference_tables.items()
        )
    return metadata


@dataclass(frozen=True)
class _OpenedCertificate:
    """A certificate to check, as read from disk, and the current tokenizer."""

    engine: CertifiedEngine
    store: ArtifactStore
    certificate: Certificate
    bundle: TokenizerBundle

    def list_fact_changes(self) -> list[str]:
        """List differences in the receipt's facts or the file's bytes that the certificate does not explain."""
        artifact = self.engine.dataset.artifact(ENGINE_CERTIFICATE)
        facts = CertificateFacts.from_receipt(self.store.require(artifact))
        expected_facts = CertificateFacts.from_certificate(self.certificate, facts.months or None)
        expected_facts = expected_facts.model_copy(update={"conversion": facts.conversion})
        changes = [] if facts == expected_facts else ["the facts in its receipt"]
        # Also compare the bytes, because a file with the same JSON values in different bytes would pass the other
        # checks if its receipt had been rewritten to match.
        if (self.store.local(artifact, [CERTIFICATE]) / CERTIFICATE).read_bytes() != _serialize(self.certificate):
            changes.append(f"the bytes of {CERTIFICATE}")
        return changes


def _open_certificate(engine: CertifiedEngine, store: ArtifactStore, _: Sequence[str]) -> _OpenedCertificate:
    return _OpenedCertificate(
        engine, store, load_certificate(engine.dataset, store), load_declared_tokenizer(engine.tokenizer)
    )


def _separator_ends_documents(certificate: _OpenedCertificate) -> Finding:
    assert certificate.engine.separator is not None
    separator = certificate.bundle.choose_separator(certificate.engine.separator, certificate.engine.special_tokens)
    return separator_ends_documents(separator, certificate.bundle)


_CHECKS: tuple[Check[_OpenedCertificate], ...] = (
    Check(
        "engine_unchanged",
        "The tokenizer, `special_tokens` and the library versions have not changed since the certification.",
        lambda opened: engine_unchanged(
            opened.certificate, opened.bundle, opened.engine.special_tokens, opened.list_fact_changes()
        ),
    ),
    Check(
        "fast_engine_accepted",
        "The fast engine can encode every class of documents.",
        lambda opened: fast_engine_accepted(opened.certificate),
        blocking=False,
    ),
)
_SEPARATOR_CHECK = Check(
    "separator_ends_documents",
    "The separator does not end a chat turn.",
    _separator_ends_documents,
    blocking=False,
)
