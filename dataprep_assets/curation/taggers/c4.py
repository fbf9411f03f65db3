"""The heuristics of C4 (Raffel et al. 2020, section 2.2), as numbers for rules.

C4 keeps some lines of a page and drops pages with too little left. Texts are not changed here: the columns count the
lines that C4 would keep and their sentences, and show whether a line would drop the page. A sentence ends with `.`, `!`
or `?` (or marks of other scripts) and closing characters, before white space or the line's end.
"""

import re

from dataprep_assets.curation.text_tagger import TextTagger

_ENDS = (".", "?", "!", '"', "'")
_MAX_WORD_CHARACTERS, _MIN_WORDS = 1000, 3
_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")
_POLICIES = re.compile(r"terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies")
_SENTENCE = re.compile(r"[.!?…。！？]+[\"'”’)\]]*(?=\s|$)")


def count_sentences(line: str) -> int:
    """Count the sentences in a line, including an unfinished last one."""
    ends = [match.end() for match in _SENTENCE.finditer(line)]
    return len(ends) + (not ends or ends[-1] < len(line))


def measure_text(text: str) -> tuple[int, int, bool, bool]:
    """Return the values of the columns for one text, in column order."""
    # Keep the order of the checks, because each check sees only the lines that earlier checks kept.
    line_count = sentence_count = 0
    lorem = curly = False
    for full_line in text.splitlines():
        words = full_line.split()
        # To save time, measure the words only if the line is long enough to contain a word that is too long.
        if len(words) < _MIN_WORDS or (
            len(full_line) > _MAX_WORD_CHARACTERS and any(len(word) > _MAX_WORD_CHARACTERS for word in words)
        ):
            continue
        line = _CITATION.sub("", full_line) if "[" in full_line else full_line
        if not line.endswith(_ENDS) or line.endswith("..."):
            continue
        lower = line.lower()
        lorem = lorem or "lorem ipsum" in lower
        if "javascript" in lower:
            continue
        curly = curly or "{" in line
        if _POLICIES.search(lower):
            continue
        line_count, sentence_count = line_count + 1, sentence_count + count_sentences(line)
    return line_count, sentence_count, lorem, curly


TAGGER = TextTagger.with_measure(
    columns={
        "c4_lines": "integer",
        "c4_sentences": "integer",
        "lorem_ipsum": "boolean",
        "curly_bracket": "boolean",
    },
    measure=measure_text,
    version=lambda: "1",
)
