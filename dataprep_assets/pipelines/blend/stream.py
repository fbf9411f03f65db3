"""Settings of a pretraining blend's token stream: its dtype, and the tokens around documents."""

from dataprep_assets.curation.retractions import read_retracted_ids
from dataprep_assets.errors import ConfigError, TokenizerError, count_of
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.removal.row_ids import load_blend_ids
from dataprep_assets.stream.token_stream import StreamPlan
from dataprep_assets.stream.tokenizer import load_declared_tokenizer
from dataprep_assets.tokenization.bundle import SpecialToken, TokenizerBundle
from dataprep_assets.tokenization.certificate import Certificate

UINT16_VOCABULARY = 65_500
"""Vocabulary size below which Megatron stores ids as uint16 instead of int32 (`DType.optimal_dtype`)."""


def choose_dtype(blend: BlendDeclaration) -> str:
    """Return the stream's dtype: the declared dtype, or with `auto` Megatron's choice.

    `uint32` stands for Megatron's `int32`, because ids have the same bytes in both. Raises ConfigError if an id does
    not fit into the declared dtype.
    """
    bundle = load_declared_tokenizer(blend.required_tokenizer)
    dtype = blend.pretrain_options.dtype
    if dtype == "auto":
        return "uint16" if bundle.vocab_size < UINT16_VOCABULARY else "uint32"
    # 65,536 ids fit in uint16, because the largest id is the vocabulary size minus 1.
    if dtype == "uint16" and bundle.vocab_size > 1 << 16:
        raise ConfigError(
            f"pretrain.dtype: uint16 is too small for the {count_of(bundle.vocab_size, 'id')} of {bundle.name}. Use "
            "auto or int32"
        )
    return "uint16" if dtype == "uint16" else "uint32"


def find_separator(blend: BlendDeclaration, bundle: TokenizerBundle) -> SpecialToken | None:
    """Return the token that ends each document of a pretraining blend; None if documents have no end token.

    Raises TokenizerError if the tokenizer does not have the token.
    """
    options = blend.pretrain_options
    if not options.add_eos:
        return None
    return bundle.choose_separator(options.separator, options.special_tokens, key="pretrain.separator")


def find_bos(blend: BlendDeclaration, bundle: TokenizerBundle) -> SpecialToken | None:
    """Return the token that begins each document of a pretraining blend; None if documents have no begin token.

    Raises TokenizerError if the tokenizer does not have the token.
    """
    if not blend.pretrain_options.add_bos:
        return None
    if not bundle.find_configured("bos_token"):
        raise TokenizerError(f"pretrain.add_bos: {bundle.name} has no bos_token. Remove the key")
    return bundle.choose_bos("auto", blend.pretrain_options.special_tokens, key="pretrain.add_bos")


def build_stream_plan(blend: BlendDeclaration, certificate: Certificate, text_field: str) -> StreamPlan:
    """Return the plan of one dataset's token stream, with all settings that determine its bytes.

    `blend` is the declaration, `certificate` is the engine's certificate, and `text_field` is the key or column of the
    text.
    """
    bundle, options = load_declared_tokenizer(blend.required_tokenizer), blend.pretrain_options
    separator, bos = find_separator(blend, bundle), find_bos(blend, bundle)
    return StreamPlan(
        tokenizer=bundle.directory,
        tokenizer_digest=bundle.digest,
        certificate=certificate.to_json(),
        special_tokens=options.special_tokens,
        separator_id=separator.id if separator else None,
        bos_id=bos.id if bos else None,
        dtype=choose_dtype(blend),
        text_field=text_field,
        bad_records=blend.bad_records.policy,
        sample_rate=options.sample_rate,
        level=blend.prove.level,
        max_loss=blend.required_tokenizer.max_loss,
        min_characters=options.min_doc_chars,
        max_tokens=options.max_doc_tokens,
        ids=(ids := load_blend_ids(blend)),
        retracted=read_retracted_ids(blend.retractions, ids).astype("<u8").tobytes(),
    )
