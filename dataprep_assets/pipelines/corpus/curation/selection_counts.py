"""Facts of a selection: its dropped rows, and their counts per source, language and reason."""

from pydantic import Field

from dataprep_assets.curation.budgets.counts import DropFacts

SELECTION = "selection"
"""Name of the artifact whose receipts contain these facts."""


class SelectionFacts(DropFacts):
    """Facts of a selection: the digest of the dropped rows, and all counts.

    `ages` are the ages of the shard's files (`file_ages`), if they determine which duplicates are kept.
    """

    dropped: str
    ages: dict[str, int] = Field(default_factory=dict)
