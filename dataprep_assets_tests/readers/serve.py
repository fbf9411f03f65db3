"""Run the process of a family: `python -m dataprep_assets_tests.readers.serve FAMILY DESCRIPTOR`; see `process`.

Answers one call after another over the connection of that file descriptor, and ends when the other side closes it.
"""

import faulthandler
import importlib
import os
import pickle
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from dataprep_assets_tests.readers import families
from dataprep_assets_tests.readers.families import HEAVY, Family


def main(arguments: list[str]) -> int:
    """Serve until the test process closes the connection."""
    name, descriptor = arguments
    (family,) = [one for one in vars(families).values() if isinstance(one, Family) and one.name == name]
    faulthandler.enable()
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1", TFDS_LOGGING_LEVEL="error")
    with Connection(int(descriptor)) as connection:
        while True:
            try:
                request = connection.recv_bytes()
            except EOFError:
                return 0
            connection.send_bytes(_answer(family, request))


def _answer(family: Family, request: bytes) -> bytes:
    try:
        module, function, args, kwargs = pickle.loads(request)
        value = getattr(importlib.import_module(module), function).__wrapped__(*args, **kwargs)
        if foreign := sorted(HEAVY & sys.modules.keys() - family.modules):
            raise RuntimeError(f"{function} imported {', '.join(foreign)} into the process of {family.name}")
        return pickle.dumps(("returned", value, ""))
    except Exception as error:
        return _raised(error, traceback.format_exc())


def _raised(error: Exception, trace: str) -> bytes:
    kind = type(error)
    if not _is_of_a_library(kind):
        try:
            answer = pickle.dumps(("raised", error, trace))
            pickle.loads(answer)
            return answer
        except Exception:  # an error that cannot be pickled is replaced by its description
            pass
    said: Any = f"{kind.__module__}.{kind.__qualname__}: {error}"
    return pickle.dumps(("raised by the library", said, trace))


def _is_of_a_library(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in HEAVY


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
