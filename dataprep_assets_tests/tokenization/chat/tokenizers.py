"""A small tokenizer with chat tokens: the sample's tokenizer with six more."""

import atexit
import json
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import dataprep_assets
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import Certificate, CertifiedEncoder, certify, refuse_engine
from dataprep_assets.tokenization.chat.mask import ChatEncoder
from dataprep_assets.tokenization.chat.message_form import find_form
from dataprep_assets.tokenization.chat.rendering import GENERATION_MARKS, ConversationRenderer
from dataprep_assets.tokenization.chat.stops import find_stops
from dataprep_assets.tokenization.chat.template import ChatTemplate, compile_template, get_template_variables
from dataprep_assets.tokenization.engines import FastokensEngine

SAMPLE = Path(dataprep_assets.__file__).parent / "defs" / "samples" / "sample_corpus" / "tokenizer"
SPECIAL = ("<|im_start|>", "<|im_end|>")
PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>")


def write_chat_tokenizer(folder: Path, **flags: Any) -> TokenizerBundle:
    """Write the sample's tokenizer with chat tokens; `flags` are set on the special ones."""
    folder.mkdir(parents=True, exist_ok=True)
    definition = json.loads((SAMPLE / "tokenizer.json").read_bytes())
    first = max(token["id"] for token in definition["added_tokens"]) + 1
    for offset, content in enumerate((*SPECIAL, *PLAIN)):
        base = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        special = content in SPECIAL
        token = {"id": first + offset, "content": content, "special": special, **base, **(flags if special else {})}
        definition["added_tokens"].append(token)
    (folder / "tokenizer.json").write_text(json.dumps(definition, ensure_ascii=False))
    config = json.loads((SAMPLE / "tokenizer_config.json").read_bytes()) | {"eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return TokenizerBundle.load(folder, name="chat")


@lru_cache
def chat_bundle() -> TokenizerBundle:
    """Return the tokenizer, created once per process and removed at its end."""
    folder = Path(tempfile.mkdtemp(prefix="chat-tokenizer-"))
    atexit.register(shutil.rmtree, folder)
    return write_chat_tokenizer(folder)


@lru_cache
def chat_certificate() -> Certificate:
    """Return the certificate that the fast engine gets on the adversarial set only."""
    return certify(chat_bundle(), "text", FastokensEngine(chat_bundle(), "text"), [])


def conversation_renderer(
    template: str = "chatml_reasoning",
    bundle: TokenizerBundle | None = None,
    is_marked: bool = True,
    **options: Any,
) -> ConversationRenderer:
    """Return a renderer of a template given by name or text."""
    bundle = bundle or chat_bundle()
    loaded, variables = ChatTemplate.load(template), get_template_variables(bundle)
    renderer = compile_template(loaded, variables)
    form = find_form(renderer)
    stops = find_stops(renderer, form, bundle.special_tokens)
    if is_marked := is_marked and loaded.marks_answers:
        renderer = compile_template(loaded, variables, marks=GENERATION_MARKS)
    return ConversationRenderer(renderer, bundle.special_tokens, stops=stops, form=form, is_marked=is_marked, **options)


@lru_cache
def encoder(bundle: TokenizerBundle | None = None) -> ChatEncoder:
    """Return the certified engine for the small tokenizer, or the reference for another."""
    if bundle is None:
        return ChatEncoder(chat_bundle(), CertifiedEncoder(chat_bundle(), "text", chat_certificate()))
    refused = refuse_engine(bundle, "text", "tokenizers", "a test")
    return ChatEncoder(bundle, CertifiedEncoder(bundle, "text", refused))
