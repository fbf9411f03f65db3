"""Output of `dataprep` without arguments: the declared datasets and the next commands to run.

It is fast, because it does not import Dagster.
"""

from collections.abc import Iterator
from pathlib import Path

import dataprep_assets
from dataprep_assets.cli.support import project
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.project_template import format_scaffold_command

DOCS = Path(dataprep_assets.__file__).parent / "docs" / "README.md"
"""First page of the documentation, which is part of the wheel."""


def format_welcome() -> Iterator[str]:
    """Yield the lines about the declared datasets and the next commands."""
    yield "dataprep turns text and conversations into token files for your trainer."
    yield ""
    try:
        root, components = project.current_project().root, project.list_components()
    except ConfigError as error:
        yield str(error)
        yield from _list_next_commands(
            [("dataprep init my-data", "create a project with a sample that builds offline")]
        )
        return
    yield f"{root}: {count_of(len(components), 'dataset')}"
    width = max(map(len, components), default=0)
    for name, component in components.items():
        yield f"  {name:<{width}}  {component}"
    if not components:
        yield from _list_next_commands([(format_scaffold_command(), "declare a dataset, with every key explained")])
        return
    kinds, order = project.list_kinds(), (None, "sample", "example")
    # Suggest one of the user's own datasets if there are any, then a sample, then an example, because samples need no
    # network. Within each group, prefer a TokenizedCorpus.
    name = min(components, key=lambda name: (order.index(kinds[name]), components[name] != "TokenizedCorpus", name))
    yield from _list_next_commands(
        [
            ("dataprep list", "list the datasets and their state"),
            (f"dataprep run {name}", "build it with all checks; finished artifacts are kept"),
            (f"dataprep show {name}", "show its files, and how to load them in a trainer"),
            (format_scaffold_command(components[name]), "declare another dataset, with every key explained"),
            (project.format_browser_command(), "open the datasets in the browser"),
        ]
    )


def _list_next_commands(commands: list[tuple[str, str]]) -> Iterator[str]:
    yield ""
    yield "Next:"
    for command, description in [
        *commands,
        ("dataprep --help", "list all commands"),
        (f"less {DOCS}", "read the documentation"),
    ]:
        yield f"  {command}"
        yield f"      {description}"
