"""Caches the comparison of an engine with the reference on the adversarial set, for all datasets.

The set is the same for every dataset, so the comparison depends only on the tokenizer, the engines and the machine's
architecture. It takes seconds, as long as everything else for a small corpus. The cache is below
`$XDG_CACHE_HOME/dataprep-assets` (`~/.cache/dataprep-assets`), which may be deleted at any time.

Entry point: `adversarial_comparison`.
"""

import json
import os
import platform
import unicodedata
from collections import Counter
from contextlib import suppress
from pathlib import Path

from pydantic import NonNegativeInt

from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.paths import expanded
from dataprep_assets.state_file import read_state
from dataprep_assets.tokenization.adversarial import SET
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import CLASSES, Comparison, compare
from dataprep_assets.tokenization.engines import Engine, SpecialTokens


def adversarial_comparison(
    bundle: TokenizerBundle, mode: SpecialTokens, engine: Engine, reference: Engine
) -> Comparison:
    """`compare` on the adversarial set of a tokenizer, or its cached result for the same engines.

    Args:
        bundle: The tokenizer.
        mode: How both engines read literal special tokens.
        engine: The engine to certify.
        reference: The engine to compare it with.
    """
    engines = [engine.name, engine.version, reference.name, reference.version]
    # Python's Unicode is in it because it decides the class of a document, which may be normalized or not
    key = digest_value([SET, bundle.digest, mode, *engines, unicodedata.unidata_version, platform.machine()])
    try:
        folder = expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "dataprep-assets" / "adversarial"
    except ConfigError:  # a user without a home folder, as in a container: nothing is remembered
        return compare(bundle, engine, reference)
    path = folder / f"{key}.json"
    found = _remembered(path)
    if found is None:
        found = compare(bundle, engine, reference)
        with suppress(OSError):  # if the home folder is not writable, it is computed again
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps({"compared": found.compared, "differing": found.differing}).encode())
    return found


def _remembered(path: Path) -> Comparison | None:
    """The comparison in a file; None unless the file is there and complete."""
    value = read_state(path, dict[str, dict[str, NonNegativeInt]])
    if value is None or value.keys() != {"compared", "differing"}:
        return None
    found = Comparison(compared=Counter(value["compared"]), differing=Counter(value["differing"]))
    # another version of this package may have other classes
    return found if found.compared and set(found.compared) | set(found.differing) <= set(CLASSES) else None
