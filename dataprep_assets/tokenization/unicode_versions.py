"""What each version of Unicode since 10.0 added, and which of these versions a library's tables know.

The reference normalizes and splits text by tables of Unicode that are compiled into it. Another version of it, or
another engine, has tables of another Unicode: then texts with characters that only one of them knows get other ids.
What they differ in are letters, marks and digits: a mark that a table does not know stays where it is instead of being
put in order, and a letter that it does not know is split from its word. Other characters are read alike, assigned or
not, but for patterns with `\\p{S}` or `\\p{P}`; of those the newest are counted, too.

Made from the Unicode Character Database; stable, because no version changes what an earlier one assigned.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class UnicodeVersion:
    """What a version added: code points and ranges of them in hexadecimal, separated by spaces.

    Attributes:
        name: Such as `15.1`.
        letters: Letters, marks and numbers, and whatever has a decomposition. Of versions before 14.0 only what
            normalization changes: every table knows their letters.
        others: All other characters: symbols, punctuation, format characters.
        moved: Of the letters those with a combining class, which normalization puts in order.
        composed: Of the letters those with a canonical decomposition, as `composed=first+second`.
    """

    name: str
    letters: str
    others: str
    moved: str
    composed: str

    @cached_property
    def sample(self) -> tuple[str, ...]:
        """Some of its characters: the first and last of every range of letters and others."""
        found = (chr(end) for given in (self.letters, self.others) for pair in ranges(given) for end in pair)
        return tuple(dict.fromkeys(found))

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """Its characters with a combining class."""
        return tuple(chr(point) for first, last in ranges(self.moved) for point in range(first, last + 1))

    @cached_property
    def compositions(self) -> tuple[tuple[str, str], ...]:
        """`(composed, decomposed)` of its characters with a canonical decomposition."""
        pairs = (entry.split("=") for entry in self.composed.split())
        return tuple((chr(int(a, 16)), "".join(chr(int(c, 16)) for c in b.split("+"))) for a, b in pairs)


def ranges(given: str) -> Iterator[tuple[int, int]]:
    """The first and last code point of each range of a text of them."""
    for part in given.split():
        first, _, last = part.partition("-")
        yield int(first, 16), int(last or first, 16)


VERSIONS = (
    UnicodeVersion(
        name="10.0",
        letters="D3B-D3C 1DF6-1DF9 11A34 11A47 11A99 11D42 11D44-11D45",
        others="",
        moved="D3B-D3C 1DF6-1DF9 11A34 11A47 11A99 11D42 11D44-11D45",
        composed="",
    ),
    UnicodeVersion(
        name="11.0",
        letters="7FD 8D3 9FE 10D24-10D27 10F46-10F50 1133B 1145E 11839-1183A 11D97",
        others="",
        moved="7FD 8D3 9FE 10D24-10D27 10F46-10F50 1133B 1145E 11839-1183A 11D97",
        composed="",
    ),
    UnicodeVersion(
        name="12.0",
        letters="EBA 119E0 1E130-1E136 1E2EC-1E2EF 1F16C",
        others="",
        moved="EBA 119E0 1E130-1E136 1E2EC-1E2EF",
        composed="",
    ),
    UnicodeVersion(name="12.1", letters="32FF", others="", moved="", composed=""),
    UnicodeVersion(
        name="13.0",
        letters="1ABF-1AC0 A82C AB69 10EAB-10EAC 11930 11935 11938 1193D-1193E 11943 16FF0-16FF1 1FBF0-1FBF9",
        others="",
        moved="1ABF-1AC0 A82C 10EAB-10EAC 1193D-1193E 11943 16FF0-16FF1",
        composed="11938=11935+11930",
    ),
    UnicodeVersion(
        name="14.0",
        letters=(
            "870-887 889-88E 898-89F 8B5 8C8-8D2 C3C C5D CDD 170D 1715 171F 180F 1AC1-1ACE 1B4C 1DFA 2C2F 2C5F "
            "9FFD-9FFF A7C0-A7C1 A7D0-A7D1 A7D3 A7D5-A7D9 A7F2-A7F4 10570-1057A 1057C-1058A 1058C-10592 "
            "10594-10595 10597-105A1 105A3-105B1 105B3-105B9 105BB-105BC 10780-10785 10787-107B0 107B2-107BA "
            "10F70-10F85 11070-11075 110C2 11740-11746 11AB0-11ABF 12F90-12FF0 16A70-16ABE 16AC0-16AC9 "
            "1AFF0-1AFF3 1AFF5-1AFFB 1AFFD-1AFFE 1B11F-1B122 1CF00-1CF2D 1CF30-1CF46 1DF00-1DF1E 1E290-1E2AE "
            "1E7E0-1E7E6 1E7E8-1E7EB 1E7ED-1E7EE 1E7F0-1E7FE 2A6DE-2A6DF 2B735-2B738"
        ),
        others=(
            "61D 888 890-891 1B7D-1B7E 20C0 2E53-2E5D FBC2 FD40-FD4F FDCF FDFE-FDFF 10F86-10F89 116B9 12FF1-12FF2 "
            "1CF50-1CFC3 1D1E9-1D1EA 1F6DD-1F6DF 1F7F0 1F979 1F9CC 1FA7B-1FA7C 1FAA9-1FAAC 1FAB7-1FABA "
            "1FAC3-1FAC5 1FAD7-1FAD9 1FAE0-1FAE7 1FAF0-1FAF6"
        ),
        moved=("898-89F 8CA-8D2 C3C 1715 1AC1-1ACE 1DFA 10F82-10F85 11070 1E2AE"),
        composed="",
    ),
    UnicodeVersion(
        name="15.0",
        letters=(
            "CF3 ECE 10EFD-10EFF 1123F-11241 11F00-11F10 11F12-11F3A 11F3E-11F42 11F50-11F59 1342F 13440-13455 "
            "1B132 1B155 1D2C0-1D2D3 1DF25-1DF2A 1E030-1E06D 1E08F 1E4D0-1E4F9 2B739 31350-323AF"
        ),
        others=(
            "11B00-11B09 11F43-11F4F 13439-1343F 1F6DC 1F774-1F776 1F77B-1F77F 1F7D9 1FA75-1FA77 1FA87-1FA88 "
            "1FAAD-1FAAF 1FABB-1FABD 1FABF 1FACE-1FACF 1FADA-1FADB 1FAE8 1FAF7-1FAF8"
        ),
        moved=("10EFD-10EFF 11F41-11F42 1E08F 1E4EC-1E4EF"),
        composed="",
    ),
    UnicodeVersion(
        name="15.1",
        letters=("2EBF0-2EE5D"),
        others=("2FFC-2FFF 31EF"),
        moved="",
        composed="",
    ),
    UnicodeVersion(
        name="16.0",
        letters=(
            "897 1C89-1C8A A7CB-A7CD A7DA-A7DC 105C0-105F3 10D40-10D65 10D69-10D6D 10D6F-10D85 10EC2-10EC4 10EFC "
            "11380-11389 1138B 1138E 11390-113B5 113B7-113C0 113C2 113C5 113C7-113CA 113CC-113D3 113E1-113E2 "
            "116D0-116E3 11BC0-11BE0 11BF0-11BF9 11F5A 13460-143FA 16100-16139 16D40-16D6C 16D70-16D79 18CFF "
            "1CCD6-1CCF9 1E5D0-1E5FA"
        ),
        others=(
            "1B4E-1B4F 1B7F 2427-2429 31E4-31E5 10D6E 10D8E-10D8F 113D4-113D5 113D7-113D8 11BE1 16D6D-16D6F "
            "1CC00-1CCD5 1CD00-1CEB3 1E5FF 1F8B2-1F8BB 1F8C0-1F8C1 1FA89 1FA8F 1FABE 1FAC6 1FADC 1FADF 1FAE9 "
            "1FBCB-1FBEF"
        ),
        moved=("897 10D69-10D6D 113CE-113D0 1612F 1E5EE-1E5EF"),
        composed=(
            "105C9=105D2+0307 105E4=105DA+0307 11383=11382+113C9 11385=11384+113BB 1138E=1138B+113C2 "
            "11391=11390+113C9 113C5=113C2+113C2 113C7=113C2+113B8 113C8=113C2+113C9 16121=1611E+1611E "
            "16122=1611E+16129 16123=1611E+1611F 16124=16129+1611F 16125=1611E+16120 16126=16121+1611F "
            "16127=16122+1611F 16128=16121+16120 16D68=16D67+16D67 16D69=16D63+16D67 16D6A=16D69+16D67"
        ),
    ),
    UnicodeVersion(
        name="17.0",
        letters=(
            "88F C5C CDC 1ACF-1ADD 1AE0-1AEB A7CE-A7CF A7D2 A7D4 A7F1 10940-10959 10EC5-10EC7 10EFA-10EFB "
            "11B60-11B67 11DB0-11DDB 11DE0-11DE9 16EA0-16EB8 16EBB-16ED3 16FF2-16FF6 187F8-187FF 18D09-18D1E "
            "18D80-18DF2 1E6C0-1E6DE 1E6E0-1E6F5 1E6FE-1E6FF 2B73A-2B73F 2CEA2-2CEAD 323B0-33479"
        ),
        others=(
            "20C1 2B96 FBC3-FBD2 FD90-FD91 FDC8-FDCE 10ED0-10ED8 1CCFA-1CCFC 1CEBA-1CED0 1CEE0-1CEF0 1F6D8 "
            "1F777-1F77A 1F8D0-1F8D8 1FA54-1FA57 1FA8A 1FA8E 1FAC8 1FACD 1FAEA 1FAEF 1FBFA"
        ),
        moved=("1ACF-1ADD 1AE0-1AEB 10EFA-10EFB 1E6E3 1E6E6 1E6EE-1E6EF 1E6F5"),
        composed="",
    ),
    UnicodeVersion(
        name="18.0",
        letters=(
            "558 58B-58C 5C8-5C9 B53-B54 1ADE-1ADF 1AEC-1AF0 208F 209D-209F A7DD A7E2 AB6C-AB6D 107BB-107BF "
            "10ECB-10ECF 10ED9-10EEE 10EF0-10EF9 11B0A 11DF0-11DF1 1246F 12475-1247F 12550-12686 18CD6-18CDA "
            "18D1F-18D20 18E00-19191 191A0-191D2 1B123-1B128 1B168 1D127-1D128 1D250-1D252 1D25B-1D25C 1D25F "
            "1D280-1D281 1D6A6 1DF1F-1DF24 1DF2B-1DF81 1DF90-1DF96 1DFCD-1DFFF 2B81E 3D000-3FC3F"
        ),
        others=(
            "20C2-20C4 2E60-2E63 10EC9-10ECA 1CED2-1CED4 1CEDD-1CEDF 1CEF1-1CEFD 1D1EB-1D1FF 1D253-1D25A "
            "1D25D-1D25E 1D260-1D27F 1DB00-1DB1C 1F1AE 1F6D9 1F7DA-1F7DB 1F7F1-1F7FF 1FA8B-1FA8D 1FACC 1FADD "
            "1FAEB 1FAF9-1FAFA"
        ),
        moved=(
            "5C8-5C9 1ADE-1ADF 1AEC-1AF0 10ECB-10ECF 10EF0-10EF9 1D127-1D128 1D250-1D252 1D25B-1D25C 1D25F 1D280-1D281"
        ),
        composed="",
    ),
)
"""In order; before them is `OLDEST`, which every table knows."""
OLDEST = "9.0"
_SYMBOLS_FROM = 17.0
"""From this version on symbols count as new, too. Emoji of earlier ones are in many texts, and every engine knows
them, or reads them as it reads an unknown one."""
_LEAD = 0xD5
"""The lowest first byte that a new character has in UTF-8."""


@lru_cache(maxsize=1)
def _new() -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each code point is new; whether a new one begins with these two bytes in UTF-8, the first the lower."""
    points, pairs = np.zeros(0x110000, np.bool_), np.zeros(0x10000, np.bool_)
    for version in VERSIONS:
        counted = (version.letters, version.others if float(version.name) >= _SYMBOLS_FROM else "")
        for first, last in (pair for given in counted for pair in ranges(given)):
            points[first : last + 1] = True
            # characters that share all bytes but the last share these, too
            for point in {first, last, *range(first & ~63, last, 64)}:
                begin = chr(point).encode()
                pairs[begin[0] | begin[1] << 8] = True
    return points, pairs


def has_new_characters(text: str) -> bool:
    """Whether the text has a character that normalization changes and Unicode has since 10.0, a letter, mark or digit
    since 14.0, or any character since 17.0."""
    return bool(with_new_characters([text]))


def with_new_characters(texts: Sequence[str]) -> list[int]:
    """Indices of the `texts` that have new characters, as `has_new_characters` says.

    It costs 2 to 17 hundredths of what the fastest engine takes for them: ASCII is skipped, and of the rest all bytes
    are looked at together.
    """
    others = [index for index, text in enumerate(texts) if not text.isascii()]
    # a lone surrogate, which UTF-8 does not have, becomes `?`, which is not new
    encoded = [texts[index].encode("utf-8", "replace") for index in others]
    data = np.frombuffer(b"".join(encoded), np.uint8)
    at = np.flatnonzero(data >= _LEAD)
    if not len(at):
        return []
    points, pairs = _new()
    # two bytes rule out most before any is decoded; what is at least `_LEAD` begins a character, so a byte follows
    at = at[pairs[data[at].astype(np.uint16) | data[at + 1].astype(np.uint16) << 8]]
    at = at[points[_code_points(data, at)]]
    ends = np.cumsum([len(one) for one in encoded])
    return [others[found] for found in np.unique(np.searchsorted(ends, at, side="right")).tolist()]


def _code_points(data: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The characters whose UTF-8 begins at these places of the data."""
    # beyond the end is read what no character of that length needs
    first, second, third, fourth = (data[np.minimum(at + shift, len(data) - 1)].astype(np.uint32) for shift in range(4))
    # the bits of the first byte behind those that say the length, and six of each that follows
    two = (first & 31) << 6 | second & 63
    three = (first & 15) << 12 | (second & 63) << 6 | third & 63
    four = (first & 7) << 18 | (second & 63) << 12 | (third & 63) << 6 | fourth & 63
    return np.where(first < 0xE0, two, np.where(first < 0xF0, three, four))
