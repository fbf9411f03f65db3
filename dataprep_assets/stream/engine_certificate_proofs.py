"""Proofs about an engine certificate and the separator, which affect every id downstream."""

import unicodedata
from collections.abc import Sequence

from dataprep_assets.graph.finding import Finding
from dataprep_assets.tokenization.bundle import SpecialToken, TokenizerBundle
from dataprep_assets.tokenization.certificate import Certificate
from dataprep_assets.tokenization.engines import installed
from dataprep_assets.tokenization.reference import version


def certificate_holds(
    certificate: Certificate, bundle: TokenizerBundle, special_tokens: str, others: Sequence[str] = ()
) -> Finding:
    """Whether tokenizer, mode and installed versions are those that were certified; `others` are further changes."""
    pairs = {
        "tokenizer digest": (certificate.tokenizer_digest, bundle.digest),
        "special-token mode": (certificate.special_tokens, special_tokens),
        f"{certificate.engine} version": (certificate.engine_version, installed(certificate.engine) or "not installed"),
        "tokenizers version": (certificate.reference_version, version()),
        "Unicode tables of tokenizers": (dict(certificate.reference_tables), bundle.reference_tables),
        "Unicode version": (certificate.unicode_version, unicodedata.unidata_version),
    }
    rows = tuple(
        {"what": k, "certified": str(old), "now": str(new), "same": str(old == new)} for k, (old, new) in pairs.items()
    )
    changed = [*(what for what, (old, new) in pairs.items() if old != new), *others]
    return Finding(
        passed=not changed,
        facts={"documents_compared": sum(certificate.compared.values())},
        table=rows,
        summary=f"Changed since certification: {', '.join(changed)}. Materialize engine_certificate again."
        if changed
        else "The certificate covers this tokenizer, mode and these library versions.",
    )


def fast_engine_accepted(certificate: Certificate) -> Finding:
    """Whether the fast engine may encode every class of documents; a warning if some classes go to the reference."""
    return Finding(
        passed=not certificate.refused,
        warning=True,
        facts={"refused_classes": len(certificate.refused), "documents_compared": sum(certificate.compared.values())},
        summary=f"{certificate.reason or 'Refused'}. Sent to the reference engine: {', '.join(certificate.refused)}."
        if certificate.refused
        else f"{certificate.engine} {certificate.engine_version} gave the reference's ids on every document.",
        table=tuple({"class": k, "goes to": "tokenizers"} for k in certificate.refused),
    )


def separator_ends_documents(separator: SpecialToken, bundle: TokenizerBundle) -> Finding:
    """Whether the separator means the end of a document; a warning for a chat-turn token (QwenLM/Qwen3#1422)."""
    chat = bundle.ends_chat_turn(separator.content)
    return Finding(
        passed=not chat,
        warning=True,
        facts={"separator_id": separator.id, "separator": separator.content},
        summary=f"{separator.content} ({separator.id}) ends a chat turn in {bundle.name}: a model pretrained on it "
        "stops in mid-document. Choose the tokenizer's end-of-document token."
        if chat
        else f"{separator.content} ({separator.id}) ends each document.",
    )
