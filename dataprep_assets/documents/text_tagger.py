"""What a tagger that is known by its name is: columns, a version, and a function from texts to them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from dataprep_assets.documents.planted import Case
from dataprep_assets.documents.table import Columns


@dataclass(frozen=True, kw_only=True)
class TextTagger:
    """A tagger that looks at texts alone.

    Attributes:
        columns: Name → type of what it gives.
        tag: Column → a value for each text; None where there is none.
        version: Returns what decides its output beside the texts: a number that is increased with every change of a
            value, with the version of the library that it asks, if any.
        planted: Makes cases of which the truth is known; None where there is no truth.
    """

    columns: Columns
    tag: Callable[[Sequence[str]], Mapping[str, Sequence[Any]]]
    version: Callable[[], str]
    planted: Callable[[], Iterable[Case]] | None = None

    @classmethod
    def of_each(cls, columns: Columns, measured: Callable[[str], Sequence[Any]], **more: Any) -> Self:
        """One that asks `measured` for the values of a text, in the order of the columns."""

        def tag(texts: Sequence[str]) -> Mapping[str, Sequence[Any]]:
            # of no texts there are no rows to turn into columns, but every column has to be there
            values = zip(*map(measured, texts), strict=True) if texts else [()] * len(columns)
            return dict(zip(columns, map(list, values), strict=True))

        return cls(columns=columns, tag=tag, **more)
