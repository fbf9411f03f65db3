"""What `dg scaffold defs dataprep_assets.components.<Component> <name>` writes: a commented declaration.

Each wing keeps its text beside its component, in `<component>.scaffold.yaml`, with `__name__` for the dataset.
"""

import re
from pathlib import Path
from typing import Any, ClassVar

import dagster as dg


class DeclarationScaffolder(dg.Scaffolder[Any]):
    """Writes a commented `defs.yaml`."""

    template: ClassVar[Path]

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        target = Path(request.target_path)
        target.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^A-Za-z0-9_]", "_", target.name)
        text = self.template.read_text(encoding="utf-8").replace("__name__", name)
        (target / "defs.yaml").write_text(text, encoding="utf-8")


def scaffolder(template: Path) -> type[DeclarationScaffolder]:
    """The scaffolder that writes this text."""
    return type(
        "DeclarationScaffolder", (DeclarationScaffolder,), {"template": template, "__doc__": "Writes a defs.yaml."}
    )
