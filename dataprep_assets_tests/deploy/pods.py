"""Run the pods of a rendered deployment as processes of this machine, with their commands, variables and writable
folders.

A path in a pod (DAGSTER_HOME, the workspace, /scratch) is a folder of the test; addresses are on the loopback
interface. The token of an account is a kubeconfig in the process's home, which is missing for a pod without a token.
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


def _find_program(name: str) -> str:
    """Return the module that a command of the image imports; `dagster-webserver` is the guarded one."""
    if name == "dagster-webserver":
        return "dataprep_assets.webserver.__main__ import main"
    (script,) = importlib.metadata.entry_points(group="console_scripts", name=name)
    return f"{script.module} import {script.attr}"


@dataclass
class Node:
    """A node that runs pods.

    Attributes:
        rendered: The manifests.
        folder: The folder of the pods' volumes and logs.
        replaced: Text of the manifests → its replacement.
        secrets: The manually created secrets.
        project: The working folder of the image.
    """

    rendered: Rendered
    folder: Path
    replaced: Mapping[str, str]
    secrets: Mapping[str, Mapping[str, str]]
    project: Path
    processes: dict[str, Forked] = field(default_factory=dict)

    def start(self, name: str, pod: Mapping[str, Any]) -> Forked:
        """Start the container of a pod, which writes its output to a file of its name."""
        (container,) = pod["containers"]
        words = container.get("command") or container["args"]
        if words[0] == "/bin/bash":
            words = shlex.split(words[-1])
        words = [self._replace(word) for word in words]
        code = (
            f"import sys, tempfile\n{self._list_writable_folders(pod)}"
            f"tempfile.tempdir = None\nsys.argv = {words!r}\nfrom {_find_program(words[0])} as main\nmain()"
        )
        environment = {k: self._replace(v) for k, v in self.rendered.environment(container, self.secrets).items()}
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = forked.start(
                ["-c", code],
                env={
                    **{k: os.environ[k] for k in ("PATH", "VIRTUAL_ENV", "LANG") if k in os.environ},
                    "PYTHONPATH": os.pathsep.join([str(self.project), str(CHECKOUT)]),
                    "HOME": str(self.folder / "account") if has_token(pod) else "/nonexistent",
                    "TMPDIR": str(self.folder / "tmp"),
                    **environment,
                },
                cwd=self.project,
                stdout=log.fileno(),
                stderr=log.fileno(),
                own_session=True,
            )
        return self.processes[name]

    def stop(self) -> None:
        """End all started processes, including the workers of runs."""
        for process in self.processes.values():
            try:
                os.killpg(process.pid, 9)
            except ProcessLookupError:
                continue

    def _replace(self, text: str) -> str:
        for there, here in self.replaced.items():
            text = text.replace(there, here)
        return text

    def _list_writable_folders(self, pod: Mapping[str, Any]) -> str:
        """Return the settings that limit writing to the pod's volumes if its root is read-only."""
        (container,) = pod["containers"]
        if not (is_available() and container["securityContext"].get("readOnlyRootFilesystem")):
            return ""
        empty = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
        mounts = [m for m in container["volumeMounts"] if m["name"] in empty and not m.get("readOnly")]
        folders = [m["mountPath"] for m in mounts]
        # The names of other folders start with these paths, so that their text is not in `replaced`.
        own = {path: str(self.folder / path[1:]) for path in ("/tmp", "/data")}
        folders = [own.get(folder) or self._replace(folder) for folder in folders]
        return f"from dataprep_assets_tests.confined import confine\nconfine({folders!r})\n"
