"""Invent text for a benchmark and train small tokenizers on it, without downloads."""

import random
from collections.abc import Iterable
from pathlib import Path

SEPARATORS = ("<|endoftext|>", "<|stop|>")
_SYLLABLES = [consonant + vowel for consonant in "bdklmnr" for vowel in "aeiou"]
_WORDS = 3_000


def vocabulary(seed: int = 0) -> list[str]:
    """Return invented words, of which the first are used most often."""
    rng = random.Random(seed)
    return ["".join(rng.choices(_SYLLABLES, k=rng.randint(1, 4))) for _ in range(_WORDS)]


def sentence(rng: random.Random, words: list[str], length: int) -> str:
    """Return this many words, frequent ones more often."""
    return " ".join(words[int(_WORDS * rng.random() ** 3)] for _ in range(length)) + "."


def train_tokenizer(folder: Path, texts: Iterable[str], size: int = 600) -> Path:
    """Train a byte-level BPE tokenizer with exactly `size` ids, the first of which are the `SEPARATORS`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SEPARATORS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.get_vocab_size() == size
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
