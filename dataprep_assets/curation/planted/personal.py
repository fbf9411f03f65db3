"""Invented personal data of each kind in national forms, and texts that only look like personal data.

Check digits are computed here instead of with the tagger's code. Phone numbers are from ranges reserved for fiction, if
the country has one.
"""

from collections.abc import Iterator
from random import Random
from string import ascii_lowercase, ascii_uppercase, digits

from dataprep_assets.curation.planted import PlantedCase, Values

CASES_PER_FORM = 6
"""Number of cases per form, and of hard negatives per kind."""
_FORMS = {
    "emails": {
        "British": "{w}.{w}@{w}.example.co.uk",
        "German": "{w}-{w}@{w}.example.de",
        "French": "{w}_{w}{d}@example.fr",
    },
    "phones": {
        "British": "020 7946 0{d}{d}{d}",
        "German": "030 23125 {d}{d}{d}",
        "French": "01 99 00 {d}{d} {d}{d}",
        "American": "(212) 555-01{d}{d}",
        "international": "+49 152 28817{d}{d}{d}",
    },
    "ibans": {"British": "GB NWBK601613{n8}", "German": "DE 37040044{n10}", "French": "FR 2004101005{n11}26"},
    "cards": {"Visa": "4{n14}", "Mastercard": "55{n13}", "American Express": "37{n12}"},
    "ip_addresses": {
        "version 4": "88.8.{d}.1{d}",
        "version 6": "2001:4860:48{d}{d}::{d}{d}88",
        "behind a word": "59.9.{d}.7{d}",
    },
}
_NEGATIVES = {
    "emails": [
        "@{w}",
        "{w}@{w}",
        "{w}@@example.org",
        "{d} @ {d}.50",
        "{w} at example.org",
        "W@x.view",
        "Q@key.mean({d})",
    ],
    "phones": [
        "0{d}.0{d}.201{d}",
        "201{d}-0{d}-1{d} 1{d}:30",
        "0.{n9}",
        "{n10}",
        "pages {d}{d}-1{d}{d}",
        "1 000 000 {d}00",
    ],
    "ibans": ["DE00 3704 0044 0532 0130 {d}{d}", "AB12 3456 7890 12{d}{d}", "GB82 {w}", "PO12 {n8}"],
    "cards": ["{n9}", "1234 5678 1234 567{d}", "4{n11}", "0000 0000 0000 0000"],
    "ip_addresses": [
        "192.168.{d}.{d}",
        "10.0.{d}.{d}",
        "1.2.{d}.{d}.5",
        "version {d}.{d}.{d}",
        "1{d}:3{d}:5{d}",
        "fe80::{d}",
    ],
}


def yield_cases() -> Iterator[PlantedCase]:
    """Yield the cases: personal data of each kind, and texts that only look like it."""
    # A string seed gives the same numbers in every process, because `Random` does not use `hash()` for strings.
    rng = Random("dataprep-assets planted personal data 1")
    for column, forms in _FORMS.items():
        for form, pattern in forms.items():
            for _ in range(CASES_PER_FORM):
                datum = _fill_column(rng, pattern, column)
                yield _build_case(column, form, _build_sentence(datum, rng), datum)
        for number in range(CASES_PER_FORM * 2):
            pattern = _NEGATIVES[column][number % len(_NEGATIVES[column])]
            yield _build_case(column, "", _build_sentence(_fill_pattern(rng, pattern), rng), positive=False)


def _build_case(column: str, form: str, text: str, datum: str = "", *, positive: bool = True) -> PlantedCase:
    def is_found(before: Values, after: Values) -> bool:
        return bool(after[column] > before[column])

    kind = f"{column}, {form}" if form else column
    return PlantedCase(kind=kind, text=text, is_found=is_found, datum=datum, positive=positive)


def _build_sentence(value: str, rng: Random) -> str:
    prefix, suffix = rng.choice([("Reach us: ", "."), ("(", ")"), ("", ""), ("It was ", ", as they said.")])
    return prefix + value + suffix


def _fill_pattern(rng: Random, pattern: str) -> str:
    """Fill a pattern with random digits (`{d}`, or `{n8}` for eight) and words (`{w}`)."""
    text = pattern
    for field, characters, length in (("{w}", ascii_lowercase, 6), ("{d}", digits, 1)):
        while field in text:
            text = text.replace(field, "".join(rng.choice(characters) for _ in range(length)), 1)
    for length in range(8, 15):
        text = text.replace(f"{{n{length}}}", "".join(rng.choice(digits) for _ in range(length)))
    return text


def _fill_column(rng: Random, pattern: str, column: str) -> str:
    text = _fill_pattern(rng, pattern)
    if column == "ibans":
        country, _, account = text.partition(" ")
        return _format_number(_complete_iban(country, account), rng)
    if column == "cards":
        return _format_number(
            next(text + digit for digit in digits if _is_luhn_valid(text + digit)), rng, american=len(text) == 14
        )
    return text


def _complete_iban(country: str, account: str) -> str:
    """Return an account number with the check digits of ISO 7064, MOD 97-10."""
    values = "".join(
        str(9 + ascii_uppercase.index(character) + 1) if character.isalpha() else character
        for character in f"{account}{country}00"
    )
    return f"{country}{98 - int(values) % 97:02d}{account}"


def _is_luhn_valid(number: str) -> bool:
    total = 0
    for index, digit in enumerate(map(int, reversed(number))):
        total += digit if index % 2 == 0 else sum(divmod(2 * digit, 10))
    return total % 10 == 0


def _format_number(number: str, rng: Random, *, american: bool = False) -> str:
    """Return the number either in printed groups or in one piece."""
    if rng.random() < 0.5:
        return number
    if american:
        return f"{number[:4]} {number[4:10]} {number[10:]}"
    return " ".join(number[start : start + 4] for start in range(0, len(number), 4))
