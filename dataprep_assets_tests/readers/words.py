"""Split words of languages; spaCy imports PyTorch if it is installed."""

from typing import Any

from dataprep_assets_tests.readers.families import WORDS
from dataprep_assets_tests.readers.process import in_process_of


@in_process_of(WORDS)
def words(language: str, text: str) -> list[str]:
    """Return the words of a text."""
    from dataprep_assets.curation.languages.word_splitter import find_splitter

    splitter = find_splitter(language)
    assert splitter is not None
    return splitter.split_text(text)


@in_process_of(WORDS)
def sentences(language: str, line: str) -> int:
    """Return the number of sentences in a line."""
    from dataprep_assets.curation.languages.word_splitter import find_splitter

    splitter = find_splitter(language)
    assert splitter is not None
    return splitter.count_sentences(line)


@in_process_of(WORDS)
def columns(name: str, text: str, **settings: Any) -> dict[str, Any]:
    """Return the columns of one text by a tagger with settings."""
    from dataprep_assets.curation.tagging import BuiltInTagger, load_tagger

    tagger = BuiltInTagger(name=name, columns=load_tagger(name).columns, settings=settings)
    return {column: values[0] for column, values in tagger.load().tag([text]).items()}
