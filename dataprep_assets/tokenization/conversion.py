"""Converts a tokenizer without `tokenizer.json` once, with transformers (the extra `transformers`).

The conversion runs in a separate process with limits (`bounds.run_limited`). Its result is cached for the user, in a
folder named after the digest of the original's files. The folder also has these files, so that the ids can be compared
on any machine (`compare_with_original`).

A SentencePiece model has two conversions: by its class in transformers, and by the model's own description. The
conversion with fewer different ids for a few texts is used.

Entry points: `convert_folder`, `compare_with_original`, `Conversion`.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson
from typing_extensions import TypedDict

from dataprep_assets.bounds import limit_process, run_limited
from dataprep_assets.errors import ConfigError, TokenizerError, count_of
from dataprep_assets.project import find_user_cache, read_state
from dataprep_assets.stores.files import digest_value, sha256_file
from dataprep_assets.tokenization.bundle import TOKENIZER, TokenizerBundle, load_reference_tokenizer
from dataprep_assets.tokenization.certificate import generate_adversarial_documents
from dataprep_assets.tokenization.definition import CONFIG, DECODER, RECORD, read_settings
from dataprep_assets.tokenization.originals import (
    DESCRIPTIONS,
    Form,
    Original,
    find_original,
    open_encoder,
    read_ranks,
)

VERSION = 1
"""Increase it if a change can give different files."""
ORIGINAL = "original"
"""The folder of the original's files, in the folder of a conversion."""
MAX_DIFFERING = 0.1
"""Maximum share of adversarial documents with different ids. SentencePiece and `tokenizers` normalize long runs of
combining characters differently (7% of the documents), and no text of the dataset may differ."""
TEMPLATES = ("chat_template.jinja", "additional_chat_templates")
INSTALL = "pip install 'dataprep-assets[transformers]'"
_MEMORY_BYTES, _CPU_SECONDS, _WALL_SECONDS = 12 << 30, 600, 3600
_TEXTS = (
    *("Hello  world", "  two before", "two after  ", "a\n\nb\tc", "Größe, naïve café", "敏捷的狐狸 跳", "1234 5.67"),
    *(
        "ﬁ ＡＢ",
        "e\u0301",
        " ",
        "\x85x\x85",
        "\u200bx",
        "🙂 👩‍👩‍👧",
        "don't we'll",
        "x = {1: [2]}",
        "\u00a0no break",
        "क्षत्रिय",
    ),
)
_USER_DEFINED, _ADDED_TYPES = 4, (2, 3, 4)
"""Types of SentencePiece's pieces: user-defined, and all types that are not parts of words (unknown, control,
user-defined)."""
_DROPPED_SETTINGS = frozenset(
    {"tokenizer_class", "auto_map", "sp_model_kwargs", "legacy", "add_prefix_space", "tokenizer_file"}
)
"""Settings of a tokenizer class that do not apply to a converted tokenizer."""


class Conversion(TypedDict):
    """The record of a conversion.

    `files` has the digests of the original's files by name. `converter` names transformers' version and class.
    """

    form: Form
    pattern: str | None
    files: dict[str, str]
    converter: str


@dataclass(frozen=True, kw_only=True)
class Differences:
    """Result of a comparison with the original: number of documents, and number of documents with different ids."""

    documents: int
    differing: int


def read_conversion(folder: Path) -> Conversion | None:
    """Return the record of a converted tokenizer; None for other tokenizers."""
    return read_state(folder / RECORD, Conversion)


def convert_folder(folder: Path, pattern: str | None = None) -> Path | None:
    """Return the folder with the conversion of a tokenizer, and convert the tokenizer if necessary.

    Returns None if the folder has no tokenizer in a form that can be converted.

    Args:
        folder: The tokenizer's folder.
        pattern: The declared expression of a tiktoken file.

    Raises TokenizerError if a library is missing, or if the tokenizer cannot be converted.
    """
    original = find_original(folder, pattern)
    if original is None:
        return None
    digests = {str(path.relative_to(folder)): sha256_file(path) for path in _iterate_used_files(folder, original)}
    target = _locate_cache() / digest_value([VERSION, original.pattern, digests])
    if (target / RECORD).is_file():
        return target
    if (library := original.missing_library) is not None:
        raise TokenizerError(
            f"{folder}: no {TOKENIZER} found, and converting {original.path.name} needs {library}. Install the extra: "
            f"{INSTALL}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as name:
        staging = Path(name)
        for path in _iterate_used_files(folder, original):
            copy = staging / ORIGINAL / path.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        if (reason := _convert(staging, original.pattern)) is not None:
            raise TokenizerError(
                f"{original.path}: transformers cannot convert this tokenizer: {reason}. Save it with "
                "`AutoTokenizer.from_pretrained(...).save_pretrained(folder)` where the model's own code runs"
            )
        # Write the record last, so that a folder without a record is not taken for a conversion.
        converter = f"transformers {metadata.version('transformers')}, {(staging / 'converter').read_text()}"
        (staging / "converter").unlink()
        record = Conversion(form=original.form, pattern=original.pattern, files=digests, converter=converter)
        (staging / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        with suppress(OSError):  # fails if another process has finished the same conversion
            staging.rename(target)
            staging.mkdir()
    return target


def _locate_cache() -> Path:
    try:
        return find_user_cache() / "tokenizers"
    except ConfigError as error:
        raise TokenizerError(
            "the conversion of a tokenizer needs a cache folder. Set XDG_CACHE_HOME to a folder"
        ) from error


def _iterate_used_files(folder: Path, original: Original) -> Iterator[Path]:
    """Yield the files that determine ids or rendered text."""
    yield from original.files
    for name in (*DESCRIPTIONS, TEMPLATES[0]):
        if (path := folder / name).is_file():
            yield path
    yield from sorted((folder / TEMPLATES[1]).glob("*.jinja"))


def _convert(staging: Path, pattern: str | None) -> str | None:
    """Convert the original in `staging` in a separate process; return the reason for a failure, otherwise None."""
    code, output = run_limited(
        __name__,
        (str(staging), pattern),
        wall_seconds=_WALL_SECONDS,
        # Disable downloads from the Hub, because only the staged files may determine the result. Disable tiktoken's
        # cache, because it may have a different file under the same key.
        environment={"HF_HUB_OFFLINE": "1", "TIKTOKEN_CACHE_DIR": ""},
    )
    if code == 0:
        return None
    lines = output.splitlines()
    return lines[-1] if lines else f"the process ended ({code})"


def main(staging: str, pattern: str | None) -> None:
    """Write the converted files to the folder `staging`, in the separate process.

    After an error, prints the reason and exits with 1.
    """
    limit_process(_MEMORY_BYTES, _CPU_SECONDS)
    # Hide PyTorch from transformers, because a conversion does not use it, and its import takes longer than the rest.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        _write_conversion(Path(staging), pattern)
    except Exception as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        sys.exit(1)


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A conversion: the name of its class, its `tokenizer.json`, and the settings that follow from it."""

    name: str
    text: str
    settings: Mapping[str, Any]


def _write_conversion(staging: Path, pattern: str | None) -> None:
    """Write the conversion with the fewest differing texts into `staging`, with settings and templates."""
    folder = staging / ORIGINAL
    original = find_original(folder, pattern)
    assert original is not None
    settings = {name: value for name, value in read_settings(folder).values.items() if name not in _DROPPED_SETTINGS}
    settings[DECODER] = {
        number: {name: value for name, value in token.items() if name != "from_file"}
        for number, token in (settings.get(DECODER) or {}).items()
    }
    best: tuple[int, _Candidate] | None = None
    errors = []
    for convert in _CONVERTERS[original.form]:
        try:
            candidate = convert(original)
            differing_count = _count_differing(candidate, original)
        except Exception as error:  # each library has its own error types
            errors.append(error)
            continue
        if best is None or differing_count < best[0]:
            best = (differing_count, candidate)
        if not differing_count:
            break
    if best is None:
        raise errors[0]
    _, candidate = best
    (staging / TOKENIZER).write_text(candidate.text, encoding="utf-8")
    all_settings = {**candidate.settings, **settings, "tokenizer_class": "PreTrainedTokenizerFast"}
    (staging / CONFIG).write_text(
        json.dumps(all_settings, ensure_ascii=False, indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )
    for name in TEMPLATES:
        if (path := folder / name).is_dir():
            shutil.copytree(path, staging / name)
        elif path.is_file():
            shutil.copyfile(path, staging / name)
    (staging / "converter").write_text(candidate.name)


def _count_differing(candidate: _Candidate, original: Original) -> int:
    """Return the number of texts with different ids in a candidate and the original."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(candidate.text)
    encode = open_encoder(original, _find_splitting_expression(candidate.text))
    return sum(tokenizer.encode(text, add_special_tokens=False).ids != encode(text) for text in _TEXTS)


def _convert_by_class(original: Original) -> _Candidate:
    """Convert the tokenizer with the class that its files name."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(original.path.parent), trust_remote_code=False)
    tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    return _Candidate(name=type(tokenizer).__name__, text=tokenizer.backend_tokenizer.to_str(), settings=tokens)


def _convert_by_description(original: Original) -> _Candidate:
    """Convert a SentencePiece model by its own description, with the tokens that its class adds."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
    from transformers.convert_slow_tokenizer import SentencePieceExtractor
    from transformers.tokenization_utils_base import generate_merges

    proto = SentencePieceExtractor(str(original.path)).proto
    trainer, normalizer, pieces = proto.trainer_spec, proto.normalizer_spec, proto.pieces
    special_pieces = [(piece.piece, piece.type != _USER_DEFINED) for piece in pieces if piece.type in _ADDED_TYPES]
    model: Any
    if trainer.model_type == trainer.UNIGRAM:
        entries = [(piece.piece, piece.score) for piece in pieces]
        model = models.Unigram(entries, trainer.unk_id, byte_fallback=trainer.byte_fallback)
    elif trainer.model_type == trainer.BPE:
        ids = {piece.piece: number for number, piece in enumerate(pieces)}
        merges = generate_merges(ids, skip_tokens={content for content, _ in special_pieces})
        unknown_piece = pieces[trainer.unk_id].piece
        model = models.BPE(ids, merges, unk_token=unknown_piece, fuse_unk=True, byte_fallback=trainer.byte_fallback)
    else:
        raise ValueError("the type of the SentencePiece model must be UNIGRAM or BPE")
    tokenizer = Tokenizer(model)
    steps: list[Any] = (
        [normalizers.Precompiled(normalizer.precompiled_charsmap)] if normalizer.precompiled_charsmap else []
    )
    if normalizer.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if normalizer.add_dummy_prefix:
        steps.append(normalizers.Prepend("▁"))
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(content=" ", left=1)] if normalizer.add_dummy_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    tokenizer.add_tokens(
        [AddedToken(content, normalized=False, special=special) for content, special in special_pieces]
    )
    tokens = {"bos": trainer.bos_id, "eos": trainer.eos_id, "unk": trainer.unk_id, "pad": trainer.pad_id}
    settings = {f"{name}_token": pieces[number].piece for name, number in tokens.items() if number >= 0}
    with suppress(Exception):  # fails if no tokenizer class is known; then the model's own tokens are the only ones
        by_class = _convert_by_class(original)
        settings |= by_class.settings
        tokenizer.add_tokens(
            [
                AddedToken(token.pop("content"), **token)
                for token in sorted(orjson.loads(by_class.text)["added_tokens"], key=lambda token: token["id"])
                if token.pop("id") >= len(pieces)
            ]
        )
    return _Candidate(name="SentencePieceExtractor", text=tokenizer.to_str(), settings=settings)


def _convert_by_ranks(original: Original) -> _Candidate:
    """Convert a tiktoken file, with a placeholder for each unused id between its tokens and the added tokens."""
    from transformers.convert_slow_tokenizer import TikTokenConverter

    settings = read_settings(original.path.parent)
    contents = {int(number): str(token["content"]) for number, token in (settings.values.get(DECODER) or {}).items()}
    first_id = max(read_ranks(original.path).values()) + 1
    ids = range(first_id, max(contents, default=-1) + 1)
    special = [contents.get(number, f"<|reserved_token_{number}|>") for number in ids]
    special += [content for content in settings.extra_tokens if content not in special]
    converter: Any = TikTokenConverter  # the class has no type hints
    converter = converter(str(original.path), pattern=original.pattern, extra_special_tokens=special)
    return _Candidate(name="TikTokenConverter", text=converter.converted().to_str(), settings={})


def _convert_tekken(original: Original) -> _Candidate:
    """Convert a tekken file, with the conventional names of its special tokens as settings."""
    from transformers.integrations.mistral.tokenizer import MistralConverter

    tokenizer = MistralConverter(str(original.path)).converted()
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    settings = {name: token for name, token in tokens.items() if tokenizer.token_to_id(token) is not None}
    return _Candidate(name="MistralConverter", text=tokenizer.to_str(), settings=settings)


_CONVERTERS: dict[Form, tuple[Callable[[Original], _Candidate], ...]] = {
    "sentencepiece": (_convert_by_class, _convert_by_description),
    "tiktoken": (_convert_by_ranks,),
    "tekken": (_convert_tekken,),
    "merges": (_convert_by_class,),
    "wordpiece": (_convert_by_class,),
}


def _find_splitting_expression(text: str) -> str | None:
    """Return the expression by which a `tokenizer.json` splits text before byte-level BPE; None if there is none."""
    pre_tokenizer = orjson.loads(text).get("pre_tokenizer") or {}
    parts = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    for part in parts:
        if part.get("type") == "Split" and "Regex" in part["pattern"]:
            return str(part["pattern"]["Regex"])
        if part.get("type") == "ByteLevel" and part.get("use_regex", True):
            return r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    return None


def compare_with_original(bundle: TokenizerBundle, documents: Iterable[str]) -> Differences:
    """Compare the ids of a converted tokenizer with the original's ids on some documents.

    Documents with special tokens are skipped, because an original reads them differently. Raises TokenizerError if a
    library is missing.
    """
    conversion = read_conversion(bundle.directory)
    assert conversion is not None
    original = find_original(bundle.directory / ORIGINAL, conversion["pattern"])
    assert original is not None
    if (library := original.missing_library) is not None:
        raise TokenizerError(
            f"{bundle.name}: comparing its ids with {original.path.name} needs {library}. Install the extra: {INSTALL}"
        )
    encode = open_encoder(original, _find_splitting_expression(bundle.tokenizer_json))
    reference = load_reference_tokenizer(bundle, "match")
    count = differing_count = 0
    for document in documents:
        if bundle.special_literals.is_in(document):
            continue
        count += 1
        differing_count += list(reference.encode([document], special_as_text=False)[0]) != encode(document)
    return Differences(documents=count, differing=differing_count)


def require_equal(bundle: TokenizerBundle, documents: Iterable[str]) -> str | None:
    """Compare a converted tokenizer with its original; return a description, or None for other tokenizers.

    Raises TokenizerError if the ids of any document differ, or the ids of many adversarial documents.
    """
    conversion = read_conversion(bundle.directory)
    if conversion is None:
        return None
    differences = compare_with_original(bundle, documents)
    literals = [token.content for token in bundle.special_tokens]
    adversarial = compare_with_original(bundle, generate_adversarial_documents(literals))
    names = ", ".join(sorted(name for name in conversion["files"] if name not in DESCRIPTIONS))
    if differences.differing or adversarial.differing > MAX_DIFFERING * adversarial.documents:
        texts = f"{differences.differing:,} of {count_of(differences.documents, 'document')}"
        raise TokenizerError(
            f"{bundle.name}: after conversion by {conversion['converter']}, {texts} and {adversarial.differing:,} of "
            f"{adversarial.documents:,} adversarial documents have different ids than in the original ({names}). "
            f"Use a {TOKENIZER} from the model's authors"
        )
    exceptions = f", except {adversarial.differing:,} adversarial documents" if adversarial.differing else ""
    total = count_of(differences.documents + adversarial.documents, "document")
    return f"{names}, converted by {conversion['converter']}: {total} with equal ids{exceptions}"
