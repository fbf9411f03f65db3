"""Runs functions of this package in a separate process with limits, because a tokenizer's files are programs.

An expression may run forever, a normalizer may take gigabytes, and unexpected content may crash a library's process.

Entry points: `run_limited` for the caller, `limit_process` for the called function.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from typing import Any


def run_limited(
    module: str, arguments: tuple[Any, ...], *, wall_seconds: float, environment: Mapping[str, str]
) -> tuple[int, str]:
    """Run the function `main` of a module in a separate process.

    Returns the exit code of the process and its standard output. The error output is discarded.

    Args:
        module: Full name of the module.
        arguments: Arguments of the function. Their `repr` must be valid Python.
        wall_seconds: Duration after which the process is killed.
        environment: Additional environment variables.
    """
    path = os.pathsep.join(entry for entry in sys.path if entry)
    process = subprocess.Popen(
        [sys.executable, "-c", f"from {module} import main; main{arguments}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | environment | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
    )
    try:
        output, _ = process.communicate(timeout=wall_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    return process.returncode, output.decode(errors="replace").strip()


def limit_process(memory_bytes: int, cpu_seconds: int) -> None:
    """Limit the address space and the CPU time of this process, and disable core files."""
    limits = ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CPU, cpu_seconds), (resource.RLIMIT_CORE, 0))
    for limit, value in limits:
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
