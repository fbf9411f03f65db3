"""What `dataprep` without arguments prints: the datasets here, and what to do next.

Fast, because it needs no Dagster.
"""

from collections.abc import Iterator
from pathlib import Path

import dataprep_assets
from dataprep_assets.cli.support import project
from dataprep_assets.errors import ConfigError

DOCS = Path(dataprep_assets.__file__).parent / "docs" / "README.md"
"""The first page of the documentation, which is in the wheel."""
_OWN = "dg scaffold defs dataprep_assets.components.TokenizedCorpus my_corpus"


def welcome() -> Iterator[str]:
    """The lines to print."""
    yield "dataprep makes training data for language models, with proofs, in Dagster."
    yield ""
    try:
        root, components = project.current().root, project.components()
    except ConfigError as error:
        yield str(error)
        yield from _next([("dataprep init my-data", "make one, with a sample that needs no network")])
        return
    yield f"{root}: {len(components)} {'dataset' if len(components) == 1 else 'datasets'}"
    width = max(map(len, components), default=0)
    for name, component in components.items():
        yield f"  {name:<{width}}  {component}"
    if not components:
        yield from _next([(_OWN, "declare a dataset, every key explained")])
        return
    kinds, order = project.kinds(), (None, "sample", "example")
    # the user's own datasets before shipped ones, and of these the samples, which run anywhere
    name = min(components, key=lambda name: (order.index(kinds[name]), components[name] != "TokenizedCorpus", name))
    yield from _next(
        [
            ("dataprep list", "which of them are made, and which are not"),
            (f"dataprep run {name}", "make it, with all its checks; what is there is kept"),
            (f"dataprep show {name}", "what it makes and where, and the lines for the trainer"),
            (_OWN, "declare another, every key explained"),
            (project.browser(), "the same in the browser"),
        ]
    )


def _next(commands: list[tuple[str, str]]) -> Iterator[str]:
    yield ""
    yield "Next:"
    for command, what in [*commands, ("dataprep --help", "all commands"), (f"less {DOCS}", "the documentation")]:
        yield f"  {command}"
        yield f"      {what}"
