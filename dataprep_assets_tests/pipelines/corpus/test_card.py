"""The data card of a corpus: mlcroissant reads the documents through it, and its sources have public names."""

from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest
from dataprep_assets.engine.card.card import DATA_CARD
from dataprep_assets.engine.card.contents import PAGE
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import find_installed_version
from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.stream.declaration import HubCacheSource, HubSource, LocalSource, ObjectStoreSource
from dataprep_assets.stream.source import describe_card_source
from dataprep_assets_tests.pipelines.corpus.pipeline import run_pipeline, sample_declaration
from dataprep_assets_tests.samples import SAMPLE, SMALL

LICENSE = "CC0-1.0 OR Apache-2.0"


def declared(license: str = LICENSE) -> CorpusDeclaration:
    """Return the sample with two views and the reference engine, which needs no certificate and so saves most of the
    time.
    """
    made = sample_declaration(views=["nanogpt", "hf_parquet"])
    source = LocalSource(kind="local", path=SMALL, license=license)
    tokenizer = made.tokenizer.model_copy(update={"engine": "tokenizers"})
    return made.model_copy(update={"source": source, "tokenizer": tokenizer})


def card_of(corpus: CorpusDeclaration) -> ArtifactSpec:
    return TokenizedCorpus(corpus).spec(DATA_CARD)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LocalArtifacts:
    """Return a built corpus with its card."""
    found = LocalArtifacts(tmp_path_factory.mktemp("root"))
    assert run_pipeline(declared(), found).failed == {}
    (outcome,) = card_of(declared()).build(BuildRequest(store=found))
    assert outcome.error is None
    return found


def test_the_documents_can_be_read_with_only_the_card(store: LocalArtifacts) -> None:
    """mlcroissant finds the Parquet files, their column and their rows in `croissant.json`."""
    mlcroissant = pytest.importorskip("mlcroissant", reason="validates Croissant: install the extra dev")
    directory = store.directory(declared().artifact(DATA_CARD))
    dataset = mlcroissant.Dataset(jsonld=str(directory / "croissant.json"))
    assert dataset.metadata.ctx.issues.errors == set()
    assert dataset.metadata.license == [LICENSE]
    counts = {}
    for split in ("train", "val", "test"):
        rows = [record[f"hf_parquet_bins/{split}/input_ids"] for record in dataset.records(f"hf_parquet_bins/{split}")]
        counts[split] = (len(rows), sum(map(len, rows)))
    for split, (documents, tokens) in counts.items():
        ledger = store.require(declared().artifact("combined_bins", split)).ledger
        assert ledger is not None
        assert (documents, tokens) == (ledger.documents, ledger.tokens)


def test_every_file_of_the_views_is_described_with_its_path(store: LocalArtifacts) -> None:
    mlcroissant = pytest.importorskip("mlcroissant", reason="validates Croissant: install the extra dev")
    directory = store.directory(declared().artifact(DATA_CARD))
    files = mlcroissant.Dataset(jsonld=str(directory / "croissant.json")).metadata.file_objects
    receipts = [store.require(declared().artifact(f"{view}_bins")) for view in ("nanogpt", "hf_parquet")]
    assert {(file.id, file.sha256) for file in files} == {
        (f"{receipt.artifact}/{record.path}", record.sha256) for receipt in receipts for record in receipt.files
    }
    assert all((directory / file.content_url).is_file() for file in files)


def test_the_page_counts_by_split_and_names_the_tokenizer(store: LocalArtifacts) -> None:
    page = (store.directory(declared().artifact(DATA_CARD)) / PAGE).read_text()
    assert "| train | 7 | 140 | 140 | 75,344 |" in page
    assert "* token that ends a document: 4094 `<|endoftext|>`" in page
    assert f"| local files | local | – | – | 9 | 95,217 | {LICENSE} | – |" in page
    tables = "letters by Unicode 16.0, normalization by Unicode 9.0"
    assert f"* Unicode versions of Hugging Face tokenizers: {tables}" in page
    assert (
        f"* engine: tokenizers {find_installed_version('tokenizers')} (the declaration asks for the reference engine)"
        in page
    )
    assert str(SAMPLE) not in page


def test_a_license_changes_only_the_bytes_of_the_card(store: LocalArtifacts) -> None:
    other = declared("MIT")
    assert run_pipeline(other, store).built == []
    (made,), (now,) = (card_of(corpus).recipes(store, [None]) for corpus in (declared(), other))
    assert made.key != now.key


@pytest.mark.parametrize(
    ("source", "name", "place"),
    [
        (LocalSource(kind="local", path=Path("/home/me/secret")), "local files", None),
        (HubSource(kind="hub", repo="a/b", revision="main"), "a/b", "hf://datasets/a/b"),
        (HubCacheSource(kind="hf_cache", path=Path("/home/me/datasets--a--b")), "a/b", "hf://datasets/a/b"),
        (HubCacheSource(kind="hf_cache", path=Path("/home/me/mirror")), "local files", None),
        (
            ObjectStoreSource(kind="object_store", url="s3://bucket/x", cache_dir=Path("/home/me/cache")),
            "s3://bucket/x",
            "s3://bucket/x",
        ),
    ],
)
def test_a_source_is_named_by_its_public_name(source: Any, name: str, place: str | None) -> None:
    found = describe_card_source(source)
    assert (found.name, found.place) == (name, place)
    assert "/home/me" not in repr(found)
