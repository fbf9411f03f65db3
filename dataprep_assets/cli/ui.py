"""`dataprep ui`: the project in the browser, behind the guard of `dataprep_assets.webserver`."""

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from dataprep_assets.cli import project
from dataprep_assets.errors import DataprepError

__all__ = ["command"]

_UNGUARDED, _GUARDED = "dagster_webserver", "dataprep_assets.webserver"


def command(
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but a loopback address can be reached from other machines.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port to listen on.")] = 3000,
) -> int:
    """Serve Dagster's UI of the project, with its daemon, until Ctrl-C: as `dg dev` does, closed to pages of others."""
    import yaml  # type: ignore[import-untyped]
    from dagster._cli import dev
    from dagster_shared.cli import WorkspaceOpts

    here = project.current()
    with project.instance():
        pass  # the pools are limited before the first run
    # for Dagster's own processes, because the project need not be installed
    below = str(here.defs.parents[here.defs_module.count(".")])
    os.environ["PYTHONPATH"] = os.pathsep.join([below, *filter(None, [os.environ.get("PYTHONPATH")])])
    started = _guarding(dev)
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder, "workspace.yaml")
        module = {
            "module_name": here.target_module,
            "location_name": here.location,
            "working_directory": str(here.root),
        }
        workspace.write_text(yaml.safe_dump({"load_from": [{"python_module": module}]}))
        dev.dev_command_impl(
            code_server_log_level="warning",
            log_level="info",
            log_format="colored",
            port=str(port),
            host=host,
            use_legacy_code_server_behavior=False,
            shutdown_pipe=None,
            verbose=False,
            workspace_opts=WorkspaceOpts(workspace=[str(workspace)]),
        )
    return 0 if started else 1


def _guarding(dev: Any) -> list[list[str]]:
    """Make Dagster's `dev` start the guarded webserver instead of its own; returns the list of commands that it starts.

    Raises DataprepError, before a port is open, if Dagster starts its webserver in a way that this code does not know.
    """
    start, started = dev.open_ipc_subprocess, list[list[str]]()

    def guarded(parts: list[str], **options: Any) -> Any:
        if not started and parts[1:3] != ["-m", _UNGUARDED]:
            raise DataprepError("ui: this version of Dagster starts its webserver in another way. Use `dg dev`")
        command = [_GUARDED if part == _UNGUARDED else part for part in parts]
        started.append(command)
        return start(command, **options)

    dev.open_ipc_subprocess = guarded
    return started
