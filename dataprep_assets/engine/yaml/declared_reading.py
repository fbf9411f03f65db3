"""The keys that say of files how they are read, where files do not say it themselves.

They are the same wherever such files are declared: corpora, releases, the datasets of a blend, benchmarks.
"""

from pydantic import Field

from dataprep_assets.engine.yaml.declared_model import Declared
from dataprep_assets.sources.readers.input_format import ReadOptions


class ReadingDeclaration(Declared):
    """How the documents of a text file, and the values of a table, are told apart."""

    text_separator: str | None = Field(
        None, min_length=1, description='Text between two documents of a `.txt`, as `"\\n"`; default: a file is one.'
    )
    csv_delimiter: str | None = Field(
        None, pattern=r'^[^"\r\n]$', description="Character between fields of `.csv`, `.tsv`; default: a comma, a tab."
    )
    csv_quotes: bool | None = Field(
        None, description="Whether quotes enclose values of `.csv`, `.tsv`; default: yes, unless a `.tsv` seems not to."
    )

    @property
    def reading(self) -> ReadOptions:
        """What it says of files that do not say it themselves."""
        return ReadOptions(
            text_separator=self.text_separator, csv_delimiter=self.csv_delimiter, csv_quotes=self.csv_quotes
        )
