"""Caches the comparison of an engine with the reference on the adversarial set, for all datasets.

The set is the same for every dataset, so the comparison depends only on the tokenizer, the engines and the machine's
architecture. It takes seconds, as long as everything else for a small corpus. `memory` keeps it.

Entry point: `adversarial_comparison`.
"""

import platform
import unicodedata
from collections import Counter

from pydantic import NonNegativeInt

from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.tokenization.adversarial import SET
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import CLASSES, Comparison, compare
from dataprep_assets.tokenization.engines import Engine, SpecialTokens
from dataprep_assets.tokenization.memory import recall, remember


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
    found = _remembered(key)
    if found is None:
        found = compare(bundle, engine, reference)
        remember("adversarial", key, {"compared": found.compared, "differing": found.differing})
    return found


def _remembered(key: str) -> Comparison | None:
    """The comparison under a key; None if there is none."""
    value = recall("adversarial", key, dict[str, dict[str, NonNegativeInt]])
    if value is None or value.keys() != {"compared", "differing"}:
        return None
    found = Comparison(compared=Counter(value["compared"]), differing=Counter(value["differing"]))
    # another version of this package may have other classes
    return found if found.compared and set(found.compared) | set(found.differing) <= set(CLASSES) else None
