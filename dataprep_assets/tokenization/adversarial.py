"""Documents on which tokenizer engines are known to differ.

Generated, not collected: white-space runs, normalization, combining marks, scripts, emoji sequences, digits,
contractions, literal special tokens, long words without a space, and some characters of each version of Unicode since
10.0, which the tables of two engines may know or not. Deterministic, so a certificate means the same everywhere.
"""

import random
import unicodedata
from collections.abc import Iterator, Sequence

from dataprep_assets.tokenization.unicode_versions import VERSIONS, UnicodeVersion

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
        yield text if number < 60 - _WITH_SEAMS else "".join(text[at:] + text[:at] for at in range(0, 2000, 100))
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
