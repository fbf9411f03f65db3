"""The language of a document, as detected by py3langid, whose wheel contains the model.

This tagger needs the extra `language`. `language` is an ISO 639-1 code, and `language_score` its probability. Only the
first 1,000 characters are used, because a multilingual document has no single language. A text without characters has
null values.
"""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from dataprep_assets.curation.planted.language import yield_cases
from dataprep_assets.curation.text_tagger import TextTagger
from dataprep_assets.errors import build_missing_extra_error
from dataprep_assets.integrity.receipt import require_installed_version

if TYPE_CHECKING:
    from dataprep_assets.curation.languages.language_model import LanguageModel
    from dataprep_assets.curation.text_arrays.split_texts import SplitTexts

MAX_CHARACTERS = 1_000
"""Number of characters to read: about 150 words."""
_LIBRARY = ("tag: language", "py3langid", "language")


@cache
def _load_model() -> "LanguageModel":
    try:
        from py3langid.langid import (  # type: ignore[import-untyped]
            MODEL_FILE,
            LanguageIdentifier,
        )
    except ImportError as error:
        raise build_missing_extra_error(*_LIBRARY) from error
    from dataprep_assets.curation.languages.language_model import LanguageModel

    return LanguageModel(LanguageIdentifier.from_model_file(MODEL_FILE))


def _read_version() -> str:
    return f"1, py3langid {require_installed_version(*_LIBRARY)}"


def measure_texts(split: "SplitTexts") -> Sequence[Sequence[Any]]:
    """Return the columns of some texts, in column order."""
    model = _load_model()
    bounds = zip(split.text_starts.tolist(), split.text_ends.tolist(), strict=True)
    texts = [split.get_text(start, min(end, start + MAX_CHARACTERS)) for start, end in bounds]
    # Round the score, because its last digits may differ between processors.
    values = [
        (name, round(score, 4)) if text else (None, None)
        for text, (name, score) in zip(texts, model.classify(texts), strict=True)
    ]
    return [*zip(*values, strict=True)]


TAGGER = TextTagger.with_measures(
    columns={"language": "string", "language_score": "number"},
    measure=measure_texts,
    version=_read_version,
    planted=yield_cases,
    descriptions={
        "language": "Detected language, as an ISO 639-1 code.",
        "language_score": "Probability of the detected language, from 0 to 1.",
    },
)
