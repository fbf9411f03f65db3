"""Typed facts: what an artifact's receipt says beyond its files and counts, declared beside the artifact.

An artifact's module declares one subclass; its build makes an instance, and readers of the receipt use the class::

    class CombinedBinsFacts(Facts):
        dtype: str
        shards: int

    Written(facts=CombinedBinsFacts(dtype="uint16", shards=3))
    CombinedBinsFacts.of(receipt).shards

A receipt on disk has the same names as JSON. A field that was not set is not written, so a fact that only some
artifacts have does not appear in the others.
"""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.receipt import Receipt


class Facts(BaseModel):
    """Base class of an artifact's facts, see the module. Unknown facts, from a newer version, are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @classmethod
    def of(cls, receipt: Receipt) -> Self:
        """The facts of a receipt.

        Raises IntegrityError, naming artifact and fact, if one is missing or has a wrong type.
        """
        try:
            return cls.model_validate(dict(receipt.facts))
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:3])
            name = "/".join(filter(None, (receipt.dataset, receipt.artifact, receipt.partition)))
            raise IntegrityError(
                f"{name}: the facts of its receipt are not those of this artifact ({wrong}). Rebuild the artifact"
            ) from None

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON values for the receipt."""
        return self.model_dump(mode="json", exclude_unset=True)
