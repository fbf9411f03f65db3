"""The engine certificate, which permits a fast engine instead of the reference, and texts on which engines differ.

An engine is certified if it produces the same ids as the reference on a stratified sample of the dataset's corpus and
on an adversarial set. The certificate records the tokenizer's digest, the mode and both versions, and is invalid if any
of them changes. If a document of a *class* differs, the class is refused: the certificate lists it, and the reference
encodes its documents. An engine that differs on ordinary text (`ascii`) is refused completely.
"""

import platform
import random
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from pydantic import NonNegativeInt

from dataprep_assets.errors import CertificateError, TokenizerError, count_of
from dataprep_assets.integrity.receipt import find_installed_version
from dataprep_assets.stores.files import digest_value
from dataprep_assets.tokenization import reference as library
from dataprep_assets.tokenization.bundle import LiteralFinder, TokenizerBundle
from dataprep_assets.tokenization.engines import (
    EncodedTexts,
    Engine,
    FastokensEngine,
    ReferenceEngine,
    SpecialTokens,
)
from dataprep_assets.tokenization.reference import VERSIONS, UnicodeVersion, read_cached, write_cached

# The adversarial documents are texts on which tokenizer engines are known to differ.
#
# They are generated, and contain runs of white space, text that normalization changes, combining marks, scripts, emoji
# sequences, digits, contractions, literal special tokens, long words without a space, and some characters of each
# Unicode version since 10.0, which an engine's tables may lack. The set is deterministic, so that certificates are
# comparable.

SET = 6
"""Version of the set. Increase it with every change to the documents from `generate_adversarial_documents`."""
_SPACES = (
    " \t\n\r\u000b\u000c\u0085\u00a0\u1680\u2000\u2003\u2009\u200a\u2028\u2029\u202f\u205f\u3000\u200b\u2060\ufeff"
)
_SAMPLES = (
    "It's we'll I'd they're you've I'm CAN'T Won'T 'S 'Re ''s s'",
    "naïve café Ångström Œuvre ß ẞ ſ ﬁ ﬂ ﬃ",
    "ǆ ǅ ǈ Ǌ İ ı ŉ ΐ",
    "Zażółć gęślą jaźń; Příliš žluťoučký kůň",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία ς σ Σ",
    "Съешь же ещё этих мягких булок ѢѣІі",
    "他们说:「你好,世界。」这是测试,繁體中文。",
    "日本語のテキスト、カタカナ、ﾊﾝｶｸ、㍻㌔㎏①Ⅳ",
    "한국어 조합 한글 ᄒ\u1161ᆫ",
    "العربية مع تشكيل: مُحَمَّدٌ ـــ لا",
    "עברית עם ניקוד שָׁלוֹם",
    "हिन्दी क्षत्रिय ज्ञान श्री",
    "ไทยไม่มีช่องว่าง ภาษาไทยน้ำ",
    "தமிழ் கொ கௌ",
    "မြန်မာ ၁၂၃",
    "ქართული ႠႡႢ ᲐᲑ",
    "አማርኛ ፩፪",
    "བོད་ཡིག",
    "ᏣᎳᎩ Ꭰ ꭰ",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇫🇷 ☎️ ☎︎ 1️⃣",
    "e\u0301 a\u0308 o\u0302\u0323 o\u0323\u0302 \u0301leading",
    "a" + "\u0300\u0316" * 40,
    "\u0345\u0301 \u1e9b\u0323",
    "Å Å Ω Ω K K",
    "12345678901234567890 1,234,567.89 ٣٤٥ १२३ ½ ² ₃ Ⅷ 0x1F 1e-10",
    "--- === ___ ... ?!?! ((())) {}[]<> /* */ <!-- --> \\n\\t",
    "http://user@example.org:80/a/b?c=d&e=%20#f",
    "def f(x):\n    return x\n\n\n\tif x:\n\t\tpass  \n",
    "a,b;c\r\nd\re\n\r\n\r\n f",
    "\x00\x01\x02\x1f\x7f\x80\x9f",
    "\ufffd\ufffe\uffff\U0001f9ff\U000e0041\U0010ffff\ue000\uf8ff",
    "\u202eright-to-left\u202c \u2066iso\u2069 zero\u200dwidth\u200cjoin",
    "𝒜𝓑𝕮 𝟘𝟙 𐍈 𒀀 𓀀 𠜎𠜱𪚥 🜁",
    "Ａｂｃ１２３ ｡｢｣",
    "xX" * 200,
    "aA1 " * 300,
    "\u1100\u1161\u11a8\uac01\u11a8",
)
_APERIODIC_TEXTS = 4
"""Number of random texts with 40,000 characters and no short period. They test engines that split a long document to
process its parts in parallel (`fastokens` from 16 KiB on)."""
_REPEATED_UNITS = (
    ("a", 300_000),  # one word
    ("ab1", 100_000),  # words without spaces between them
    (" ", 300_000),  # white space, at which a pattern must look ahead
    ("\n", 100_000),  # line endings, at which a pattern must look ahead
    ("中", 100_000),  # a word with three bytes per character
    ("word ", 250_000),  # more than a million characters, for the class `long`
)
"""Repeated texts and their counts. The results are too long for the counters of some engines (2^16)."""


def generate_adversarial_documents(special_literals: Sequence[str] = ()) -> Iterator[str]:
    """Yield about 3,000 documents; some contain the tokenizer's own special tokens, `special_literals`."""
    yield from ("", " ", "\n", "a", "\u0301")
    for space in _SPACES:
        for count in (1, 2, 3, 7, 50, 129):
            run = space * count
            yield from (run, f"foo{run}bar", f"{run}foo", f"foo{run}", f"x{run}\n y{run}1")
    for text in _SAMPLES:
        yield text
        yield from {unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")} - {text}
        yield from (text.upper(), text.lower(), f" {text}", f"{text}\n\n", text[::-1])
    for literal in special_literals:
        yield from (
            literal,
            f"a{literal}b",
            f" {literal} ",
            literal + literal,
            literal[:-1],
            literal[1:],
            f"{literal}\n\n{literal}",
        )
    # The seed is arbitrary. It must not change, because certificates are comparable only if the documents are equal.
    generator = random.Random(20240229)
    alphabet = "".join(_SAMPLES) + _SPACES
    for length in (3, 10, 40, 200):
        for _ in range(60):
            yield "".join(generator.choice(alphabet) for _ in range(length))
    for number in range(60):
        text = "".join(generator.choice(alphabet) for _ in range(2000))
        yield (
            text
            if number < 60 - _APERIODIC_TEXTS
            else "".join(text[offset:] + text[:offset] for offset in range(0, 2000, 100))
        )
    for _ in range(200):  # random code points except U+0000 and surrogates
        yield "".join(chr(c) for c in (generator.randrange(1, 0x110000) for _ in range(60)) if not 0xD800 <= c < 0xE000)
    for version in VERSIONS:
        yield from _generate_unicode_documents(version)
    for unit, count in _REPEATED_UNITS:
        yield unit * count


def _generate_unicode_documents(version: UnicodeVersion) -> Iterator[str]:
    """Yield documents with a version's characters in words, between spaces and digits, and next to combining marks."""
    for character in version.sample:
        yield f"a{character}b {character}{character}1 {character}'s\n-{character}-"
        yield f" e{character}\u0316\u0301{character}"
    for mark in version.marks:
        # Put the mark next to marks of the combining classes 1, 220 and 230, because a library that knows the mark
        # reorders it by its class.
        yield from (f"a{mark}\u0334", f"e{mark}\u0316 o\u0301{mark}", f"{mark}u\u0323{mark}\u0308")
    for composed, decomposed in version.compositions:
        yield from (composed, f"x{decomposed}y", f"{decomposed}\u0301 {composed}\u0323")


LONG_DOCUMENT = 1_000_000
"""Documents with at least this many characters are in the class `long`."""
CLASSES = ("long", "special_literal", "ascii", "unnormalized", "east_asian", "other_script")
"""The classes, in the order of their tests. Classes that apply to any script (length, special tokens) come before the
scripts. ASCII comes before the rest, because it is the cheapest test for most texts."""


def classify_document(text: str, literals: LiteralFinder) -> str:
    """Return the class of a document: the first of `CLASSES` that matches."""
    if len(text) >= LONG_DOCUMENT:
        return "long"
    if literals.is_in(text):
        return "special_literal"
    if text.isascii():
        return "ascii"
    if not unicodedata.is_normalized("NFC", text):
        return "unnormalized"
    # The first range is from the CJK radicals to Hangul. The second range begins with the ideographs at U+20000.
    if any("\u2e80" <= c <= "\ud7ff" or c >= "\U00020000" for c in text[:2000]):
        return "east_asian"
    return "other_script"


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The result of comparing an engine with the reference, and the conditions under which it is valid.

    Attributes:
        reference_tables: The Unicode tables of the reference that affect this tokenizer's ids.
        compared: Number of compared documents per origin and class.
        refused: The classes that the reference must encode.
        reason: The reason for refusing them; None if no class is refused.
    """

    tokenizer_digest: str
    special_tokens: str
    engine: str
    engine_version: str
    reference_version: str
    unicode_version: str
    reference_tables: Mapping[str, str]
    compared: dict[str, int]
    refused: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def id(self) -> str:
        """Short digest of the certificate, for receipts."""
        return digest_value(asdict(self))[:16]

    @property
    def engine_is_refused(self) -> bool:
        """Whether the reference encodes every document."""
        return refuses_all(self.refused)

    def explain_invalidity(
        self, bundle: TokenizerBundle, special_tokens: str, engine: Engine, reference: Engine
    ) -> str | None:
        """Return the reason why the certificate is not valid for this use; None if it is valid.

        It is valid for the tokenizer of `bundle`, the mode `special_tokens` (`text` or `match`), the names and versions
        of `engine` and `reference` that it was created with, and the Unicode version of this Python.
        """
        pairs = {
            "tokenizer": (self.tokenizer_digest, bundle.digest),
            "special-token mode": (self.special_tokens, special_tokens),
            "engine": (self.engine, engine.name),
            f"version of {engine.name}": (self.engine_version, engine.version),
            "version of tokenizers": (self.reference_version, reference.version),
            "Unicode tables of tokenizers": (self.reference_tables, bundle.reference_tables),
            "Unicode version": (self.unicode_version, unicodedata.unidata_version),
        }
        changes = [f"{name} changed from {old} to {new}" for name, (old, new) in pairs.items() if old != new]
        return "; ".join(changes) or None

    def to_json(self) -> dict[str, Any]:
        """Return the certificate as plain builtins."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Certificate":
        """Return the certificate of a JSON value from `to_json`."""
        return cls(**value | {"refused": tuple(value["refused"])})


def refuses_all(refused_classes: Iterable[str]) -> bool:
    """Return whether an engine with these refused classes encodes no document."""
    return {*refused_classes} >= {*CLASSES}


def select_key_parts(certificate: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a certificate's JSON that enters the key of ids that were encoded under it.

    `refused` is included, because an engine may have wrongly encoded a class before it was refused. `reference` has the
    reference's Unicode tables that affect the tokenizer's ids.
    """
    return {"refused": sorted(certificate["refused"]), library.SETTING: dict(certificate["reference_tables"])}


def find_disagreements(engine: Engine, reference: Engine, texts: Sequence[str]) -> list[int]:
    """Return the indices of the `texts` for which the ids of `engine` differ from those of `reference`.

    If the engine raises for the whole batch, each document is tried separately and differs if the engine raises.
    """
    expected_ids, bounds = reference.encode(texts)
    try:
        actual_ids, offsets = engine.encode(texts)
    except Exception:  # an engine's exception for a document counts as a disagreement
        if len(texts) == 1:
            return [0]
        return [i for i, text in enumerate(texts) if find_disagreements(engine, reference, [text])]
    if np.array_equal(offsets, bounds) and np.array_equal(actual_ids, expected_ids):
        return []
    if len(offsets) != len(bounds):
        return list(range(len(texts)))  # the counts differ, so no ids can be assigned to a document
    return [
        i
        for i in range(len(texts))
        if not np.array_equal(actual_ids[offsets[i] : offsets[i + 1]], expected_ids[bounds[i] : bounds[i + 1]])
    ]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Number of compared documents, and number of documents with different ids, by class."""

    compared: Counter[str]
    differing: Counter[str]


def compare(
    bundle: TokenizerBundle, engine: Engine, reference: Engine, documents: Iterable[str] | None = None
) -> Comparison:
    """Compare `engine` with `reference` on `documents`, by default on the adversarial set of the bundle's tokenizer."""
    literals = bundle.special_literals
    if documents is None:
        documents = generate_adversarial_documents([t.content for t in bundle.special_tokens])
    compared_counts: Counter[str] = Counter()
    differing_counts: Counter[str] = Counter()
    for batch in cut_batches(documents):
        wrong_indices = set(find_disagreements(engine, reference, batch))
        for index, text in enumerate(batch):
            kind = classify_document(text, literals)
            compared_counts[kind] += 1
            differing_counts[kind] += index in wrong_indices
    return Comparison(compared=compared_counts, differing=differing_counts)


def compare_on_adversarial_set(
    bundle: TokenizerBundle, mode: SpecialTokens, engine: Engine, reference: Engine
) -> Comparison:
    """Return the result of `compare` on a tokenizer's adversarial set, cached for these engines.

    It is cached, because the set is the same for every dataset, and the comparison takes as long as a small corpus.

    Args:
        bundle: The tokenizer.
        mode: Reading of literal special tokens for both engines.
        engine: The engine to certify.
        reference: The engine to compare it with.
    """
    engines = [engine.name, engine.version, reference.name, reference.version]
    # Include Python's Unicode version, which decides whether a document is normalized and therefore its class.
    key = digest_value([SET, bundle.digest, mode, *engines, unicodedata.unidata_version, platform.machine()])
    comparison = _read_cached_comparison(key)
    if comparison is None:
        comparison = compare(bundle, engine, reference)
        write_cached("adversarial", key, {"compared": comparison.compared, "differing": comparison.differing})
    return comparison


def _read_cached_comparison(key: str) -> Comparison | None:
    """Return the cached comparison under a key; None if the key is not in the cache."""
    value = read_cached("adversarial", key, dict[str, dict[str, NonNegativeInt]])
    if value is None or value.keys() != {"compared", "differing"}:
        return None
    comparison = Comparison(compared=Counter(value["compared"]), differing=Counter(value["differing"]))
    # The entry may be from a version of this package with different classes.
    return (
        comparison
        if comparison.compared and set(comparison.compared) | set(comparison.differing) <= set(CLASSES)
        else None
    )


def certify(
    bundle: TokenizerBundle,
    special_tokens: SpecialTokens,
    engine: Engine,
    corpus_sample: Iterable[str],
    *,
    reference: Engine | None = None,
    adversarial: Comparison | None = None,
) -> Certificate:
    """Compare `engine` with the reference on the corpus and the adversarial set, and return its certificate.

    Args:
        bundle: The tokenizer.
        special_tokens: Reading of literal special tokens.
        engine: The engine to certify.
        corpus_sample: Documents of the corpus.
        reference: The engine to compare with; by default created from the bundle.
        adversarial: The comparison on the adversarial set, if it was already computed for exactly this engine.
    """
    reference_engine = reference or ReferenceEngine(bundle, special_tokens)
    comparisons = {
        "adversarial": adversarial or compare(bundle, engine, reference_engine),
        "corpus": compare(bundle, engine, reference_engine, corpus_sample),
    }
    compared_counts = {
        f"{origin}:{kind}": n for origin, comparison in comparisons.items() for kind, n in comparison.compared.items()
    }
    differing_counts = comparisons["adversarial"].differing + comparisons["corpus"].differing
    refused_classes: tuple[str, ...] = tuple(kind for kind in CLASSES if differing_counts[kind])
    reason = None
    if refused_classes:
        counts = ", ".join(f"{differing_counts[k]} of class {k}" for k in refused_classes)
        total = sum(compared_counts.values())
        reason = (
            f"{engine.name} {engine.version} differs from the reference on {counts} (of {count_of(total, 'document')})"
        )
        if "ascii" in refused_classes:
            refused_classes = CLASSES
            reason += "; it differs on plain ASCII text, so it is refused for this tokenizer"
    return Certificate(
        tokenizer_digest=bundle.digest,
        special_tokens=special_tokens,
        engine=engine.name,
        engine_version=engine.version,
        reference_version=reference_engine.version,
        unicode_version=unicodedata.unidata_version,
        compared=dict(sorted(compared_counts.items())),
        refused=refused_classes,
        reason=reason,
        reference_tables=bundle.reference_tables,
    )


def refuse_engine(bundle: TokenizerBundle, special_tokens: str, engine: str, reason: str) -> Certificate:
    """Return the certificate of an engine that was not compared, so that the reference encodes every document.

    Args:
        bundle: The tokenizer that the engine would have used.
        special_tokens: The reading of literal special tokens that the engine would have used.
        engine: Name of the engine.
        reason: The reason for the refusal.
    """
    version = library.read_library_version()
    return Certificate(
        tokenizer_digest=bundle.digest,
        special_tokens=special_tokens,
        engine=engine,
        engine_version=find_installed_version(engine) or "not installed",
        reference_version=version,
        unicode_version=unicodedata.unidata_version,
        compared={},
        refused=CLASSES,
        reason=reason,
        reference_tables=bundle.reference_tables,
    )


def cut_batches(documents: Iterable[str], characters: int = 2_000_000) -> Iterable[list[str]]:
    """Yield documents in batches of at least this many characters, except for the last batch.

    2 million characters let an engine use all its threads, and need only a few MB for texts and ids.
    """
    batch: list[str] = []
    size = 0
    for text in documents:
        batch.append(text)
        size += len(text)
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class CertifiedEncoder:
    """Encoder that uses the certified engine, sends refused classes to the reference, and can re-check documents.

    `bundle` and `special_tokens` must match the `certificate`; `load_fast` loads the fast engine.
    Raises CertificateError if the certificate is not valid for them. Not thread-safe. The reference is loaded when the
    first document needs it.
    """

    def __init__(
        self,
        bundle: TokenizerBundle,
        special_tokens: SpecialTokens,
        certificate: Certificate,
        load_fast: Callable[[TokenizerBundle, SpecialTokens], Engine] = FastokensEngine,
    ) -> None:
        self.bundle, self._mode, self.certificate = bundle, special_tokens, certificate
        self._reference_engine: Engine | None = None
        self._fast = None if certificate.engine_is_refused else load_fast(bundle, special_tokens)
        if self._fast is not None and (
            reason := certificate.explain_invalidity(bundle, special_tokens, self._fast, self.reference_identity)
        ):
            raise CertificateError(f"the engine certificate is invalid: {reason}. Rebuild `engine_certificate`")
        self.reference_documents = 0
        self.sampled_documents = 0

    @property
    def reference_identity(self) -> Engine:
        """Name and version of the reference, without loading its vocabulary."""
        return _ReferenceIdentity()

    @property
    def reference(self) -> Engine:
        """The reference engine, loaded on first use."""
        if self._reference_engine is None:
            self._reference_engine = ReferenceEngine(self.bundle, self._mode)
        return self._reference_engine

    def encode(self, texts: list[str]) -> EncodedTexts:
        """Return the ids of a block of documents; see `Engine.encode`."""
        if self._fast is None:
            self.reference_documents += len(texts)
            return self.reference.encode(texts)
        if not self.certificate.refused:
            return self._fast.encode(texts)
        literals = self.bundle.special_literals
        refused_flags = [classify_document(t, literals) in self.certificate.refused for t in texts]
        self.reference_documents += sum(refused_flags)
        by_engine = {
            is_refused: iter(_split_ids(engine.encode(batch)))
            for is_refused in set(refused_flags)
            for engine in [self.reference if is_refused else self._fast]
            for batch in [[text for text, flag in zip(texts, refused_flags, strict=True) if flag == is_refused]]
        }
        rows = [next(by_engine[is_refused]) for is_refused in refused_flags]
        offsets = np.zeros(len(rows) + 1, np.uint64)
        np.cumsum([len(r) for r in rows], out=offsets[1:])
        return (np.concatenate(rows) if rows else np.zeros(0, np.uint32)), offsets

    def warm_up(self, texts: list[str]) -> None:
        """Encode texts similar to the next texts, so that the fast engine caches their words. They are not counted."""
        if self._fast is not None and not self.certificate.refused:
            self._fast.encode(texts)

    def recheck(self, text: str, ids: Any, location: str) -> None:
        """Encode a document with the reference. Raises CertificateError, without its text, if the ids differ.

        `text` is the document, `ids` are its ids from `encode`, and `location` names its file and row in the error.
        """
        if self._fast is None:
            return
        self.sampled_documents += 1
        limit = 100_000  # maximum characters of a text to compare, which limits the reference's time
        if len(text) > limit:
            text = text[:limit]
            documents_before = self.reference_documents
            ids = self.encode([text])[0]
            # Restore the counter, because it counts only documents of the stream.
            self.reference_documents = documents_before
        if not np.array_equal(self.reference.encode([text])[0], ids):
            kind = classify_document(text, self.bundle.special_literals)
            raise CertificateError(
                f"{location}: {self.certificate.engine} {self.certificate.engine_version} differs from the "
                f"reference on this document (class {kind}). Declare `tokenizer.refuse: [{kind}]` and rebuild "
                "`engine_certificate`, or set `tokenizer.engine: tokenizers`"
            )


class _ReferenceIdentity:
    """Name and installed version of the reference, in the form of an engine that cannot encode."""

    name = ReferenceEngine.name

    def __init__(self) -> None:
        self.version = library.read_library_version()

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        raise TokenizerError(f"{self.name} cannot encode, because only its identity is loaded")


def _split_ids(encoded: EncodedTexts) -> list[Any]:
    ids, offsets = encoded
    return [ids[offsets[i] : offsets[i + 1]] for i in range(len(offsets) - 1)]
