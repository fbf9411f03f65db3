"""The rewriter `personal`, which replaces the findings of the tagger `personal`.

The tagger looks at normalized texts, but everything outside of its findings must stay as it is, to the byte. So each
finding in a normalized line is replaced in the line itself. The tagger finds nothing in the rewritten text.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from dataprep_assets.curation.rewriters.rewriting import Rewriter
from dataprep_assets.curation.taggers.personal import KINDS, TAGGER, Span
from dataprep_assets.curation.text_tagger import compose_text, normalize_text
from dataprep_assets.stores.files import digest_value

_VERSION = 1
_CHUNK = re.compile(r"[\x00-\x7f][^\x00-\x7f]*|[^\x00-\x7f]+")
"""A piece of a text that composes independently of the rest, because no ASCII character composes with one before it."""


@dataclass(frozen=True, kw_only=True)
class PersonalDataRewriter(Rewriter):
    """The rewriter of personal data.

    Attributes:
        placeholders: Kind of personal data → the text that replaces it. It has no digit, `@` or `:`, but all personal
            data has one of them.
    """

    placeholders: tuple[tuple[str, str], ...]

    @property
    def version(self) -> str:
        return f"{digest_value([_VERSION, TAGGER.version(), sorted(self.placeholders)])[:16]}"

    @contextmanager
    def open(self) -> Iterator[Callable[[str], str]]:
        yield self.rewrite

    def rewrite(self, text: str) -> str:
        """Return a text with placeholders instead of personal data."""
        placeholders, sign = dict(self.placeholders), self._sign
        if not sign.search(text):
            return text
        lines = text.splitlines(keepends=True)
        # Look only at lines with a sign, because no finding contains a line end.
        positions = [position for position, line in enumerate(lines) if sign.search(line)]
        # Look at all of them together first, because most texts have no personal data.
        candidates = normalize_text("".join([lines[position] for position in positions]))
        if any(True for _ in _find_personal_data(candidates, placeholders)):
            for position in positions:
                lines[position] = _rewrite_line(lines[position], placeholders)
        return "".join(lines)

    @cached_property
    def _sign(self) -> re.Pattern[str]:
        """Matches a character that every finding of the declared kinds has."""
        kinds = {kind for kind, _ in self.placeholders}
        return re.compile("@" if kinds == {"emails"} else r"[@:\d]")


def _find_personal_data(text: str, kinds: Mapping[str, str]) -> Iterator[tuple[Span, str]]:
    """Yield the findings in a normalized text, with their kinds."""
    return ((span, kind) for kind, find in KINDS.items() if kind in kinds for span in find(text))


def _rewrite_line(line: str, placeholders: Mapping[str, str]) -> str:
    # Repeat, because text next to a replaced finding may be a finding without it. This ends, because each finding has a
    # digit, `@` or `:`, which a placeholder has not.
    while findings := sorted(_find_personal_data(normalize_text(line), placeholders), key=_rank):
        positions = _align(line)
        pieces, end = [], 0
        for (start, stop), kind in _merge(findings):
            pieces += [line[end : positions[start][0]], placeholders[kind]]
            end = positions[stop - 1][1]
        line = "".join([*pieces, line[end:]])
    return line


def _rank(finding: tuple[Span, str]) -> tuple[int, int]:
    (start, stop), _ = finding
    return start, -stop


def _merge(findings: list[tuple[Span, str]]) -> list[tuple[Span, str]]:
    """Join overlapping findings, such as a card number that is also a phone number, under the kind of the first."""
    separate_findings: list[tuple[Span, str]] = []
    for (start, stop), kind in findings:
        if separate_findings and start < separate_findings[-1][0][1]:
            (earlier_start, earlier_stop), earlier_kind = separate_findings[-1]
            separate_findings[-1] = (earlier_start, max(earlier_stop, stop)), earlier_kind
        else:
            separate_findings.append(((start, stop), kind))
    return separate_findings


def _align(line: str) -> list[Span]:
    """Return the span in a line of each character of the normalized line."""
    characters: list[tuple[str, Span]] = []
    for chunk in _CHUNK.finditer(line):
        start, stop, composed = chunk.start(), chunk.end(), compose_text(chunk[0])
        if composed == chunk[0]:
            characters += [(char, (start + offset, start + offset + 1)) for offset, char in enumerate(composed)]
            continue
        # Locate an ASCII character separately, because a finding that ends with it excludes invisible characters after
        # it. The other characters may be composed, so each of them has the rest of the chunk as its span.
        keeps_first = composed[:1] == chunk[0][:1]
        characters += [
            (char, (start, start + 1) if keeps_first and not offset else (start + keeps_first, stop))
            for offset, char in enumerate(composed)
        ]
    # Join white space, and remove it at the ends of the line.
    spans: list[Span] = []
    after_space = True
    for character, span in characters:
        is_space = character.isspace()
        if not (is_space and after_space):
            spans.append(span)
        elif spans:
            spans[-1] = spans[-1][0], span[1]
        after_space = is_space
    return spans[:-1] if spans and after_space else spans
