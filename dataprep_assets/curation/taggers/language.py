"""The language of a document, as detected by py3langid, whose wheel contains the model.

This tagger needs the extra `language`. `language` is an ISO 639-1 code, and `language_score` its probability. Only the
first 1,000 characters are used, because a multilingual document has no single language, and reading the whole text
would cost more than all other taggers together. A text without characters has null values.
"""

from functools import cache
from typing import Any

from dataprep_assets.curation.planted.language import yield_cases
from dataprep_assets.curation.text_tagger import TextTagger
from dataprep_assets.errors import build_missing_extra_error
from dataprep_assets.integrity.receipt import require_installed_version

MAX_CHARACTERS = 1_000
"""Number of characters to read: about 150 words."""
_LIBRARY = ("tag: language", "py3langid", "language")


@cache
def _load_identifier() -> Any:
    try:
        from py3langid.langid import (  # type: ignore[import-untyped]
            MODEL_FILE,
            LanguageIdentifier,
        )
    except ImportError as error:
        raise build_missing_extra_error(*_LIBRARY) from error
    # Normalize scores to probabilities from 0 to 1, so that rules can compare them with a threshold.
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _read_version() -> str:
    return f"1, py3langid {require_installed_version(*_LIBRARY)}"


def measure_text(text: str) -> tuple[str | None, float | None]:
    """Return the values of the columns for one text, in column order."""
    if not text:
        return None, None
    name, score = _load_identifier().classify(text[:MAX_CHARACTERS])
    # Round the score, because its last digits may differ between processors.
    return str(name), round(float(score), 4)


TAGGER = TextTagger.with_measure(
    columns={"language": "string", "language_score": "number"},
    measure=measure_text,
    version=_read_version,
    planted=yield_cases,
    descriptions={
        "language": "Detected language, as an ISO 639-1 code.",
        "language_score": "Probability of the detected language, from 0 to 1.",
    },
)
