"""How the documents of a pretraining blend become a token stream."""

from dataprep_assets.errors import ConfigError, TokenizerError, count_of
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.stream.token_stream import StreamPlan
from dataprep_assets.stream.tokenizer import load_bundle
from dataprep_assets.tokenization.bundle import SpecialToken, TokenizerBundle
from dataprep_assets.tokenization.certificate import Certificate
from dataprep_assets.tokenization.document_ids import DocumentIds

UINT16_VOCABULARY = 65_500
"""Megatron's own bound (`DType.optimal_dtype`): a vocabulary below it is stored as uint16, any other as int32."""


def blend_dtype(blend: BlendDeclaration) -> str:
    """The stream's dtype: as declared (`int32` is `uint32` here: the same bytes), or as Megatron would choose.

    Raises ConfigError when the declared one cannot hold every id.
    """
    bundle = load_bundle(blend.required_tokenizer)
    dtype = blend.pretrain_options.dtype
    if dtype == "auto":
        return "uint16" if bundle.vocab_size < UINT16_VOCABULARY else "uint32"
    # the largest id is one less than the size: 65,536 of them just fit
    if dtype == "uint16" and bundle.vocab_size > 1 << 16:
        raise ConfigError(
            f"pretrain.dtype: uint16 cannot represent the {count_of(bundle.vocab_size, 'id')} of {bundle.name}, "
            "which would wrap. Use auto or int32"
        )
    return "uint16" if dtype == "uint16" else "uint32"


def blend_separator(blend: BlendDeclaration, bundle: TokenizerBundle) -> SpecialToken | None:
    """The token that ends each document of a pretraining blend, if one does.

    Raises TokenizerError if there is none.
    """
    options = blend.pretrain_options
    if not options.add_eos:
        return None
    return bundle.separator(options.separator, options.special_tokens, key="pretrain.separator")


def blend_bos(blend: BlendDeclaration, bundle: TokenizerBundle) -> SpecialToken | None:
    """The token that begins each document of a pretraining blend, if one does.

    Raises TokenizerError if there is none.
    """
    if not blend.pretrain_options.add_bos:
        return None
    if not bundle.configured("bos_token"):
        raise TokenizerError(f"pretrain.add_bos: {bundle.name} has no bos_token. Remove the key")
    return bundle.bos("auto", blend.pretrain_options.special_tokens, key="pretrain.add_bos")


def blend_ids(blend: BlendDeclaration) -> DocumentIds | None:
    """Return how documents are identified: by their text, and not at all in a sensitive blend."""
    return None if blend.sensitive else DocumentIds()


def blend_stream(blend: BlendDeclaration, certificate: Certificate, text_field: str) -> StreamPlan:
    """Everything that decides the bytes of the token stream of one dataset.

    `blend` is the declaration, `certificate` that of the engine, `text_field` the key or column of the dataset's text.
    """
    bundle, options = load_bundle(blend.required_tokenizer), blend.pretrain_options
    separator, bos = blend_separator(blend, bundle), blend_bos(blend, bundle)
    return StreamPlan(
        tokenizer=bundle.directory,
        tokenizer_digest=bundle.digest,
        certificate=certificate.to_json(),
        special_tokens=options.special_tokens,
        separator_id=separator.id if separator else None,
        bos_id=bos.id if bos else None,
        dtype=blend_dtype(blend),
        text_field=text_field,
        bad_records=blend.bad_records.policy,
        sample_rate=options.sample_rate,
        level=blend.prove.level,
        max_loss=blend.required_tokenizer.max_loss,
        min_characters=options.min_doc_chars,
        max_tokens=options.max_doc_tokens,
        ids=blend_ids(blend),
    )
