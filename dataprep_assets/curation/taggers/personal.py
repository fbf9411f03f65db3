"""Numbers of likely personal data: e-mail addresses, phone numbers, IBANs, payment cards, IP addresses.

Only IBANs and cards with valid check digits (ISO 7064 MOD 97-10, Luhn) and only public IP addresses count, so that few
other numbers match. Words before a number distinguish phone numbers and addresses from other numbers, such as versions.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from types import MappingProxyType
from typing import TYPE_CHECKING

from dataprep_assets.curation.planted.personal import yield_cases
from dataprep_assets.curation.text_tagger import TextTagger

if TYPE_CHECKING:
    from dataprep_assets.curation.text_arrays.split_texts import SplitTexts

# Patterns are bounded character classes, and the rest is arithmetic, because the time must be proportional to the
# length of any text.
# All characters except signs may be part of an address, because letters of every script may be (RFC 6531).
_SIGNS = r"{-\xbf\u2000-\u2bff\u3000-\u3004\uff00-\uffef"
# Scripts that write no spaces between words are only part of an address if they are next to its `@`.
_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uac00-\ud7af"
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_LETTERS = {is_unspaced: _SIGNS + ("" if is_unspaced else _UNSPACED) for is_unspaced in (True, False)}
_LOCAL = {
    key: re.compile(
        rf"[^\x00-/:-@\[-`{signs}](?:[^\x00-$&-*,/:-@\[-\^`{signs}]{{0,62}}[^\x00-$&-*,./:-@\[-\^`{signs}])?\Z"
    )
    for key, signs in _LETTERS.items()
}
_DOMAIN = {
    key: re.compile(rf"[^\x00-/:-@\[-`{signs}][^\x00-,/:-@\[-`{signs}]{{0,252}}") for key, signs in _LETTERS.items()
}
_LABEL = re.compile(rf"[^\x00-/:-@\[-`{_SIGNS}](?:[^\x00-,./:-@\[-`{_SIGNS}]{{0,61}}[^\x00-/:-@\[-`{_SIGNS}])?\Z")
_TOP = re.compile(rf"(?:[^\x00-@\[-`{_SIGNS}]{{2,24}}|xn--[a-z0-9-]{{2,58}})\Z")
_FILE_ENDING = re.compile(
    r"(?i:css|gif|git|html|ico|jpe?g|js|json|lst|mount|png|po|release|service|slice|socket|svg|target|timer|ts|txt|webp|"
    r"xml|ya?ml)\Z"
)
"""Ends of names of files and system units, which also contain an `@`."""

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
    # Reject a number in groups that is next to a further group of digits, because it is then part of a longer
    # number. Only the expiry date of the card, which has a slash, may follow.
    r"\d(?<![\dA-Za-z_./-]\d)(?<![\dA-F]{4} \d)"
    r"(?:\d{12,18}|\d{3}([ -])\d{4}\1\d{4}\1\d{4}(?:\1\d{3})?(?!\1\d(?!\d?/\d))"
    r"|(?<=3)\d{3}([ -])\d{6}\2\d{4,5}(?!\2\d(?!\d?/\d)))(?![.]\d|[\dA-Za-z_])"
)
_BEFORE_VALUE = re.compile(r"(?:[A-Za-z_]\(|\d, ?)\Z")
_NEXT_VALUE = re.compile(r", ?-?\d")
"""Text before and after a number in code: an argument of a function, or a value in a list."""
_V4 = re.compile(r"\d(?<![\w.]\d)\d{0,2}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\w]|\.\d)")
_V6 = re.compile(r"[0-9A-Fa-f](?:(?<![\w:.].)|(?<=IPv6:.))[0-9A-Fa-f]{0,3}:[0-9A-Fa-f:]{3,35}[0-9A-Fa-f](?![\w:])")
_V6_PART = re.compile(r":[0-9A-Fa-f:]{3}")
"""Part of every match of `_V6`. Few texts contain it."""

_HOST_WORD = re.compile(
    r"(?i:\b(?:(?<!\.)ip(?:v4)?|cidr|addr(?:ess)?(?:es)?|hosts?|hostname|servers?|dns|nameservers?|clients?|peers?|proxy|gateway|"
    r"subnet|network|routers?|range|ping|traceroute|whois|from|src|dst|remote|endpoint|login|connect(?:ed|ion)?)\b|_ip\b)"
    r"[^\n]{0,24}\Z"
)
"""A word before an address."""
_HOST_END = re.compile(r":\d{2,5}(?!\d)|/(?:8|[12]\d|3[0-2])(?!\d)| - - \[")
"""Port, network, or a further part of a log line after an address."""
_MIN_LARGE = 64
"""The first number that is too large for the number of a section."""
_VERSION_WORD = re.compile(
    r"(?i:\b(?:v\d*|versions?|releases?|policy|upgraded?|updated?|standards|sections?|revert|reset|changes|bump|deps)\b)"
    r"[^\n]{0,32}\Z|[<>=~^]=? ?\Z|[A-Za-z]-\Z|\d\.\d+ (?:to|->) \Z"
)
"""A word or sign before a version or the number of a section."""

# List the ranges here instead of using Python's `is_global`, because its result changes between patch versions, but
# counts must not.
_SPECIAL_RANGES = """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.168.0.0/16
    198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
    2001::/23 2001:db8::/32 2002::/16 3fff::/20
"""
"""Networks that are not globally reachable, in IANA's special-purpose registries, and multicast."""
_GLOBAL_RANGES = """
    192.0.0.9/32 192.0.0.10/32 2001:1::1/128 2001:1::2/128 2001:3::/32 2001:4:112::/48 2001:20::/28 2001:30::/28
"""
_SPECIAL_NETWORKS, _GLOBAL_NETWORKS = (
    [ip_network(one) for one in some.split()] for some in (_SPECIAL_RANGES, _GLOBAL_RANGES)
)

_RUN = re.compile(
    r"[+(（\d](?<!\d.)(?=[\d ()（）./+-]{7})"
    r"(?:(?<=[(（])\+?\d+|(?<=\+)[(（]?\d+|(?<=\d)\d*)(?:(?: ?[/-] ?|[ .]|[)）] ?-? ?| ?[(（])\d+)*"
)
"""Groups of digits with separators, which may be a phone number."""
_HYPHENS = "\u2010\u2011\u2012"
"""Hyphen, non-breaking hyphen and figure dash, which also separate groups of digits."""
_DATE = re.compile(r"\d{1,2}([./-])\d{1,2}\1\d{2,4}|\d{4}([./-])\d{1,2}\2\d{1,2}|(?:1[5-9]|20)\d\d-(?:1[5-9]|20)\d\d")
"""A date, or two years."""
_PAGES = re.compile(r"\d{3}-\d{3} ")
"""The beginning of pages before a year, such as `512-550 (2012`."""
_PHONE_WORD = re.compile(
    r"(?i:\b(?:t[eé]l(?:[eé](?:f\w*)?)?|tlf|tfno|(?:t[eé]l[eé])?phones?|fax|mobil\w*|cell(?:phone|ular)|handy|gsm|whatsapp|puhelin\w*|"
    r"soita\w*|numeroon|anruf\w*|rufen|appel\w*|joindre|chiam\w*|ll[aá]m\w*|lig(?:ue|ar)|dzwoni\w*|ring|bel|звон\w*|"
    r"тел\w*)\b|电话|電話|手机|致电|फ़ोन|फोन|전화)\.?(?:(?!\. )[^\d\n]){0,24}\Z"
)
"""A word before a phone number, in several languages."""
_COUNTRY = re.compile(
    r"1|7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]|2(?:1[12368]|[2-6]\d|9[0-17-9])|3[578]\d|42[013]|"
    r"5[09]\d|6(?:[78]\d|9[0-2])|8[05-8]\d|9[679]\d"
)
"""A country code of E.164."""
_SHAPES = frozenset({(1, 3, 3, 2, 2), (1, 3, 2, 2, 2), (1, 3, 2, 3, 2), (1, 3, 3, 4)})
"""Numbers of digits in the groups of a national number after a separate 0 or 8."""


Span = tuple[int, int]
"""Start and end of personal data in a text."""
Starts = Mapping[str, Sequence[int]]
"""Pattern → the positions at which it may match, in increasing order; a missing pattern may match anywhere."""
ANYWHERE: Starts = MappingProxyType({})


def _find_matches(pattern: re.Pattern[str], text: str, starts: Sequence[int] | None) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern that do not overlap, only at some positions if these are given."""
    if starts is None:
        yield from pattern.finditer(text)
        return
    end = 0
    for start in starts:
        if start >= end and (match := pattern.match(text, start)) is not None:
            end = match.end()
            yield match


def find_emails(text: str, _: Starts = ANYWHERE) -> Iterator[Span]:
    """Yield e-mail addresses."""
    position = text.find("@")
    while position >= 0:
        # Look at the domain first, because most signs `@` that are not part of an address have no domain after them.
        domain = _DOMAIN[_UNSPACED_CHARACTER.match(text, position + 1) is not None].match(text, position + 1)
        # Remove periods and hyphens at the end, because they belong to the sentence, not to the address.
        name = "" if domain is None else domain[0].rstrip(".-")
        *labels, top = name.split(".")
        is_host = labels and not _FILE_ENDING.match(top) and _TOP.match(top) and all(map(_LABEL.match, labels))
        local = _match_local_part(text, position) if is_host else ""
        # Leave out the user `git` before a path, which is an address of a repository.
        is_path = local == "git" and text.startswith(":", position + 1 + len(name))
        end = position + 1 + len(name)
        is_product = _is_product(local, labels, top, text[end : end + 1])
        if local and ".." not in local and not is_path and not is_product:
            yield position - len(local), end
        position = text.find("@", position + 1)


def _match_local_part(text: str, position: int) -> str:
    """Return the local part of an address before an `@`; empty if there is none."""
    is_unspaced = _UNSPACED_CHARACTER.match(text, max(position - 1, 0)) is not None
    # Search only 64 characters, because the local part of an address is not longer. This also limits the work per `@`.
    match = _LOCAL[is_unspaced].search(text[max(0, position - 64) : position])
    return "" if match is None else match[0]


def _is_product(local: str, labels: Sequence[str], top: str, next_character: str) -> bool:
    """Return whether a name is more likely a product of matrices in code than an address, such as `W@x.view(2)`."""
    # Exclude country codes and the oldest top-level domains, such as `com`, because short real addresses end with them.
    is_attribute = len(top) > 3 and top.isascii() and top.isalpha()
    max_length = 3 if next_character == "(" else 1
    return is_attribute and len(labels) == 1 and max(len(local), len(labels[0])) <= max_length


def find_ibans(text: str, starts: Starts = ANYWHERE) -> Iterator[Span]:
    """Yield bank account numbers with valid check digits, in one piece or in groups of four."""
    for match in _find_matches(_IBAN, text, starts.get("iban")):
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


def find_cards(text: str, starts: Starts = ANYWHERE) -> Iterator[Span]:
    """Yield payment card numbers with a valid issuer, length and check digit."""
    for match in _find_matches(_CARD, text, starts.get("card")):
        digits = re.sub(r"[ -]", "", match[0])
        # Leave out numbers in code, such as the seeds of random numbers.
        if _BEFORE_VALUE.search(text, max(match.start() - 3, 0), match.start()) or _NEXT_VALUE.match(text, match.end()):
            continue
        if _is_issued(digits) and _is_luhn_valid(digits):
            yield match.span()


def _is_issued(digits: str) -> bool:
    length, four = len(digits), int(digits[:4])
    if digits[0] == "4":
        # Leave out Visa's rare numbers of 19 digits, because integers of 64 bits also have 19.
        return length in (13, 16)
    if digits[:2] in ("34", "37"):
        return length == 15
    if digits[:2] in ("36", "38", "39") or 3000 <= four <= 3059:
        return length == 14
    is_master = 5100 <= four <= 5599 or 2221 <= four <= 2720
    # Mir and UnionPay have up to 19 digits.
    if 2200 <= four <= 2204 or digits[:2] == "62":
        return length >= 16
    is_other = four == 6011 or 6440 <= four <= 6599 or 3528 <= four <= 3589
    return length == 16 and (is_master or is_other)


def _is_luhn_valid(digits: str) -> bool:
    doubled_digits = (int(digit) * (1 + index % 2) for index, digit in enumerate(reversed(digits)))
    return sum(digit - 9 * (digit > 9) for digit in doubled_digits) % 10 == 0 and len(set(digits)) > 1


def find_addresses(text: str, starts: Starts = ANYWHERE) -> Iterator[Span]:
    """Yield public IP addresses of both versions; private, local and documentation addresses are excluded."""
    patterns = {"version_4": _V4, "version_6": _V6} if _V6_PART.search(text) else {"version_4": _V4}
    for name, pattern in patterns.items():
        for match in _find_matches(pattern, text, starts.get(name)):
            try:
                address = ip_address(match[0])
            except ValueError:
                continue
            if _is_global(address) and not (pattern is _V4 and _is_version(text, match)):
                yield match.span()


def _is_version(text: str, match: re.Match[str]) -> bool:
    """Return whether four numbers are more likely a version or the number of a section than an address."""
    before, after = text[max(0, match.start() - 40) : match.start()], text[match.end() : match.end() + 6]
    line = before[before.rfind("\n") + 1 :]
    numbers = [*map(int, match[0].split("."))]
    # Standards write the numbers of their sections in brackets.
    has_small_numbers = max(numbers) < _MIN_LARGE
    is_network = after[:1] != "/" or not has_small_numbers or numbers[-1] == 0
    if (is_network and _HOST_END.match(after)) or line.endswith(("//", "@") if has_small_numbers else ("[", "//", "@")):
        return False
    if _VERSION_WORD.search(line):
        return not line.endswith("_ip=")
    # Versions begin with a small number, and sections have only small ones, but few addresses do.
    return (numbers[0] < 24 or has_small_numbers) and _HOST_WORD.search(line) is None


def _is_global(address: IPv4Address | IPv6Address) -> bool:
    # Only 2000::/3 is assigned.
    if address.version == 6 and int(address) >> 125 != 1:
        return False
    return not any(address in network for network in _SPECIAL_NETWORKS) or any(
        address in network for network in _GLOBAL_NETWORKS
    )


def find_phones(text: str, starts: Starts = ANYWHERE) -> Iterator[Span]:
    """Yield phone numbers: with a country code, in groups of a national form, or after a word such as `phone`.

    Digits in one piece only count as a phone number after `+` or such a word, because most of them are something else.
    """
    for hyphen in _HYPHENS:
        text = text.replace(hyphen, "-")
    for match in _find_matches(_RUN, text, starts.get("phone")):
        start, run = match.start(), match[0]
        for offset, part in _list_parts(run):
            if _is_phone(text, start + offset, part):
                yield _trim_phone(text, start + offset, part)
                if len(part) == len(run):
                    break


def _list_parts(run: str) -> Iterator[tuple[int, str]]:
    """Yield the groups of digits that may be one number, with their offsets: all, or those between separators."""
    yield 0, run
    if " /" not in run and " (" not in run:
        return
    # A slash separates numbers (E.123), and the area code in some countries. A remark in brackets may follow a number.
    offset = 0
    pieces = run.split(" / ")
    for piece in pieces:
        if len(pieces) > 1:
            yield offset, piece
        if (end := piece.rfind(" (")) > 5:
            yield offset, piece[:end]
        offset += len(piece) + 3


def _is_phone(text: str, start: int, phone: str) -> bool:
    is_international = "+" in phone[:2]
    if not is_international and _BEFORE.search(text, max(start - 2, 0), start):
        return False
    groups = _GROUP.findall(phone)
    digits = "".join(groups)
    # Reject binary numbers.
    if set(digits) <= {"0", "1"}:
        return False
    # Periods separate all groups or none, as in the numbers of versions and sections.
    if "." in phone and any(separator in phone for separator in " -/("):
        return False
    if is_international:
        # An international number has at most 15 digits (E.164), and 11 in North America. In one piece, fewer than 9
        # digits are rarely a phone number. Other numbers with a sign have a decimal point or comma.
        is_complete = len(digits) == 11 if digits[0] == "1" else (8 if len(groups) > 1 else 9) <= len(digits) <= 15
        is_decimal = _AFTER_PLUS.match(text, start + len(phone)) or ("." in phone and not _COUNTRY.fullmatch(groups[0]))
        is_part = _BEFORE_PLUS.match(text, max(start - 1, 0), start)
        return is_complete and _COUNTRY.match(digits) is not None and not is_decimal and not is_part
    if not 7 <= len(digits) <= 17 or _AFTER.match(text, start + len(phone)):
        return False
    if len(groups) > 1 and any(map(_DATE.fullmatch, phone.split(" "))):
        return False
    if _has_national_form(phone, digits, groups):
        return True
    if len(digits) > 15 or len(groups) > 6:
        return False
    window_start = max(0, start - 40)
    line_start = max(window_start, text.rfind("\n", window_start, start) + 1)
    # Look for any letter first, because looking for a word takes longer.
    has_letter = start - line_start > 2 and _LETTER.search(text, line_start, start) is not None
    return has_letter and _PHONE_WORD.search(text, line_start, start) is not None


def _has_national_form(phone: str, digits: str, groups: list[str]) -> bool:
    if len(groups) < 2:
        return False
    lengths = tuple(map(len, groups))
    if groups[0].startswith("00"):
        # Reject lists of numbers with leading zeros.
        is_list = any(group.startswith("00") for group in groups[1:]) or all(group[0] == "0" for group in groups)
        return len(groups) > 2 and len(digits) >= 10 and not is_list and _COUNTRY.match(digits, 2) is not None
    if groups[0] == "011":
        return len(groups) > 2 and len(digits) > 10 and _COUNTRY.match(groups[1]) is not None
    if digits[0] == "0":
        if groups[0] == "0":
            return lengths in _SHAPES and "." not in phone
        # Reject ISBNs, postal codes such as the Free Software Foundation's, and numbers that count up.
        is_postal_code = lengths == (5, 4) and "-" in phone
        is_isbn = len(digits) == 10 and "-" in phone and _is_isbn(digits)
        numbers = [int(group) for group in groups]
        is_series = len(groups) > 2 and numbers == [*range(numbers[0], numbers[0] + len(groups))]
        is_table_row = (lengths == (3, 3, 3) and phone.count(" ") == 2) or 1 in lengths[2:]
        # Reject identifiers, because no area code is longer, and because a 0 begins only the area code.
        is_identifier = len(groups[0]) > 6 or all(group[0] == "0" for group in groups)
        is_identifier |= "." in phone and (len(groups) == 2 or any(group.startswith("000") for group in groups))
        # Reject the number of an article before its year.
        is_article = lengths == (6, 4) and groups[1][:2] in ("19", "20")
        is_other = is_postal_code or is_isbn or is_series or is_table_row or is_identifier or is_article
        return 9 <= len(digits) <= 12 and 2 <= len(groups) <= 5 and not is_other
    is_bracketed, has_hyphen = phone[0] in "(（", "-" in phone
    if lengths[-3:] == (3, 3, 4) and lengths[:-3] in ((), (1,)) and "/" not in phone:
        *trunk, area, exchange, _ = groups
        # Reject rows of tables, and pages before a year.
        if not trunk and (phone.count(" ") == 2 or _PAGES.match(phone)):
            return False
        return trunk in ([], ["1"]) and area[0] in "23456789" and (exchange[0] in "23456789" or bool(trunk))
    if lengths in ((2, 4, 4), (2, 5, 4)):  # Brazil
        return has_hyphen and (is_bracketed or groups[1].startswith("9"))
    if lengths == (2, 3, 2, 2):  # Poland
        return has_hyphen or is_bracketed
    if lengths == (3, 4, 4):  # China
        return digits[0] == "1" and digits[1] in "3456789"
    return groups[0] == "8" and lengths in _SHAPES and groups[1][0] in "34589"  # Russia


_GROUP = re.compile(r"\d+")
_LETTER = re.compile(r"[^\W\d_]")
_BEFORE_PLUS = re.compile(r"[0-9A-Za-z_+~]")
_AFTER_PLUS = re.compile(r"[.,]\d|(?!x\d{1,6}\b)[A-Za-z_]")
_BEFORE = re.compile(r"(?:[0-9A-Za-z_.,/+#$%€£*~-]|\d:)\Z")
"""Characters before a number that is no phone number."""
_AFTER = re.compile(r"(?!x\d{1,6}\b)[A-Za-z_%]|[.,:/-]\d|-[A-Za-z]")
"""Text after a number that is no phone number. An extension such as `x123` may follow."""


def _trim_phone(text: str, start: int, phone: str) -> Span:
    """Return the span of a number with its brackets, and without a bracket that only opens before it."""
    stop = start + len(phone)
    if phone[0] in "(（" and ")" not in phone and "）" not in phone:
        # The number may be in brackets as a whole, which are not part of it.
        start += 1
    return start, stop


def _is_isbn(digits: str) -> bool:
    return sum((10 - index) * int(digit) for index, digit in enumerate(digits)) % 11 == 0


KINDS: Mapping[str, Callable[..., Iterator[Span]]] = {
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


def measure_texts(split: "SplitTexts") -> list[list[int]]:
    """Return the columns of some texts, in column order."""
    import numpy as np

    from dataprep_assets.curation.text_arrays.personal_starts import find_starts

    # Search all texts at once. End each text with the end of a line, because neither personal data nor the words that
    # identify it extend over one.
    text, starts = split.get_text(0, len(split.codes)).replace("\r", "\n"), find_starts(split)
    columns = (np.array([start for start, _ in find(text, starts)], np.int64) for find in KINDS.values())
    return [split.count_positions(positions).tolist() for positions in columns]


TAGGER = TextTagger.with_measures(
    columns=dict.fromkeys(KINDS, "integer"),
    measure=measure_texts,
    version=lambda: "6",
    planted=yield_cases,
    descriptions=_DESCRIPTIONS,
)
