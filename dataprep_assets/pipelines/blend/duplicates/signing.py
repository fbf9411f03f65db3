"""The settings that determine the signatures of a blend's rows.

Entry point: `load_signing`.
"""

from dataprep_assets.curation.duplicates.signatures import SignatureSettings
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.removal.row_ids import load_blend_ids


def load_signing(blend: BlendDeclaration) -> SignatureSettings:
    """Return the settings of the signatures. Raises ConfigError if the library or the declared key is missing."""
    assert blend.duplicates is not None
    ids = load_blend_ids(blend)
    return blend.duplicates.build_signature_settings(
        None if ids is None else ids.key, None if ids is None else ids.key_digest
    )
