"""Remarks on declared taggers, for `dataprep check`: missing libraries, files, assets and functions."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import ConfigError, SourceError

# Import the module only for type checking, because it loads slowly and most datasets have no taggers.
if TYPE_CHECKING:
    from dataprep_assets.curation.tagging import Tagger


def find_tagger_remarks(taggers: "Sequence[Tagger]") -> Iterator[Remark]:
    """Yield remarks on missing libraries and files of the taggers in `tag`, which are in the order of the key."""
    for index, tagger in enumerate(taggers):
        try:
            # Read the property only because it raises an error if a library or a file is missing.
            tagger.version  # noqa: B018
        except ConfigError as error:
            yield Remark(keys=("tag", index), sentence=str(error))
        except SourceError as error:  # the tagger's asset cannot be listed, e.g., because it was never materialized
            yield Remark(keys=("tag", index), sentence=str(error), of_source=True)
        if (sentence := tagger.explain_missing()) is not None:
            yield Remark(keys=("tag", index), sentence=sentence, hint=True)
