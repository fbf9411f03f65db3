"""Numbers of likely personal data: e-mail addresses, phone numbers, IBANs, payment cards, IP addresses.

Only IBANs and cards with valid check digits (ISO 7064 MOD 97-10, Luhn) and only public IP addresses count, so that few
other numbers match.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from dataprep_assets.curation.planted.personal import yield_cases
from dataprep_assets.curation.text_tagger import TextTagger

# Patterns are bounded character classes, and the rest is arithmetic, because the time must be proportional to the
# length of any text.
_LOCAL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._%+-]{0,62}[A-Za-z0-9_%+-])?\Z")
_DOMAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\Z")
_TOP = re.compile(r"[A-Za-z]{2,24}\Z")

# Each pattern begins with a character or a class, and then tests the character before it, because Python finds a first
# character much faster than a position that does not follow certain characters.
_IBAN = re.compile(r"[A-Z](?<![A-Za-z0-9][A-Z])[A-Z]\d{2}(?=[ A-Z0-9])")
_IBAN_LENGTHS = {
    length: frozenset(countries.split())
    for length, countries in (
        (15, "NO"),
        (16, "BE"),
        (18, "DK FO FI GL NL SD"),
        (19, "MK SI"),
        (20, "AT BA EE KZ LT LU XK MN"),
        (21, "CH HR LI LV"),
        (22, "BG BH CR DE GB GE IE ME RS VA"),
        (23, "AE GI IL IQ OM TL SO"),
        (24, "AD CZ ES MD PK RO SA SE SK TN VG"),
        (25, "LY PT ST"),
        (26, "IS TR"),
        (27, "BI DJ FR GR IT MC MR SM"),
        (28, "AL AZ BY CY DO GT HU LB NI PL SV"),
        (29, "BR EG PS QA UA"),
        (30, "JO KW MU YE"),
        (31, "MT SC"),
        (32, "LC"),
        (33, "RU"),
    )
}
_LENGTH = {country: length for length, countries in _IBAN_LENGTHS.items() for country in countries}

_CARD = re.compile(
    # Reject a number in groups that is followed by a further group of digits, because it is then part of a longer
    # number. Only the expiry date of the card, which has a slash, may follow.
    r"\d(?<![\d.]\d)(?:\d{12,18}|\d{3}([ -])\d{4}\1\d{4}\1\d{4}(?:\1\d{3})?(?!\1\d(?!\d?/\d))"
    r"|(?<=3)\d{3}([ -])\d{6}\2\d{4,5}(?!\2\d(?!\d?/\d)))(?![\d.]\d|\d)"
)
_V4 = re.compile(r"\d(?<![\w.]\d)\d{0,2}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\w]|\.\d)")
_V6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{1,4}:[0-9A-Fa-f:]{3,35}[0-9A-Fa-f](?![\w:])")
_V6_PART = re.compile(r":[0-9A-Fa-f:]{3}")
"""Part of every match of `_V6`. Few texts contain it."""

# List the ranges here instead of using Python's `is_global`, because its result changes between patch versions, but
# counts must not.
_SPECIAL_RANGES = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.168.0.0/16
    198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4
    ::/128 ::1/128 ::ffff:0:0/96 64:ff9b:1::/48 100::/64 2001::/23 2001:db8::/32 2002::/16 3fff::/20 fc00::/7 fe80::/10
"""
"""Networks that are not globally reachable, in IANA's special-purpose registries."""
_GLOBAL_RANGES = """
    192.0.0.9/32 192.0.0.10/32 2001:1::1/128 2001:1::2/128 2001:3::/32 2001:4:112::/48 2001:20::/28 2001:30::/28
"""
_SPECIAL_NETWORKS, _GLOBAL_NETWORKS = (
    [ip_network(one) for one in some.split()] for some in (_SPECIAL_RANGES, _GLOBAL_RANGES)
)

_INTERNATIONAL = re.compile(r"\+(?<![\w+]\+)[1-9][\d ()./-]{6,24}")
_NATIONAL = re.compile(r"[(0](?<![\w.,/+:-].)(?<!\d .)(?:(?<=0)|(?<=\()0)[1-9][\d ()./-]{6,20}")
_AMERICAN = re.compile(r"[(2-9](?<![\w.-].)(?:(?<=\()[2-9]\d\d\) ?|(?<!\()\d\d[-. ])[2-9]\d\d[-. ]\d{4}(?![\w-]|\.\d)")
_SEPARATED = re.compile(r"[ ()./-]+")
_DATE = re.compile(r"\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{4}[./-]\d{1,2}[./-]\d{1,2}")


Span = tuple[int, int]
"""Start and end of personal data in a text."""


def find_emails(text: str) -> Iterator[Span]:
    """Yield e-mail addresses."""
    position = text.find("@")
    while position >= 0:
        # Search only 64 characters, because the local part of an address is not longer. This also limits the work per
        # `@`.
        local, domain = _LOCAL.search(text[max(0, position - 64) : position]), _DOMAIN.match(text, position + 1)
        if local is not None and domain is not None and ".." not in local[0]:
            # Remove periods and hyphens at the end, because they belong to the sentence, not to the address.
            name = domain[0].rstrip(".-")
            *labels, top = name.split(".")
            if labels and _TOP.match(top) and all(map(_LABEL.match, labels)):
                yield position - len(local[0]), position + 1 + len(name)
        position = text.find("@", position + 1)


def find_ibans(text: str) -> Iterator[Span]:
    """Yield bank account numbers with valid check digits, in one piece or in groups of four."""
    for match in _IBAN.finditer(text):
        if (length := _LENGTH.get(match[0][:2])) is None:
            continue
        characters: list[str] = []
        position = match.start()
        while len(characters) < length and position < len(text):
            # Skip a single space after each group of four, because account numbers are often written in this way.
            if text[position] == " " and len(characters) % 4 == 0 and characters and text[position - 1] != " ":
                position += 1
            # Accept only ASCII, because digits and capitals of other scripts are not part of an account number.
            elif text[position].isascii() and (text[position].isdigit() or text[position].isupper()):
                characters.append(text[position])
                position += 1
            else:
                break
        if len(characters) == length and not text[position : position + 1].isalnum():
            number = "".join(characters)
            if int("".join(str(int(character, 36)) for character in number[4:] + number[:4])) % 97 == 1:
                yield match.start(), position


def find_cards(text: str) -> Iterator[Span]:
    """Yield payment card numbers with a valid issuer, length and check digit."""
    for match in _CARD.finditer(text):
        digits = re.sub(r"[ -]", "", match[0])
        if _is_issued(digits) and _is_luhn_valid(digits):
            yield match.span()


def _is_issued(digits: str) -> bool:
    length, four = len(digits), int(digits[:4])
    if digits[0] == "4":
        return length in (13, 16, 19)
    if digits[:2] in ("34", "37"):
        return length == 15
    if digits[:2] in ("36", "38", "39") or 3000 <= four <= 3059:
        return length == 14
    is_master = 5100 <= four <= 5599 or 2221 <= four <= 2720
    is_other = four == 6011 or 6440 <= four <= 6599 or 3528 <= four <= 3589
    return length == 16 and (is_master or is_other)


def _is_luhn_valid(digits: str) -> bool:
    doubled_digits = (int(digit) * (1 + index % 2) for index, digit in enumerate(reversed(digits)))
    return sum(digit - 9 * (digit > 9) for digit in doubled_digits) % 10 == 0 and len(set(digits)) > 1


def find_addresses(text: str) -> Iterator[Span]:
    """Yield public IP addresses of both versions; private, local and documentation addresses are excluded."""
    for pattern in (_V4, _V6) if _V6_PART.search(text) else (_V4,):
        for match in pattern.finditer(text):
            try:
                address = ip_address(match[0])
            except ValueError:
                continue
            if _is_global(address):
                yield match.span()


def _is_global(address: IPv4Address | IPv6Address) -> bool:
    return not any(address in network for network in _SPECIAL_NETWORKS) or any(
        address in network for network in _GLOBAL_NETWORKS
    )


def find_phones(text: str) -> Iterator[Span]:
    """Yield phone numbers: with a country code after `+`, in groups after a 0, or in North American form.

    Digits in one piece only count as a phone number after `+`, because most of them are something else.
    """
    for match in _INTERNATIONAL.finditer(text):
        digits = _keep_digits(match[0])
        # An international number has at most 15 digits (E.164). Fewer than 8 digits are too few for a phone number.
        if 8 <= len(digits) <= 15:
            yield _trim_phone(match)
    for match in _NATIONAL.finditer(text):
        phone = match[0].strip(" ./-")
        digits, groups = _keep_digits(phone), [group for group in _SEPARATED.split(phone) if group]
        # Reject numbers of an unusual length or form, and dates and ISBNs, which may also begin with 0 and consist of
        # groups of digits.
        if not 9 <= len(digits) <= 12 or not 2 <= len(groups) <= 6 or _DATE.search(phone):
            continue
        if len(digits) == 10 and "-" in phone and _is_isbn(digits):
            continue
        yield _trim_phone(match)
    yield from (match.span() for match in _AMERICAN.finditer(text))


def _trim_phone(match: re.Match[str]) -> Span:
    """Return the span of a number without punctuation after it, and without a bracket that opens before it."""
    number = match[0].rstrip(" ()./-")
    return match.start() + (number.startswith("(") and ")" not in number), match.start() + len(number)


def _keep_digits(text: str) -> str:
    return "".join(character for character in text if character.isdigit())


def _is_isbn(digits: str) -> bool:
    return sum((10 - index) * int(digit) for index, digit in enumerate(digits)) % 11 == 0


KINDS: Mapping[str, Callable[[str], Iterator[Span]]] = {
    "emails": find_emails,
    "phones": find_phones,
    "ibans": find_ibans,
    "cards": find_cards,
    "ip_addresses": find_addresses,
}
"""Kind of personal data, which is also its column → the function that finds it in a normalized text."""
_DESCRIPTIONS = {
    "emails": "Number of e-mail addresses in the text.",
    "phones": "Number of phone numbers in the text.",
    "ibans": "Number of international bank account numbers in the text.",
    "cards": "Number of payment card numbers in the text.",
    "ip_addresses": "Number of IP addresses in the text.",
}


def measure_text(text: str) -> list[int]:
    """Return the values of the columns for one text, in column order."""
    return [sum(1 for _ in find(text)) for find in KINDS.values()]


TAGGER = TextTagger.with_measure(
    columns=dict.fromkeys(KINDS, "integer"),
    measure=measure_text,
    version=lambda: "3",
    planted=yield_cases,
    descriptions=_DESCRIPTIONS,
)
