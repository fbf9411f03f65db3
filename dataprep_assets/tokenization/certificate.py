"""The engine certificate, which permits a fast engine in place of the reference, and texts on which engines differ.

An engine earns it by giving ids identical to the reference on a stratified sample of the corpus at hand and on an
adversarial set. It is recorded with the tokenizer's digest, the mode and both versions, and is void when any of them
changes. A *class* of documents in which one disagreement was seen is refused: its documents go to the reference, and
the certificate says so. An engine that disagrees on ordinary text (`ascii`) is refused altogether.
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
from dataprep_assets.stores.files import digest_value
from dataprep_assets.tokenization import reference as library
from dataprep_assets.tokenization.bundle import LiteralFinder, TokenizerBundle
from dataprep_assets.tokenization.engines import (
    Encoded,
    Engine,
    FastokensEngine,
    ReferenceEngine,
    SpecialTokens,
    installed,
    recall,
    remember,
)
from dataprep_assets.tokenization.reference import VERSIONS, UnicodeVersion

# Documents on which tokenizer engines are known to differ.
#
# Generated, not collected: white-space runs, normalization, combining marks, scripts, emoji sequences, digits,
# contractions, literal special tokens, long words without a space, and some characters of each version of Unicode
# since 10.0, which the tables of two engines may know or not. Deterministic, so a certificate means the same
# everywhere.

SET = 6
"""Version of the set: increased with every change of what `adversarial_documents` yields."""
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
_WITH_SEAMS = 4
"""Of the random texts, those that are 40,000 characters, in which nothing repeats in step. An engine that cuts a long
document to match its parts in parallel (`fastokens` from 16 KiB on) has to join them in the middle of anything."""
_LONG = (
    ("a", 300_000),  # one word
    ("ab1", 100_000),  # words without a space between
    (" ", 300_000),  # white space that a pattern has to look ahead of
    ("\n", 100_000),  # the same of line ends
    ("中", 100_000),  # a word of three bytes a character
    ("word ", 250_000),  # more than a million characters: the class `long`
)
"""What is repeated, and how often: lengths beyond the counters that engines have been seen with (2^16)."""


def adversarial_documents(special_literals: Sequence[str] = ()) -> Iterator[str]:
    """Yield about 3,000 documents; `special_literals` are the tokenizer's own special tokens, put within text."""
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
    # Any seed would do, but another one would give other documents, and change the meaning of certificates.
    generator = random.Random(20240229)
    alphabet = "".join(_SAMPLES) + _SPACES
    for length in (3, 10, 40, 200):
        for _ in range(60):
            yield "".join(generator.choice(alphabet) for _ in range(length))
    for number in range(60):
        text = "".join(generator.choice(alphabet) for _ in range(2000))
        yield (
            text
            if number < 60 - _WITH_SEAMS
            else "".join(text[offset:] + text[:offset] for offset in range(0, 2000, 100))
        )
    for _ in range(200):  # any code point except surrogates
        yield "".join(chr(c) for c in (generator.randrange(1, 0x110000) for _ in range(60)) if not 0xD800 <= c < 0xE000)
    for version in VERSIONS:
        yield from _of_unicode(version)
    for unit, count in _LONG:
        yield unit * count


def _of_unicode(version: UnicodeVersion) -> Iterator[str]:
    """Its characters in words, between spaces and digits, before and after marks of other combining classes."""
    for character in version.sample:
        yield f"a{character}b {character}{character}1 {character}'s\n-{character}-"
        yield f" e{character}\u0316\u0301{character}"
    for mark in version.marks:
        # classes 1, 220 and 230: a table that knows the mark puts it behind, between or before them
        yield from (f"a{mark}\u0334", f"e{mark}\u0316 o\u0301{mark}", f"{mark}u\u0323{mark}\u0308")
    for composed, decomposed in version.compositions:
        yield from (composed, f"x{decomposed}y", f"{decomposed}\u0301 {composed}\u0323")


LONG_DOCUMENT = 1_000_000
"""Documents with at least this many characters are in the class `long`."""
CLASSES = ("long", "special_literal", "ascii", "unnormalized", "east_asian", "other_script")
"""The classes, in the order in which they are tested: what matters in any script (length, special tokens) comes before
the scripts, and ASCII, the cheapest test for most texts, before the rest."""


def document_class(text: str, literals: LiteralFinder) -> str:
    """The class of a document: the first of `CLASSES` that fits."""
    if len(text) >= LONG_DOCUMENT:
        return "long"
    if literals.found_in(text):
        return "special_literal"
    if text.isascii():
        return "ascii"
    if not unicodedata.is_normalized("NFC", text):
        return "unnormalized"
    if any("\u2e80" <= c <= "\ud7ff" or c >= "\U00020000" for c in text[:2000]):  # from CJK radicals to Hangul
        return "east_asian"
    return "other_script"


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What was compared, and the result. `refused` lists the classes that go to the reference; `reason` says why.

    `reference_tables` are the Unicode tables of the reference that decide ids of this tokenizer.
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
        """Whether every document goes to the reference."""
        return refuses_all(self.refused)

    def void_because(
        self, bundle: TokenizerBundle, special_tokens: str, engine: Engine, reference: Engine
    ) -> str | None:
        """Why the certificate does not hold for this use; None when it does.

        It holds for the tokenizer of `bundle`, the mode `special_tokens` (`text` or `match`) and the names and versions
        of `engine` and `reference` with which it was made, and the Unicode version of this Python.
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
        changed = [f"{what} changed from {old} to {new}" for what, (old, new) in pairs.items() if old != new]
        return "; ".join(changed) or None

    def to_json(self) -> dict[str, Any]:
        """Plain builtins."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Certificate":
        """The inverse of `to_json`."""
        return cls(**value | {"refused": tuple(value["refused"])})


def refuses_all(refused: Iterable[str]) -> bool:
    """Return whether an engine with these refused classes encodes no document."""
    return {*refused} >= {*CLASSES}


def decisive(certificate: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a certificate's JSON enters the key of ids that were made under it.

    `refused`: an engine may have encoded a class wrongly that was refused since. `reference`: the Unicode tables of
    the reference that the tokenizer uses.
    """
    return {"refused": sorted(certificate["refused"]), library.SETTING: dict(certificate["reference_tables"])}


def disagreements(engine: Engine, reference: Engine, texts: Sequence[str]) -> list[int]:
    """Indices of the `texts` to which `engine` gives other ids than `reference`.

    If the engine raises for all of them together, it is tried document by document, and differs where it raises.
    """
    expected_ids, bounds = reference.encode(texts)
    try:
        actual_ids, offsets = engine.encode(texts)
    except Exception:  # any exception of an engine for a document counts as a disagreement
        if len(texts) == 1:
            return [0]
        return [i for i, text in enumerate(texts) if disagreements(engine, reference, [text])]
    if np.array_equal(offsets, bounds) and np.array_equal(actual_ids, expected_ids):
        return []
    if len(offsets) != len(bounds):
        return list(range(len(texts)))  # another number of documents: which ids are whose is not known
    return [
        i
        for i in range(len(texts))
        if not np.array_equal(actual_ids[offsets[i] : offsets[i + 1]], expected_ids[bounds[i] : bounds[i + 1]])
    ]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Number of documents compared, and of those on which an engine and the reference differ, by class."""

    compared: Counter[str]
    differing: Counter[str]


def compare(
    bundle: TokenizerBundle, engine: Engine, reference: Engine, documents: Iterable[str] | None = None
) -> Comparison:
    """Compare `engine` with `reference` on `documents`; without them on the adversarial set of `bundle`'s tokenizer."""
    literals = bundle.special_literals
    if documents is None:
        documents = adversarial_documents([t.content for t in bundle.special_tokens])
    compared_counts: Counter[str] = Counter()
    differing_counts: Counter[str] = Counter()
    for batch in batches(documents):
        wrong = set(disagreements(engine, reference, batch))
        for index, text in enumerate(batch):
            kind = document_class(text, literals)
            compared_counts[kind] += 1
            differing_counts[kind] += index in wrong
    return Comparison(compared=compared_counts, differing=differing_counts)


def adversarial_comparison(
    bundle: TokenizerBundle, mode: SpecialTokens, engine: Engine, reference: Engine
) -> Comparison:
    """`compare` on the adversarial set of a tokenizer, or its cached result for the same engines.

    The set is the same for every dataset, and the comparison takes as long as everything else for a small corpus.

    Args:
        bundle: The tokenizer.
        mode: How both engines read literal special tokens.
        engine: The engine to certify.
        reference: The engine to compare it with.
    """
    engines = [engine.name, engine.version, reference.name, reference.version]
    # Python's Unicode is in it because it decides the class of a document, which may be normalized or not
    key = digest_value([SET, bundle.digest, mode, *engines, unicodedata.unidata_version, platform.machine()])
    comparison = _recall(key)
    if comparison is None:
        comparison = compare(bundle, engine, reference)
        remember("adversarial", key, {"compared": comparison.compared, "differing": comparison.differing})
    return comparison


def _recall(key: str) -> Comparison | None:
    """The comparison under a key; None if there is none."""
    value = recall("adversarial", key, dict[str, dict[str, NonNegativeInt]])
    if value is None or value.keys() != {"compared", "differing"}:
        return None
    comparison = Comparison(compared=Counter(value["compared"]), differing=Counter(value["differing"]))
    # another version of this package may have other classes
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
    """Compare `engine` with the reference on the corpus and the adversarial set; returns the certificate it earns.

    `bundle` is the tokenizer, `special_tokens` how literal special tokens are read, `corpus_sample` documents of the
    corpus. `reference` is made from the bundle unless given; `adversarial` is the comparison on that set, if there
    already is one for exactly this engine.
    """
    judge = reference or ReferenceEngine(bundle, special_tokens)
    comparisons = {
        "adversarial": adversarial or compare(bundle, engine, judge),
        "corpus": compare(bundle, engine, judge, corpus_sample),
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
        reference_version=judge.version,
        unicode_version=unicodedata.unidata_version,
        compared=dict(sorted(compared_counts.items())),
        refused=refused_classes,
        reason=reason,
        reference_tables=bundle.reference_tables,
    )


def refused_outright(bundle: TokenizerBundle, special_tokens: str, engine: str, reason: str) -> Certificate:
    """The certificate of an engine that was not compared: every document goes to the reference.

    `bundle` and `special_tokens` are those it would have encoded with, `engine` is its name, and `reason` says why it
    is refused: it cannot load the tokenizer, or the declaration excludes it.
    """
    version = library.version()
    return Certificate(
        tokenizer_digest=bundle.digest,
        special_tokens=special_tokens,
        engine=engine,
        engine_version=installed(engine) or "not installed",
        reference_version=version,
        unicode_version=unicodedata.unidata_version,
        compared={},
        refused=CLASSES,
        reason=reason,
        reference_tables=bundle.reference_tables,
    )


def batches(documents: Iterable[str], characters: int = 2_000_000) -> Iterable[list[str]]:
    """Documents in batches of so many characters or a few more: 2 million are enough for an engine to use its threads,
    and a few MB of text and ids at a time."""
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
    """Encodes with the certified engine, sends refused classes to the reference, and can re-check documents.

    `bundle` and `special_tokens` are those of the `certificate`; `load_fast` makes the fast engine.
    Raises CertificateError if the certificate does not hold for them. Not thread-safe. The reference is loaded when the
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
            why := certificate.void_because(bundle, special_tokens, self._fast, self.reference_identity)
        ):
            raise CertificateError(f"the engine certificate is invalid: {why}. Materialize `engine_certificate` again")
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

    def encode(self, texts: list[str]) -> Encoded:
        """Ids of a block of documents; see `Engine.encode`."""
        if self._fast is None:
            self.reference_documents += len(texts)
            return self.reference.encode(texts)
        if not self.certificate.refused:
            return self._fast.encode(texts)
        literals = self.bundle.special_literals
        slow = [document_class(t, literals) in self.certificate.refused for t in texts]
        self.reference_documents += sum(slow)
        by_engine = {
            is_slow: iter(_split_ids(engine.encode(batch)))
            for is_slow in set(slow)
            for engine in [self.reference if is_slow else self._fast]
            for batch in [[text for text, s in zip(texts, slow, strict=True) if s == is_slow]]
        }
        rows = [next(by_engine[is_slow]) for is_slow in slow]
        offsets = np.zeros(len(rows) + 1, np.uint64)
        np.cumsum([len(r) for r in rows], out=offsets[1:])
        return (np.concatenate(rows) if rows else np.zeros(0, np.uint32)), offsets

    def warm_up(self, texts: list[str]) -> None:
        """Show the fast engine texts like those to come, so that its cache knows their words; nothing is counted."""
        if self._fast is not None and not self.certificate.refused:
            self._fast.encode(texts)

    def recheck(self, text: str, ids: Any, where: str) -> None:
        """Encode one document again with the reference; raises CertificateError, without its text, if the ids differ.

        `text` is the document, `ids` what `encode` gave for it, `where` names it in the error (file and row).
        """
        if self._fast is None:
            return
        self.sampled_documents += 1
        limit = 100_000  # characters; of a longer text only a prefix is compared, to limit the reference's time
        if len(text) > limit:
            text = text[:limit]
            before = self.reference_documents
            ids = self.encode([text])[0]
            self.reference_documents = before  # which counts the documents of the stream
        if not np.array_equal(self.reference.encode([text])[0], ids):
            kind = document_class(text, self.bundle.special_literals)
            raise CertificateError(
                f"{where}: {self.certificate.engine} {self.certificate.engine_version} differs from the "
                f"reference on this document (class {kind}). Declare `tokenizer.refuse: [{kind}]` and materialize "
                "`engine_certificate` again, or set `tokenizer.engine: tokenizers`"
            )


class _ReferenceIdentity:
    name = ReferenceEngine.name

    def __init__(self) -> None:
        self.version = library.version()

    def encode(self, texts: Sequence[str]) -> Encoded:
        raise TokenizerError("this is the reference's identity, not the reference")


def _split_ids(encoded: Encoded) -> list[Any]:
    ids, offsets = encoded
    return [ids[offsets[i] : offsets[i + 1]] for i in range(len(offsets) - 1)]
