"""Paths that people write: in a declaration, a variable of the environment, a command."""

import os
from pathlib import Path

from dataprep_assets.errors import ConfigError


def expanded(path: str | Path, name: str = "") -> Path:
    """The path with a home folder for `~`; ConfigError, beginning with `name`, for one that no file can have."""
    where = f"{name}: " if name else ""
    if "\0" in str(path):
        raise ConfigError(f"{where}{str(path)!r}: no path has a NUL")
    try:
        expanded_path = Path(path).expanduser()
        # only tried: the system would be asked for it in these bytes
        os.fsencode(expanded_path)
    except RuntimeError:
        raise ConfigError(
            f"{where}{str(path)!r}: no home folder is known of `{Path(path).parts[0]}`: write the path out, or "
            f"`./{path}` for a folder that is called so"
        ) from None
    except UnicodeEncodeError as error:  # half a surrogate pair
        raise ConfigError(f"{where}{str(path)!r}: {error}") from None
    return expanded_path
