"""Repeated text as in a crawl, and text that only looks repeated: lists, tables, a refrain."""

from collections.abc import Iterator
from random import Random

from dataprep_assets.curation.planted import PlantedCase, Values

CASES_PER_FORM = 12
LIMITS = {"lines": ("repeated_line_characters", 0.2), "paragraphs": ("repeated_paragraph_characters", 0.2)}
"""Kind → the column that shows it, and the published limit."""
_PHRASES = ("repeated_5grams", 0.15)
_NOUNS = """
    anchor barley candle dune ember fiddle gable hazel inlet jetty kettle ladder meadow needle orchard pebble quarry
    rudder saddle thicket umbrella valley willow yarrow acorn beacon cellar drizzle estuary furrow
"""
_WORDS = _NOUNS.split()


def yield_cases() -> Iterator[PlantedCase]:
    """Yield the cases. Each is a whole document, because the columns are shares of a whole document."""
    rng = Random("dataprep-assets planted repetitions 1")
    for _ in range(CASES_PER_FORM):
        own_lines = "\n".join(_build_line(rng) for _ in range(rng.randint(4, 10)))
        line = _build_line(rng)
        yield _build_case("lines", f"{own_lines}\n" + f"{line}\n" * (own_lines.count("\n") + 4))
        yield _build_case(
            "paragraphs",
            f"{own_lines}\n\n" + f"{line}\n{_build_line(rng)}\n\n".join([""] * (own_lines.count("\n") + 3)),
        )
        phrase = " ".join(rng.sample(_WORDS, 7))
        yield _build_case("phrases", f"{own_lines} " + " and so ".join([phrase] * (own_lines.count("\n") + 4)))
    for _ in range(CASES_PER_FORM):
        numbered_list = "\n".join(
            f"{number}. The {rng.choice(_WORDS)} of {_build_line(rng)}" for number in range(1, 15)
        )
        table = "\n".join(f"| {rng.choice(_WORDS)} | {rng.randint(1, 999)} | {_build_line(rng)} |" for _ in range(12))
        refrain = _build_line(rng)
        song = "\n\n".join("\n".join([*(_build_line(rng) for _ in range(7)), refrain]) for _ in range(3))
        for kind in ("lines", "paragraphs", "phrases"):
            for text in (numbered_list, table, song):
                yield _build_case(kind, text, positive=False)


def _build_line(rng: Random) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(rng.randint(6, 14))) + "."


def _build_case(kind: str, text: str, *, positive: bool = True) -> PlantedCase:
    column, limit = LIMITS.get(kind, _PHRASES)

    def is_found(_: Values, after: Values) -> bool:
        return bool(after[column] > limit)

    return PlantedCase(kind=kind, text=text, is_found=is_found, positive=positive, alone=True)
