"""Tokenizers in forms other than `tokenizer.json`, and their own encoders.

The forms are a SentencePiece model, a tiktoken file, Mistral's `tekken.json`, `vocab.json` with `merges.txt`, and
`vocab.txt`. Each has an encoder that does not use the library `tokenizers`, so its ids verify a conversion
(`conversion.py`).

Code in a tokenizer's folder is never run. The expression that splits text for tiktoken is read from the code only if it
is a literal.

Entry points: `find_original`, `Original`, `open_encoder`.
"""

import ast
import base64
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize

import orjson

from dataprep_assets.errors import TokenizerError
from dataprep_assets.tokenization.definition import CONFIG, OLDER_FILES, read_settings
from dataprep_assets.tokenization.reference import BYTE_LETTERS

Form = Literal["sentencepiece", "tiktoken", "tekken", "merges", "wordpiece"]

TEKKEN, MODEL, TIKTOKEN_MODEL, VOCABULARY, MERGES, WORDS = (
    *("tekken.json", "tokenizer.model", "tiktoken.model", "vocab.json", "merges.txt", "vocab.txt"),
)
CODE = ("tokenization_qwen.py", "tokenization_kimi.py", "tokenization_xgen.py", "tokenization_arcade100k.py")
"""Files in Hub repositories whose code has the expression of a tiktoken file."""
CANDIDATES = (TEKKEN, MODEL, TIKTOKEN_MODEL, "qwen.tiktoken", VOCABULARY, MERGES, WORDS)
"""Files in Hub repositories with a tokenizer in a different form."""
DESCRIPTIONS = (CONFIG, *OLDER_FILES, "config.json")
"""Files that describe a tokenizer in any form."""
_LIBRARIES: dict[Form, tuple[str, ...]] = {
    "sentencepiece": ("transformers", "sentencepiece", "google.protobuf"),
    "tiktoken": ("transformers", "tiktoken"),
    "tekken": ("transformers", "tiktoken"),
    "merges": ("transformers", "tiktoken"),
    "wordpiece": ("transformers",),
}
_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/=]+ \d+\r?\n")
_PATTERN_NAMES = frozenset({"pat_str", "PAT_STR", "pattern", "PATTERN"})

Encoder = Callable[[str], list[int]]
"""Function that returns the ids of a text, without BOS and EOS. It reads special tokens in the text as plain text."""


@dataclass(frozen=True, kw_only=True)
class Original:
    """A tokenizer without a `tokenizer.json`.

    Attributes:
        form: The form.
        path: The main file.
        pattern: The expression that splits text, for a tiktoken file.
    """

    form: Form
    path: Path
    pattern: str | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the tokenizer's vocabulary."""
        return (self.path, self.path.with_name(MERGES)) if self.form == "merges" else (self.path,)

    @property
    def missing_library(self) -> str | None:
        """The first library that a conversion needs and that is not installed; None if all are installed."""
        return next((name for name in _LIBRARIES[self.form] if not _is_installed(name)), None)


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a parent package is not installed
        return False


def find_original(folder: Path, pattern: str | None = None) -> Original | None:
    """Return the tokenizer in a folder without a `tokenizer.json`; None if the folder has no tokenizer.

    Args:
        folder: The folder.
        pattern: The declared expression of a tiktoken file.

    Raises TokenizerError for a tiktoken file whose expression is unknown.
    """
    if (path := folder / TEKKEN).is_file():
        return Original(form="tekken", path=path)
    for path in (folder / MODEL, folder / TIKTOKEN_MODEL, *sorted(folder.glob("*.tiktoken"))):
        if path.is_file():
            if not _is_tiktoken(path):
                return Original(form="sentencepiece", path=path)
            return Original(form="tiktoken", path=path, pattern=pattern or _find_declared_pattern(path))
    if (path := folder / VOCABULARY).is_file() and (folder / MERGES).is_file():
        return Original(form="merges", path=path)
    if (path := folder / WORDS).is_file():
        return Original(form="wordpiece", path=path)
    return None


def _is_tiktoken(path: Path) -> bool:
    with path.open("rb") as file:
        line = file.readline(4096)
    if line.startswith(b"version https://git-lfs"):
        raise TokenizerError(
            f"{path}: the file is a Git LFS pointer instead of the file itself. Run `git lfs pull` in its repository"
        )
    return _TIKTOKEN_LINE.match(line) is not None


def _find_declared_pattern(path: Path) -> str:
    """Return the expression in the code next to a tiktoken file. Raises TokenizerError if there is none."""
    for code in sorted(path.parent.glob("tokenization_*.py")):
        try:
            tree = ast.parse(code.read_bytes())
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else []
            names = {getattr(target, "id", getattr(target, "attr", None)) for target in targets}
            if (
                isinstance(node, ast.Assign)
                and names & _PATTERN_NAMES
                and (text := _parse_literal(node.value)) is not None
            ):
                return text
    raise TokenizerError(
        f"{path}: a tiktoken file does not contain the regular expression that splits text. Copy it from the model's "
        "code to `tokenizer.pattern`"
    )


def _parse_literal(node: ast.expr) -> str | None:
    """Return the text of a literal, or of literals that `"|".join([…])` joins; None for other code."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(between)), attr="join"),
            args=[ast.List(elts=parts) | ast.Tuple(elts=parts)],
        ):
            texts = [_parse_literal(part) for part in parts]
            return None if None in texts else between.join(text for text in texts if text is not None)
    return None


def read_ranks(path: Path) -> dict[bytes, int]:
    """Return the tokens of a tiktoken file with their ids. Raises TokenizerError for any other file."""
    ranks = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
        except ValueError as error:
            raise TokenizerError(
                f"{path}:{number}: not a valid line of a tiktoken file. Download the file again"
            ) from error
    return ranks


def open_encoder(original: Original, pattern: str | None = None) -> Encoder:
    """Return the tokenizer's own encoder.

    Args:
        original: The tokenizer.
        pattern: The expression of the converted tokenizer that splits text. It is needed for `vocab.json` with
            `merges.txt`, which lack it.

    Raises TokenizerError if a library is missing or cannot read the file.
    """
    try:
        match original.form:
            case "sentencepiece":
                return _load_sentencepiece(original.path)
            case "tiktoken":
                return _load_tiktoken(read_ranks(original.path), original.pattern or "")
            case "tekken":
                return _load_tekken(original.path)
            case "merges":
                return _load_merges(original.path, pattern)
            case "wordpiece":
                return _load_wordpiece(original.path)
    except TokenizerError:
        raise
    except Exception as error:  # each library has its own error types
        raise TokenizerError(f"{original.path}: cannot be read: {error}. Download the file again") from error


def _load_sentencepiece(path: Path) -> Encoder:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return lambda text: list(processor.encode(text))


def _load_tiktoken(ranks: Mapping[bytes, int], pattern: str) -> Encoder:
    import tiktoken

    encoding = tiktoken.Encoding("original", pat_str=pattern, mergeable_ranks=dict(ranks), special_tokens={})
    return encoding.encode_ordinary


def _load_tekken(path: Path) -> Encoder:
    """Return the encoder of a tekken file: tiktoken's encoder, with ids that follow the ids of special tokens."""
    value = orjson.loads(path.read_bytes())
    config = value["config"]
    special = config.get("default_num_special_tokens") or len(value["special_tokens"])
    size = config.get("default_vocab_size")
    entries = value["vocab"] if size is None else value["vocab"][: size - special]
    encode = _load_tiktoken(
        {base64.b64decode(e["token_bytes"]): rank for rank, e in enumerate(entries)}, config["pattern"]
    )
    return lambda text: [token_id + special for token_id in encode(text)]


def _load_merges(path: Path, pattern: str | None) -> Encoder:
    """Return the encoder of a byte-level BPE: tiktoken's encoder, with the order of the merges as ranks."""
    if pattern is None:
        raise TokenizerError(
            f"{path}: the ids of this tokenizer cannot be verified, because its class does not split text by a "
            "regular expression. Use a different tokenizer"
        )
    ids: dict[str, int] = orjson.loads(path.read_bytes())
    byte_by_letter = _map_letters_to_bytes()
    tokens = [*BYTE_LETTERS, *map("".join, _read_pairs(path.with_name(MERGES)))]
    id_by_rank = [ids[token] for token in dict.fromkeys(tokens)]
    encoded_tokens = [bytes(byte_by_letter[letter] for letter in token) for token in dict.fromkeys(tokens)]
    encode = _load_tiktoken({token: rank for rank, token in enumerate(encoded_tokens)}, pattern)
    # The tokenizer class of Qwen 2 composes characters (NFC) before it encodes them.
    form: Any = "NFC" if str(read_settings(path.parent).values.get("tokenizer_class")).startswith("Qwen2") else None
    return lambda text: [id_by_rank[rank] for rank in encode(normalize(form, text) if form else text)]


def _map_letters_to_bytes() -> dict[str, int]:
    """Return the byte for each of GPT-2's letters: printable bytes keep their code, the other bytes follow."""
    printable = {ord(letter) for letter in BYTE_LETTERS if ord(letter) < 256}
    other_bytes = [byte for byte in range(256) if byte not in printable]
    return {letter: ord(letter) if ord(letter) < 256 else other_bytes[ord(letter) - 256] for letter in BYTE_LETTERS}


def _read_pairs(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        left_part, _, second = line.partition(" ")
        if second and not line.startswith("#version"):
            yield left_part, second


def _load_wordpiece(path: Path) -> Encoder:
    from transformers.models.bert import tokenization_bert_legacy

    library: Any = tokenization_bert_legacy  # the module has no type hints

    words = path.read_text(encoding="utf-8").split("\n")
    ids = {word: number for number, word in enumerate(words) if word or number < len(words) - 1}
    settings = read_settings(path.parent)
    basic = library.BasicTokenizer(
        do_lower_case=settings.values.get("do_lower_case", True),
        tokenize_chinese_chars=settings.values.get("tokenize_chinese_chars", True),
        strip_accents=settings.values.get("strip_accents"),
    )
    unknown_word = settings.find_token("unk_token") or "[UNK]"
    pieces = library.WordpieceTokenizer(vocab=ids, unk_token=unknown_word)
    return lambda text: [
        ids.get(piece, ids[unknown_word]) for word in basic.tokenize(text) for piece in pieces.tokenize(word)
    ]
