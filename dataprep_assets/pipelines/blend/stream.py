"""How a blend is tokenized: its engine certificate, and the plan that every pretraining shard is encoded by."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dataprep_assets.errors import ConfigError
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.graph.facts import Facts
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.receipt import Receipt, versions
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.discovery import open_place
from dataprep_assets.pipelines.blend.plan import BlendPlan, PlannedUnit
from dataprep_assets.pipelines.corpus.engine_certificate import certified, load_bundle
from dataprep_assets.pipelines.corpus.token_stream import StreamPlan
from dataprep_assets.sources.rows import read_rows
from dataprep_assets.tokenization.certificate import Certificate

VERSION = 1
CERTIFICATE = "certificate.json"
DOCUMENTS_PER_DATASET = 200
CHARACTERS_PER_DOCUMENT = 50_000
UINT16_VOCABULARY = 65_500
"""Megatron's own bound (`DType.optimal_dtype`): a vocabulary below it is stored as uint16, any other as int32."""


class BlendCertificateFacts(Facts):
    """`refused`: what the engine was refused for; `documents`: texts compared with the reference."""

    engine: str
    engine_version: str
    reference_version: str
    refused: tuple[str, ...]
    reason: str | None
    documents: int


def blend_certificate_key(blend: BlendDeclaration, plan: BlendPlan) -> str:
    """The key of the certificate: another tokenizer, mode, engine, library version or source voids it."""
    declared, installed = blend.required_tokenizer, versions()
    libraries = [installed[name] for name in ("fastokens", "tokenizers", "unicode")]
    asked = [blend.pretrain_options.special_tokens, declared.engine, sorted(declared.refuse)]
    sources = [unit.plan_hash for unit in plan.units]
    return digest_value(["blend_certificate", VERSION, load_bundle(declared).digest, asked, libraries, sources])


def build_blend_certificate(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> tuple[Receipt, bool]:
    """Certify the fastest engine that loads the tokenizer, on documents of every dataset, and commit the certificate.

    Returns the receipt, and whether the certificate that was there still holds.
    """
    bundle = load_bundle(blend.required_tokenizer)

    def write(staged: Path) -> Written:
        mode = blend.pretrain_options.special_tokens
        certificate = certified(bundle, blend.required_tokenizer, mode, lambda: blend_sample(blend, plan))
        (staged / CERTIFICATE).write_text(json.dumps(certificate.to_json(), indent=1, sort_keys=True) + "\n")
        return Written(
            inputs={"tokenizer": bundle.digest} | {unit.name: unit.plan_hash for unit in plan.units},
            facts=BlendCertificateFacts(
                engine=certificate.engine,
                engine_version=certificate.engine_version,
                reference_version=certificate.reference_version,
                refused=tuple(certificate.refused),
                reason=certificate.reason,
                documents=sum(certificate.compared.values()),
            ),
        )

    return ensure(blend.artifact("engine_certificate"), store, blend_certificate_key(blend, plan), write)


def blend_sample(blend: BlendDeclaration, plan: BlendPlan) -> Iterator[str]:
    """The first texts of the smallest file of every dataset, long ones cut. Mirrored files are fetched first.

    Bad records are skipped here: refusing them is the shards' affair.
    """
    for unit in plan.units:
        entry = min(unit.entries, key=lambda e: (e.size_bytes or 1 << 62, e.ordinal))
        access = open_place(unit.dataset, blend.sources).access
        access.fetch([entry])
        reader = read_rows(access.path(entry), format=entry.format, compression=entry.compression, label=entry.relpath)
        texts = (text for block in reader for row in block.rows for text in row_texts(blend, unit, row))
        for text in itertools.islice(texts, DOCUMENTS_PER_DATASET):
            yield text[:CHARACTERS_PER_DOCUMENT]


def row_texts(blend: BlendDeclaration, unit: PlannedUnit, row: dict[str, Any]) -> Iterator[str]:
    """What of a row is tokenized: its text, or every text in its messages."""
    if blend.stage == "pretrain":
        yield from _strings(row.get(unit.dataset.text_field))
    else:
        yield from _strings(row.get(unit.dataset.messages_field or blend.sft_options.messages_field))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)


def load_blend_certificate(blend: BlendDeclaration, store: ArtifactStore) -> Certificate:
    """The committed certificate; MissingArtifactError when it is not there."""
    directory = store.local(blend.artifact("engine_certificate"))
    return Certificate.from_json(json.loads((directory / CERTIFICATE).read_bytes()))


def blend_dtype(blend: BlendDeclaration) -> str:
    """The stream's dtype: as declared (`int32` is `uint32` here: the same bytes), or as Megatron would choose.

    ConfigError when the declared one cannot hold every id.
    """
    bundle = load_bundle(blend.required_tokenizer)
    declared = blend.pretrain_options.dtype
    if declared == "auto":
        return "uint16" if bundle.vocab_size < UINT16_VOCABULARY else "uint32"
    if declared == "uint16" and bundle.vocab_size > 1 << 16:
        raise ConfigError(
            f"pretrain.dtype: uint16 cannot hold the {bundle.vocab_size} ids of {bundle.name}: they would wrap. "
            "Use auto or int32"
        )
    return "uint16" if declared == "uint16" else "uint32"


def blend_stream(blend: BlendDeclaration, certificate: Certificate, text_field: str) -> StreamPlan:
    """Everything that decides the bytes of the token stream of a dataset with this text field."""
    bundle, options = load_bundle(blend.required_tokenizer), blend.pretrain_options
    bos = bundle.bos("auto") if options.add_bos else None
    return StreamPlan(
        tokenizer=bundle.directory,
        tokenizer_digest=bundle.digest,
        certificate=certificate.to_json(),
        special_tokens=options.special_tokens,
        separator_id=bundle.separator(options.separator).id if options.add_eos else None,
        bos_id=bos.id if bos else None,
        dtype=blend_dtype(blend),
        text_field=text_field,
        bad_records=blend.bad_records.policy,
        sample_rate=options.sample_rate,
        min_characters=options.min_doc_chars,
        max_tokens=options.max_doc_tokens,
    )
