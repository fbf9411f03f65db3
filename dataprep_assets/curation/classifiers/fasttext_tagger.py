"""A tagger that writes the probability of a label of the user's fastText model.

The model reads the text as one line, as fastText was trained: line ends become blanks. It needs the extra `fasttext`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dataprep_assets.curation.classifiers.model_files import ModelFiles
from dataprep_assets.curation.module_code import digest_file
from dataprep_assets.curation.table import DocumentBatch
from dataprep_assets.curation.tagging import VersionedTagger
from dataprep_assets.integrity.receipt import require_installed_version
from dataprep_assets.stores.files import cache_by_file

_PACKAGE = "fasttext-community"
_MAX_LABELS = 10
"""Maximum number of a model's labels in a message."""


@dataclass(frozen=True, kw_only=True)
class FastTextTagger(VersionedTagger):
    """A fastText model, and the label whose probability is written.

    Attributes:
        model: The model's file.
        label: The label.
    """

    model: ModelFiles
    label: str

    @property
    def version(self) -> str:
        version = _require_version()
        digest = digest_file(self.model.require())
        return f"1, {_PACKAGE} {version}, {self.label} of {' '.join(filter(None, (self.model.commit, digest)))}"

    @property
    def is_local(self) -> bool:
        return self.model.is_local()

    def tag_batch(self, batch: DocumentBatch) -> Mapping[str, Sequence[Any]]:
        _require_version()
        model = self._load_model()
        # Replace surrogates, because fastText only accepts text that can be encoded as UTF-8.
        lines = [" ".join(text.strip().splitlines()).encode(errors="replace").decode() for text in batch.texts]
        labels, shares = model.predict(lines, k=-1) if lines else ((), ())
        scores = [
            _find_score(self.label, *prediction) if line else None
            for line, *prediction in zip(lines, labels, shares, strict=True)
        ]
        return dict.fromkeys(self.columns, scores)

    def _load_model(self) -> Any:
        """Return the model. Raises ConfigError if the file is not a model, or has no such label."""
        path = self.model.require()
        try:
            model = _load_file(str(path))
        except (ValueError, MemoryError) as error:
            raise self.model.build_error(
                "", f"is not a fastText model ({error}). Set `model` to a `.bin` or `.ftz` file"
            ) from error
        labels = model.get_labels()
        if self.label not in labels:
            names = ", ".join(labels[:_MAX_LABELS]) + (", …" if len(labels) > _MAX_LABELS else "")
            raise self.model.build_error("", f"no label {self.label!r}. Available: {names}")
        return model


def _require_version() -> str:
    return require_installed_version("tag: fasttext", _PACKAGE, "fasttext")


def _find_score(label: str, labels: Sequence[str], shares: Sequence[float]) -> float:
    share = next((share for name, share in zip(labels, shares, strict=True) if name == label), 0.0)
    # Round, because the last digits may differ between processors. FastText adds 0.00001 to each probability, so the
    # result may exceed 1.
    return round(min(float(share), 1.0), 6)


@cache_by_file
def _load_file(path: str) -> Any:
    import fasttext  # type: ignore[import-untyped]

    return fasttext.load_model(path)
