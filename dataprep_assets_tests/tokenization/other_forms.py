"""Small tokenizers in formats other than `tokenizer.json`, trained on a few sentences."""

import base64
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from dataprep_assets.tokenization.originals import _map_letters_to_bytes

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The split pattern of Qwen."""
SENTENCES = [
    "The ferry crossed the harbour at noon, and the pilot wrote down the tide.",
    "A buoy marks the channel; its bell rings when the sea is rough.",
    "In 1987 the lighthouse got its 42nd keeper, who didn't stay.",
    "Größe und Höhe: naïve cafés an der Küste.",
    "def tide(port):\n    return {'high': [6, 18]}\n",
] * 8


def write_sentencepiece(folder: Path, kind: str, settings: dict[str, Any] | None = None, **options: Any) -> Path:
    """Write a `tokenizer.model` of 300 pieces, `bpe` or `unigram`."""
    import sentencepiece

    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / f"{folder.name}.txt").write_text("\n".join(SENTENCES))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder.parent / f"{folder.name}.txt"),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=400,
        model_type=kind,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


LLAMA = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
GEMMA = LLAMA | {
    **{"add_dummy_prefix": False, "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3},
    "user_defined_symbols": ["<start_of_turn>", "<end_of_turn>"],
}
T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}


@lru_cache
def train_byte_pairs() -> Tokenizer:
    """Return a byte-level BPE of 400 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    return tokenizer


@lru_cache
def rank_tokens() -> list[bytes]:
    """Return the tokens of the byte-level BPE in the order of a tiktoken file: bytes, then merges."""
    byte_by_letter = _map_letters_to_bytes()
    merges = json.loads(train_byte_pairs().to_str())["model"]["merges"]
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [bytes(byte_by_letter[letter] for letter in first + second) for first, second in merges]
    return list(dict.fromkeys(tokens))


def write_tiktoken(folder: Path, name: str = "qwen.tiktoken", code: str | None = None) -> Path:
    """Write a tiktoken file with two added tokens, whose ids leave a gap, and the `code` next to it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = rank_tokens()
    lines = [base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)]
    (folder / name).write_bytes(b"".join(lines))
    contents = {len(tokens): "<|endoftext|>", len(tokens) + 3: "<|im_end|>"}
    decoder = {str(number): {"content": content, "special": True} for number, content in contents.items()}
    settings = {
        **{"tokenizer_class": "QWenTokenizer", "eos_token": "<|endoftext|>", "added_tokens_decoder": decoder},
        "auto_map": {"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", None]},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if code is not None:
        (folder / "tokenization_qwen.py").write_text(code)
    return folder


def write_tekken(folder: Path) -> Path:
    """Write a `tekken.json` with 20 special tokens, five of which have names."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens, names = rank_tokens(), ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    value = {
        "config": {
            **{"pattern": PATTERN, "num_vocab_tokens": len(tokens), "default_vocab_size": len(tokens) + 20},
            **{"default_num_special_tokens": 20, "version": "v3"},
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate(tokens)
        ],
        "special_tokens": [{"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(names)],
    }
    (folder / "tekken.json").write_text(json.dumps(value))
    return folder


def write_merges(folder: Path, tokenizer_class: str = "Qwen2Tokenizer") -> Path:
    """Write `vocab.json` and `merges.txt`."""
    folder.mkdir(parents=True, exist_ok=True)
    train_byte_pairs().model.save(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer_class}))
    return folder


def write_words(folder: Path) -> Path:
    """Write a `vocab.txt`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.model.save(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    return folder
