"""The pods of a rendered deployment as processes of this machine: commands, variables, and what they may write to.

A path of a pod (DAGSTER_HOME, the workspace, /scratch) is a folder of the test's; addresses are the loopback's. The
token of an account is a kubeconfig in the process's home, which a pod without a token lacks.
"""

import importlib.metadata
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dataprep_assets_tests import forked
from dataprep_assets_tests.confined import is_available
from dataprep_assets_tests.deploy.chart import Rendered, has_token
from dataprep_assets_tests.forked import Forked

CHECKOUT = Path(__file__).parents[2]


def _program(name: str) -> str:
    """What a command of the image imports; `dagster-webserver` is the guarded one there."""
    if name == "dagster-webserver":
        return "dataprep_assets.webserver.__main__ import main"
    (script,) = importlib.metadata.entry_points(group="console_scripts", name=name)
    return f"{script.module} import {script.attr}"


@dataclass
class Node:
    """Runs pods. `replaced` says what stands here for texts of the manifests; `secrets` are those made by hand."""

    rendered: Rendered
    folder: Path
    replaced: Mapping[str, str]
    secrets: Mapping[str, Mapping[str, str]]
    processes: dict[str, Forked] = field(default_factory=dict)

    def start(self, name: str, pod: Mapping[str, Any]) -> Forked:
        """Start a pod's container; its output goes to a file of its name."""
        (container,) = pod["containers"]
        words = container.get("command") or container["args"]
        if words[0] == "/bin/bash":
            words = shlex.split(words[-1])
        words = [self._here(word) for word in words]
        code = (
            f"import sys, tempfile\n{self._confinement(pod)}"
            f"tempfile.tempdir = None\nsys.argv = {words!r}\nfrom {_program(words[0])} as main\nmain()"
        )
        environment = {k: self._here(v) for k, v in self.rendered.environment(container, self.secrets).items()}
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = forked.start(
                ["-c", code],
                env={
                    **{k: os.environ[k] for k in ("PATH", "VIRTUAL_ENV", "LANG") if k in os.environ},
                    "PYTHONPATH": str(CHECKOUT),
                    "HOME": str(self.folder / "account") if has_token(pod) else "/nonexistent",
                    "TMPDIR": str(self.folder / "tmp"),
                    **environment,
                },
                cwd=self.folder,
                stdout=log.fileno(),
                stderr=log.fileno(),
                own_session=True,
            )
        return self.processes[name]

    def stop(self) -> None:
        """End all that was started, with the workers of runs."""
        for process in self.processes.values():
            try:
                os.killpg(process.pid, 9)
            except ProcessLookupError:
                continue

    def _here(self, text: str) -> str:
        for there, here in self.replaced.items():
            text = text.replace(there, here)
        return text

    def _confinement(self, pod: Mapping[str, Any]) -> str:
        """The lines that leave a process the volumes of its pod to write to, where its root is read-only."""
        (container,) = pod["containers"]
        if not (is_available() and container["securityContext"].get("readOnlyRootFilesystem")):
            return ""
        empty = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
        mounts = [m for m in container["volumeMounts"] if m["name"] in empty and not m.get("readOnly")]
        folders = [self._here(m["mountPath"]) for m in mounts]
        folders = [str(self.folder / "tmp") if folder == "/tmp" else folder for folder in folders]
        return f"from dataprep_assets_tests.confined import confine\nconfine({folders!r})\n"
