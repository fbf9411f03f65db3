"""The comparison on the adversarial set runs once per tokenizer and engines, and again if one of them changes."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from dataprep_assets.tokenization.certificate import compare, compare_on_adversarial_set
from dataprep_assets.tokenization.engines import EncodedTexts, Engine, FastokensEngine, ReferenceEngine
from dataprep_assets_tests.tokenization.chat.tokenizers import chat_bundle


class Watched:
    """An engine that counts the documents that it encodes."""

    def __init__(self, engine: Engine, version: str | None = None) -> None:
        self._engine, self.name, self.version, self.documents = engine, engine.name, version or engine.version, 0

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        self.documents += len(texts)
        return self._engine.encode(texts)


def test_the_comparison_runs_once_and_again_for_another_engine_or_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bundle = chat_bundle()
    engine, reference = Watched(FastokensEngine(bundle, "text")), ReferenceEngine(bundle, "text")
    expected = compare(bundle, engine, reference)
    made = engine.documents
    assert made > 1000
    for _ in range(2):
        assert compare_on_adversarial_set(bundle, "text", engine, reference) == expected
    assert engine.documents == 2 * made, "once by the comparison above, once by the first of these"
    (file,) = (tmp_path / "dataprep-assets" / "adversarial").iterdir()
    whole = file.read_bytes()
    for damaged in (whole[:-5], b'{"compared": {"ascii": -1}, "differing": {}}'):
        file.write_bytes(damaged)
        before = engine.documents
        assert compare_on_adversarial_set(bundle, "text", engine, reference) == expected
        assert engine.documents == before + made, damaged
        assert file.read_bytes() == whole
    newer = Watched(FastokensEngine(bundle, "text"), version="99")
    compare_on_adversarial_set(bundle, "text", newer, reference)
    assert newer.documents == made
    assert len(list(file.parent.iterdir())) == 2


@pytest.mark.parametrize("home", ["HERE/file", "~no_such_user"])
def test_a_read_only_or_missing_home_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", home.replace("HERE", str(tmp_path)))
    (tmp_path / "file").write_text("in the way")
    bundle = chat_bundle()
    engine, reference = FastokensEngine(bundle, "text"), ReferenceEngine(bundle, "text")
    assert compare_on_adversarial_set(bundle, "text", engine, reference).compared["ascii"] > 100
