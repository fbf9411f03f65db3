"""Output of `dataprep` without arguments: the declared datasets and the next commands to run.

It is fast, because it does not import Dagster.
"""

from collections.abc import Iterator
from pathlib import Path

import dataprep_assets
from dataprep_assets.cli.support import project
from dataprep_assets.errors import ConfigError, count_of

DOCS = Path(dataprep_assets.__file__).parent / "docs" / "README.md"
"""First page of the documentation, which is part of the wheel."""
_OWN = "dg scaffold defs dataprep_assets.components.TokenizedCorpus my_corpus"


def welcome_lines() -> Iterator[str]:
    """Yield the lines to print."""
    yield "dataprep turns text and conversations into token files for your trainer."
    yield ""
    try:
        root, components = project.current_project().root, project.components()
    except ConfigError as error:
        yield str(error)
        yield from _next([("dataprep init my-data", "create a project with a sample that builds offline")])
        return
    yield f"{root}: {count_of(len(components), 'dataset')}"
    width = max(map(len, components), default=0)
    for name, component in components.items():
        yield f"  {name:<{width}}  {component}"
    if not components:
        yield from _next([(_OWN, "declare a dataset, with every key explained")])
        return
    kinds, order = project.kinds(), (None, "sample", "example")
    # the user's own datasets before shipped ones, and samples before examples, because samples run without a network
    name = min(components, key=lambda name: (order.index(kinds[name]), components[name] != "TokenizedCorpus", name))
    yield from _next(
        [
            ("dataprep list", "list the datasets and their state"),
            (f"dataprep run {name}", "build it with all checks; finished artifacts are kept"),
            (f"dataprep show {name}", "show its files, and how to load them in a trainer"),
            (_OWN, "declare another dataset, with every key explained"),
            (project.browser(), "open the datasets in the browser"),
        ]
    )


def _next(commands: list[tuple[str, str]]) -> Iterator[str]:
    yield ""
    yield "Next:"
    for command, what in [
        *commands,
        ("dataprep --help", "list all commands"),
        (f"less {DOCS}", "read the documentation"),
    ]:
        yield f"  {command}"
        yield f"      {what}"
