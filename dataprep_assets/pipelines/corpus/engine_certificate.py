"""Builds the engine certificate of a dataset, and from it the plan of its token stream."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from dataprep_assets.errors import ConfigError, TokenizerError
from dataprep_assets.formats.flat_bins import dtype_for_vocab
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.receipt import Receipt, versions
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration, TokenizerDeclaration
from dataprep_assets.pipelines.corpus.manifest import Manifest, open_source
from dataprep_assets.pipelines.corpus.token_stream import StreamPlan
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.sources.records import read_records
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import (
    CLASSES,
    Certificate,
    Comparison,
    certify,
    compare,
    refused_outright,
)
from dataprep_assets.tokenization.engines import FAST_ENGINES, ReferenceEngine, SpecialTokens, fast_engine

VERSION = 1
CERTIFICATE = "certificate.json"
FILES_SAMPLED = 6
DOCUMENTS_PER_FILE = 200
CHARACTERS_PER_DOCUMENT = 50_000
"""Bounds of the corpus sample: about a thousand documents, a few seconds of the reference's time."""
_ADVERSARIAL: dict[tuple[str, ...], Comparison] = {}
"""By tokenizer, mode, engine and versions: a run of several datasets with one tokenizer compares this set once."""


@lru_cache(maxsize=8)
def load_bundle(declared: TokenizerDeclaration) -> TokenizerBundle:
    """The declared tokenizer; one named by hub repository is fetched into the cache once, at its pinned revision."""
    if declared.path is not None:
        return TokenizerBundle.load(declared.path, name=declared.name)
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    assert declared.repo is not None
    assert declared.revision is not None
    try:
        found = Path(hf_hub_download(declared.repo, "tokenizer.json", revision=declared.revision))
        try:
            hf_hub_download(declared.repo, "tokenizer_config.json", revision=declared.revision)
        except LocalEntryNotFoundError:
            raise
        except EntryNotFoundError:
            pass  # a repository without one: no declared EOS or BOS
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise TokenizerError(
            f"tokenizer.repo: {declared.repo}@{declared.revision} cannot be fetched: {error}. "
            "Check the names and the network, or point `tokenizer.path` to a local copy"
        ) from error
    return TokenizerBundle.load(
        found.parent, name=declared.name or declared.repo.rpartition("/")[2], revision=declared.revision
    )


def certificate_key(corpus: CorpusDeclaration, manifest: Manifest) -> str:
    """The key of the certificate: another tokenizer, mode, engine, library version or manifest voids it."""
    installed = versions()
    libraries = [installed[name] for name in ("fastokens", "tokenizers", "unicode")]
    asked = [corpus.document.special_tokens, corpus.tokenizer.engine, sorted(corpus.tokenizer.refuse)]
    digest = load_bundle(corpus.tokenizer).digest
    return digest_value(["engine_certificate", VERSION, digest, asked, libraries, manifest.receipt.key])


def build_engine_certificate(
    corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest
) -> tuple[Receipt, bool]:
    """Certify the fastest engine that loads the tokenizer, on a sample of this corpus, and commit the certificate.

    Returns the receipt, and whether the certificate that was there still holds.
    """
    bundle = load_bundle(corpus.tokenizer)

    def write(staged: Path) -> Written:
        certificate = certified(
            bundle, corpus.tokenizer, corpus.document.special_tokens, lambda: corpus_sample(corpus, manifest)
        )
        (staged / CERTIFICATE).write_text(json.dumps(certificate.to_json(), indent=1, sort_keys=True) + "\n")
        return Written(
            inputs={"tokenizer": bundle.digest, "manifest": manifest.receipt.key},
            facts={
                "engine": certificate.engine,
                "engine_version": certificate.engine_version,
                "reference_version": certificate.reference_version,
                "refused": list(certificate.refused),
                "reason": certificate.reason,
                "documents": sum(certificate.compared.values()),
            },
        )

    return ensure(corpus.artifact("engine_certificate"), store, certificate_key(corpus, manifest), write)


def certified(
    bundle: TokenizerBundle, declared: TokenizerDeclaration, mode: SpecialTokens, sample: Callable[[], Iterable[str]]
) -> Certificate:
    """The certificate of the declared engine on a sample of a dataset, which is drawn only where one is needed.

    ConfigError for classes in `refuse` that do not exist; TokenizerError when a named engine cannot load the tokenizer.
    """
    if unknown := set(declared.refuse) - set(CLASSES):
        raise ConfigError(f"tokenizer.refuse: {sorted(unknown)}: known document classes are {list(CLASSES)}")
    wanted = declared.engine
    if wanted == ReferenceEngine.name:
        return refused_outright(bundle, mode, wanted, "the declaration asks for the reference engine")
    name = FAST_ENGINES[0] if wanted == "auto" else wanted
    try:
        engine = fast_engine(name, bundle, mode)
    except TokenizerError as error:
        if wanted != "auto":
            raise
        return refused_outright(bundle, mode, name, str(error))
    reference = ReferenceEngine(bundle, mode)
    known = (bundle.digest, mode, engine.name, engine.version, reference.version)
    if known not in _ADVERSARIAL:
        _ADVERSARIAL[known] = compare(bundle, engine, reference)
    certificate = certify(bundle, mode, engine, sample(), reference=reference, adversarial=_ADVERSARIAL[known])
    refused = tuple(k for k in CLASSES if k in (*certificate.refused, *declared.refuse))
    if refused == certificate.refused:
        return certificate
    extra = ", ".join(k for k in refused if k not in certificate.refused)
    reason = "; ".join(filter(None, (certificate.reason, f"refused by declaration: {extra}")))
    return replace(certificate, refused=refused, reason=reason)


def corpus_sample(corpus: CorpusDeclaration, manifest: Manifest) -> Iterator[str]:
    """Documents of files spread over every split, first and last files included; long ones are cut.

    Bad records are skipped here: refusing them is the token bins' affair. Files of a hub are mirrored first.
    """
    access = open_source(corpus.source)
    chosen: list[ManifestEntry] = []
    for split in corpus.splits:
        members = [e for e in manifest.entries if e.split == split]
        count = min(len(members), max(1, FILES_SAMPLED // len(corpus.splits)))
        chosen += [members[(len(members) - 1) * i // max(1, count - 1)] for i in range(count)]
    access.fetch(chosen)
    for entry in chosen:
        reader = read_records(
            access.path(entry),
            format=entry.format,
            compression=entry.compression,
            text_field=corpus.text_field,
            label=entry.relpath,
        )
        texts = (text for block in reader for text in block.texts)
        for text in itertools.islice(texts, DOCUMENTS_PER_FILE):
            yield text[:CHARACTERS_PER_DOCUMENT]


def load_certificate(corpus: CorpusDeclaration, store: ArtifactStore) -> Certificate:
    """The committed certificate; MissingArtifactError when it is not there."""
    directory = store.local(corpus.artifact("engine_certificate"))
    return Certificate.from_json(json.loads((directory / CERTIFICATE).read_bytes()))


def stream_dtype(corpus: CorpusDeclaration, bundle: TokenizerBundle) -> str:
    """The declared dtype, or for `auto` the narrowest that holds every id; ConfigError when the declared one wraps."""
    fits = dtype_for_vocab(bundle.vocab_size)
    if corpus.dtype == "auto":
        return fits
    if corpus.dtype == "uint16" and fits != "uint16":
        raise ConfigError(
            f"dtype: uint16 cannot hold the {bundle.vocab_size} ids of {bundle.name}: they would wrap. "
            "Use auto or uint32"
        )
    return corpus.dtype


def stream_plan(corpus: CorpusDeclaration, certificate: Certificate) -> StreamPlan:
    """Everything that decides the bytes of the dataset's token stream."""
    bundle = load_bundle(corpus.tokenizer)
    bos = bundle.bos(corpus.document.bos)
    return StreamPlan(
        tokenizer=bundle.directory,
        tokenizer_digest=bundle.digest,
        certificate=certificate.to_json(),
        special_tokens=corpus.document.special_tokens,
        separator_id=bundle.separator(corpus.document.separator).id,
        bos_id=bos.id if bos else None,
        dtype=stream_dtype(corpus, bundle),
        text_field=corpus.text_field,
        bad_records=corpus.bad_records.policy,
        sample_rate=corpus.sample_rate,
    )


def meta_of(corpus: CorpusDeclaration) -> dict[str, Any]:
    """The content of `meta.pkl`, every value read from the tokenizer (FORMATS B.1)."""
    bundle = load_bundle(corpus.tokenizer)
    separator = bundle.separator(corpus.document.separator)
    return {
        "tokenizer": bundle.name,
        "vocab_size": bundle.vocab_size,
        "eos_token_id": separator.id,
        "eos_token": separator.content,
        "dtype": stream_dtype(corpus, bundle),
        "tokenizer_sha256": bundle.digest,
    }
