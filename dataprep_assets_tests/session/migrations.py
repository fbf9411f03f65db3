"""The history of Dagster's tables, read once a process: alembic imports its 89 files twice for each instance."""

import sys
from typing import Any


def read_migrations_once() -> None:
    """Let alembic keep what it has read, if it is imported."""
    module = sys.modules.get("alembic.script.base")
    if module is None or hasattr(module.ScriptDirectory, "_of_location"):
        return
    made: dict[str, Any] = {}
    original = module.ScriptDirectory.from_config

    def from_config(config: Any) -> Any:
        location = config.get_main_option("script_location")
        if location not in made:
            made[location] = original(config)
        return made[location]

    module.ScriptDirectory._of_location = made
    module.ScriptDirectory.from_config = from_config
