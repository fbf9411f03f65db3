"""Small tokenizers of the published families, each with special tokens of every kind.

Entry points: `FAMILIES`, `save`.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXTS = [
    "the quick brown fox jumps over the lazy dog, 42 times <b>bold</b> or <s>struck</s> a/b [a] 1 < 2 > 0",
    "Größe, Straße, naïve café; def add(a, b):\n    return a + b",
    "敏捷的棕色狐狸 быстрая лиса tokens tokenizer tokenization",
] * 20
SPECIAL = ["<unk>", "<s>", "</s>", "[SEP]"]
"""Special tokens that are entries of the vocabulary."""
ADDED = [
    AddedToken("<|sys|>", special=True, normalized=True),
    AddedToken("<mask>", special=True, lstrip=True, rstrip=True),
    AddedToken("word", special=True, single_word=True),
    AddedToken("</s></s>", special=True, normalized=False),
    AddedToken(" <gap> ", special=True, normalized=False),
]
"""Special tokens outside of the vocabulary: normalized, stripped, single-word, containing another, with blanks."""
LITERALS = [*SPECIAL, *(token.content for token in ADDED)]
Definition = dict[str, Any]


def _trained(tokenizer: Tokenizer, trainer: Any, *, special: bool = True) -> Definition:
    tokenizer.train_from_iterator(TEXTS, trainer)
    if special:
        tokenizer.add_special_tokens([*SPECIAL, *ADDED])
    # Add ordinary entries last, because the ids of the special tokens must not change.
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</s>x", normalized=False)])
    value: Definition = json.loads(tokenizer.to_str())
    return value


def _unigram(scheme: str = "always", *, fallback: bool = False) -> Definition:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    names = [f"<0x{byte:02X}>" for byte in range(256)] if fallback else []
    trainer = trainers.UnigramTrainer(
        vocab_size=600, special_tokens=[*SPECIAL, *names], unk_token="<unk>", show_progress=False
    )
    value = _trained(tokenizer, trainer)
    value["added_tokens"] = [one for one in value["added_tokens"] if one["content"] not in names]
    value["model"] |= {"byte_fallback": fallback, "unk_id": 0}
    return value


def _word_piece(pre_tokenizer: Any) -> Definition:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizer
    return _trained(tokenizer, trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False))


def _word_level() -> Definition:
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _trained(tokenizer, trainers.WordLevelTrainer(special_tokens=SPECIAL, show_progress=False))


def _byte_level(*, ignore_merges: bool = False, merged: bool = False) -> Definition:
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    # Do not split words at punctuation, so that a special token is a single word.
    split = pre_tokenizers.Split(Regex(r" ?[^\s]+|\s+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    value = _trained(tokenizer, trainer)
    if merged:
        # Add an entry that merges create and that was flagged as special later.
        model = value["model"]
        model["merges"] = [pair for pair in model["merges"] if "[" not in pair[0]]
        for first, second in (("[", "S"), ("E", "P]"), ("[S", "EP]"), ("P", "]")):
            model["vocab"].setdefault(first + second, len(model["vocab"]))
            model["merges"].append([first, second])
        order = [["[", "S"], ["P", "]"], ["E", "P]"], ["[S", "EP]"]]
        model["merges"] = [pair for pair in model["merges"] if pair not in order] + order
        taken = {number: name for name, number in model["vocab"].items()}
        assert sorted(taken) == list(range(len(taken)))
        following = len(taken)
        for token in value["added_tokens"]:
            if token["content"] not in model["vocab"]:
                token["id"], following = following, following + 1
    return value


def _char_bpe() -> Definition:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return _trained(tokenizer, trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False))


def _named_in_config() -> Definition:
    value = _word_level()
    for token in value["added_tokens"]:
        token["special"] = token["special"] and token["content"] not in ("</s>", "<s>")
    return value


FAMILIES: dict[str, Callable[[], Definition]] = {
    "unigram": _unigram,
    "unigram_first": lambda: _unigram("first"),
    "unigram_bytes": lambda: _unigram(fallback=True),
    "wordpiece_bert": lambda: _word_piece(pre_tokenizers.BertPreTokenizer()),
    "wordpiece_blanks": lambda: _word_piece(pre_tokenizers.WhitespaceSplit()),
    "wordlevel": _word_level,
    "wordlevel_config": _named_in_config,
    "bytes": _byte_level,
    "bytes_ignore_merges": lambda: _byte_level(ignore_merges=True),
    "bytes_merged": lambda: _byte_level(merged=True),
    "characters": _char_bpe,
}


@cache
def _made(family: str) -> str:
    return json.dumps(FAMILIES[family]())


def save(folder: Path, family: str) -> Path:
    """Write the tokenizer of a family to a folder, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(_made(family))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "bos_token": "<s>"}))
    return folder
