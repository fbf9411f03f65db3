"""Some characters that each version of Unicode since 10.0 added, which tell the tables of a library from others.

The reference normalizes and splits text by tables of Unicode that are compiled into it. Another version of it, or
another engine, has tables of another Unicode: then texts with characters that only one of them knows get other ids.
What they differ in are letters, marks and digits: a mark that a table does not know stays where it is instead of being
put in order, and a letter that it does not know is split from its word. Other characters are read alike, assigned or
not, except by patterns with `\\p{S}` or `\\p{P}`.

Chosen from the Unicode Character Database; stable, because no version changes what an earlier one assigned.
"""

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class UnicodeVersion:
    """Some of what a version added: code points in hexadecimal, separated by spaces.

    Attributes:
        name: Such as `15.1`.
        letters: Letters and numbers; of versions before 14.0, whose letters every table knows, only some.
        others: Symbols, punctuation, format characters.
        moved: Marks with a combining class, which normalization puts in order.
        composed: Letters with a canonical decomposition, as `composed=first+second`.
    """

    name: str
    letters: str = ""
    others: str = ""
    moved: str = ""
    composed: str = ""

    @cached_property
    def sample(self) -> tuple[str, ...]:
        """Its characters without those with a decomposition."""
        return tuple(_character(point) for given in (self.letters, self.others, self.moved) for point in given.split())

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """Its characters with a combining class."""
        return tuple(_character(point) for point in self.moved.split())

    @cached_property
    def compositions(self) -> tuple[tuple[str, str], ...]:
        """`(composed, decomposed)` of its characters with a canonical decomposition."""
        pairs = (entry.split("=") for entry in self.composed.split())
        return tuple((_character(one), "".join(map(_character, parts.split("+")))) for one, parts in pairs)


def _character(point: str) -> str:
    return chr(int(point, 16))


VERSIONS = (
    UnicodeVersion("10.0", moved="D3B 1DF8 11A47 11D45"),
    UnicodeVersion("11.0", moved="7FD 10F46 10F4E 11D97"),
    UnicodeVersion("12.0", "1F16C", moved="EBA 1E132 1E136 1E2EF"),
    UnicodeVersion("12.1", "32FF"),
    UnicodeVersion("13.0", "AB69 11930 1FBF0 1FBF9", moved="1ABF 10EAB 1193E 16FF1", composed="11938=11935+11930"),
    UnicodeVersion("14.0", "870 1058C 16ABE 2B738", "61D 1CFC3 1FAF6", "898 8CF 1AC8 1E2AE"),
    UnicodeVersion("15.0", "CF3 11F50 1D2D3 323AF", "11B00 1FA87 1FAF8", "10EFD 11F41 1E4EC 1E4EF"),
    UnicodeVersion("15.1", "2EBF0 2EE5D", "2FFC 2FFF 31EF"),
    UnicodeVersion(
        "16.0",
        "1C89 11389 11BE0 1E5FA",
        "1B4E 1CC00 1FBEF",
        "897 10D6C 113CF 1E5EF",
        "105C9=105D2+0307 16122=1611E+16129 16D6A=16D69+16D67",
    ),
    UnicodeVersion("17.0", "88F 11B67 18D1E 33479", "20C1 1CEE0 1FBFA", "1ACF 1ADA 1AE7 1E6F5"),
    UnicodeVersion("18.0", "558 10EEE 191D2 3FC3F", "20C2 1D25E 1FAFA", "5C8 10ECD 10EF8 1D281"),
)
"""In order; before them is `OLDEST`, which every table knows."""
OLDEST = "9.0"
