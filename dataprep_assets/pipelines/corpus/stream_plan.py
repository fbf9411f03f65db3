"""Derives what decides the bytes of a corpus's token stream, and of the `meta.pkl` that describes it."""

from typing import Any

from dataprep_assets.curation.retractions import retracted_ids
from dataprep_assets.errors import ConfigError
from dataprep_assets.formats.flat_bins import dtype_for_vocab
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.stream.token_stream import StreamPlan
from dataprep_assets.stream.tokenizer import load_bundle
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import Certificate


def stream_dtype(corpus: CorpusDeclaration, bundle: TokenizerBundle) -> str:
    """The declared dtype, or for `auto` the narrowest that holds every id.

    Raises ConfigError if the declared dtype cannot hold every id.
    """
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
    bos = bundle.bos(corpus.document.bos, corpus.document.special_tokens)
    ids = corpus.document.ids(sensitive=corpus.sensitive)
    return StreamPlan(
        tokenizer=bundle.directory,
        tokenizer_digest=bundle.digest,
        certificate=certificate.to_json(),
        special_tokens=corpus.document.special_tokens,
        separator_id=bundle.separator(corpus.document.separator, corpus.document.special_tokens).id,
        bos_id=bos.id if bos else None,
        dtype=stream_dtype(corpus, bundle),
        text_field=corpus.text_field,
        bad_records=corpus.bad_records.policy,
        sample_rate=corpus.sample_rate,
        level=corpus.prove.level,
        max_loss=corpus.tokenizer.max_loss,
        ids=ids,
        retracted=retracted_ids(corpus.retractions, ids).astype("<u8").tobytes(),
    )


def meta_of(corpus: CorpusDeclaration) -> dict[str, Any]:
    """The content of `meta.pkl`, every value read from the tokenizer (docs/formats/flat-bins.md#metapkl)."""
    bundle = load_bundle(corpus.tokenizer)
    separator = bundle.separator(corpus.document.separator, corpus.document.special_tokens)
    return {
        "tokenizer": bundle.name,
        "vocab_size": bundle.vocab_size,
        "eos_token_id": separator.id,
        "eos_token": separator.content,
        "dtype": stream_dtype(corpus, bundle),
        "tokenizer_sha256": bundle.digest,
    }
