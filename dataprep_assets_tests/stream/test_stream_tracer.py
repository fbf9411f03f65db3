"""Every document of a corpus is traced from every position and back, compared with an independent reader."""

import gzip
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from numpy.typing import NDArray

from dataprep_assets.curation.retractions import Retraction, add_retractions, hash_id_value
from dataprep_assets.engine.trace.place import TokenRange
from dataprep_assets.engine.trace.trace import Trace, TraceQuery, trace_documents
from dataprep_assets.errors import ConfigError, IntegrityError, MissingArtifactError, NotFoundError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.source_rows import build_corpus_tracer
from dataprep_assets.pipelines.corpus.view import artifact_name
from dataprep_assets.pipelines.corpus.views import VIEWS
from dataprep_assets.stream import stream_index
from dataprep_assets.stream.stream_index import count_at_most
from dataprep_assets.stream.stream_tracer import StreamTracer
from dataprep_assets_tests.fakes.places import Places
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.corpus.pipeline import run_pipeline, sample_declaration
from dataprep_assets_tests.pipelines.corpus.shards import SEPARATOR, bundle, reference_ids

WORDS = ["sea", "stone", "lamp", "river", "été", "夜", "wind"]
MDS = 16


def text(number: int) -> str:
    """Return one of a few texts of different lengths, so that some documents are equal."""
    return " ".join(WORDS[(number + at) % len(WORDS)] for at in range(number % 23))


def lines(first: int, *, blank: bool, bad: bool) -> list[bytes]:
    """Return forty rows of a file, with blank lines and bad records among them."""
    found = []
    for number in range(first, first + 40):
        if blank and number % 7 == 0:
            found.append(b"")
        elif bad and number % 11 == 5:
            found.append(b'{"id": "no text"}')
        else:
            found.append(json.dumps({"text": text(number), "id": f"doc-{number}"}).encode())
    return found


def write_source(folder: Path) -> dict[str, list[tuple[str, int, str, str]]]:
    """Write files of every kind; return split → file, row, text and id of each document, in the order of the
    manifest.
    """
    files: dict[str, list[bytes]] = {
        "train/c1/a.jsonl": lines(0, blank=True, bad=True),
        "train/c1/b.jsonl.zst": lines(40, blank=False, bad=True),
        "train/c2/c.jsonl.gz": lines(80, blank=True, bad=False),
        "train/c2/d.jsonl": [b"", b"{bad", b'{"text": "stone", "id": "doc-90000"}'],
        "train/c10/e.jsonl": lines(0, blank=False, bad=False),
        "val/f.jsonl": lines(200, blank=False, bad=False),
    }
    found: dict[str, list[tuple[str, int, str, str]]] = {"train": [], "val": []}
    for name, rows in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = b"\n".join(rows)
        pack = {".zst": zstandard.compress, ".gz": gzip.compress}.get(path.suffix, lambda raw: raw)
        path.write_bytes(pack(data))
        for row, line in enumerate(rows, 1):
            try:
                value = json.loads(line)
                found[name.split("/")[0]].append((name, row, value["text"], value["id"]))
            except (ValueError, KeyError):
                continue
    texts = [text(n) if n % 9 else None for n in range(300, 340)]
    ids = [f"doc-{n}" for n in range(300, 340)]
    pq.write_table(pa.table({"text": texts, "id": ids}), folder / "train" / "c10" / "g.parquet", row_group_size=16)
    rows = zip(texts, ids, strict=True)
    found["train"] += [("train/c10/g.parquet", n, t, i) for n, (t, i) in enumerate(rows, 1) if t is not None]
    return found


@dataclass(frozen=True)
class Built:
    """A finished corpus, and the contents of its source."""

    source: Path
    corpus: CorpusDeclaration
    root: Path
    documents: dict[str, list[tuple[str, int, str, str]]]

    def tracer(self, corpus: CorpusDeclaration | None = None, root: Path | None = None) -> StreamTracer:
        """Return the tracer of the corpus, or of a changed declaration or copy."""
        declared = corpus or self.corpus
        return build_corpus_tracer(declared, LocalArtifacts(root or self.root), corpus_specs(declared))


def declared(source: Path, **changes: Any) -> CorpusDeclaration:
    values: dict[str, Any] = {
        "include": ["**/*"],
        "splits": {"train": ["train/**"], "val": ["val/**"]},
        "views": list(VIEWS),
        "mds_sequence_length": MDS,
        "olmo_sequence_length": 32,
        "bad_records": {"policy": "drop", "budget": 1},
        "document": {"separator": SEPARATOR, "id_field": "id"},
    }
    return sample_declaration(source, **(values | changes))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("traced")
    documents = write_source(folder / "source")
    corpus = declared(folder / "source")
    assert not run_pipeline(corpus, folder / "root").failed
    return Built(folder / "source", corpus, folder / "root", documents)


def ids_at(root: Path, place: TokenRange, split: str) -> NDArray[Any]:
    """Return the ids at a position, read by code that is independent of this project."""
    path = root / place.artifact / place.file
    if path.suffix == ".parquet":
        row: Any = pq.read_table(path).column("input_ids")[place.at["row"]].as_py()
        return np.array(row[place.start : place.stop])
    if path.suffix == ".mds":
        samples = json.loads((path.parent / "index.json").read_bytes())["shards"][0]["samples"]
        held = np.frombuffer(path.read_bytes()[-samples * MDS * 4 :], "<i4")
        assert place.at["samples"] == sorted({at // MDS for at in range(place.start, place.stop)})
        return held[place.start : place.stop]
    assert place.itemsize == 2
    return np.fromfile(path, "<u2")[place.start : place.stop]


def test_every_document_is_at_every_reported_position(built: Built) -> None:
    tracer = built.tracer()
    separator = bundle().find_token(SEPARATOR, key="separator").id
    for split, documents in built.documents.items():
        expected = [[*ids, separator] for ids in reference_ids([text for _, _, text, _ in documents])]
        total = sum(map(len, expected))
        for number, (file, row, content, _) in enumerate(documents):
            (found,) = trace_documents(tracer, document=number, split=split)
            assert (found.split, found.document, found.source) == (split, number, f"{file}:{row}")
            assert found.text == content
            assert found.tokens == len(expected[number])
            names = dict.fromkeys(place.artifact.split("/")[1] for place in found.places)
            names.setdefault("mds_bins")  # the end of a split may be in no sample of MDS
            assert list(names)[:2] == ["token_bins", "combined_bins"]
            assert set(list(names)[2:]) == {artifact_name(view) for view in VIEWS}
            for place in found.places:
                ids = ids_at(built.root, place, split).tolist()
                if "mds_bins" in place.artifact:  # the tail after the last full sample is in no sample
                    assert expected[number][: len(ids)] == ids
                    assert len(ids) == len(expected[number]) or place.stop == total // MDS * MDS
                else:
                    assert ids == expected[number], place
                if "megatron_bins" in place.artifact:
                    assert place.at == {"sequence": number}
                if "olmo_bins" in place.artifact:
                    assert place.at == {"instances": sorted({at // 32 for at in range(place.start, place.stop)})}
    assert tracer.notes == ()


def test_a_row_of_plain_json_lines_has_a_byte_range_and_others_have_a_reason(built: Built) -> None:
    tracer = built.tracer()
    absent = {
        ".zst": "no byte range: the source file is compressed (zstd)",
        ".gz": "no byte range: the source file is compressed (gzip)",
        ".parquet": "no byte range: the source file is of format parquet",
    }
    for split, documents in built.documents.items():
        for number, (file, _, _, name) in enumerate(documents):
            (found,) = trace_documents(tracer, document=number, split=split)
            at = tracer.source_bytes(found)
            assert at is not None
            told = replace(found, source_bytes=at)
            if (why := absent.get(Path(file).suffix)) is not None:
                assert list(told.lines())[1] == f"  {why}"
                assert told.to_json()["source_bytes"] is None
                continue
            start, stop = told.to_json()["source_bytes"]
            assert json.loads((built.source / file).read_bytes()[start:stop])["id"] == name
            assert list(told.lines())[1] == f"  bytes [{start}, {stop}) of the source file"


def test_no_byte_range_is_given_for_a_changed_or_missing_source(built: Built, tmp_path: Path) -> None:
    shutil.copytree(built.source, tmp_path / "source")
    tracer = built.tracer(declared(tmp_path / "source"))
    (found,) = trace_documents(tracer, id="doc-205")
    assert found.file == "val/f.jsonl"
    path = tmp_path / "source" / found.file
    for change in (
        lambda data: data.replace(b"doc-205", b"doc-502"),  # the changed text has the same size
        lambda data: b"x" * len(data),
        lambda data: data + b"\n",
    ):
        path.write_bytes(change((built.source / found.file).read_bytes()))
        assert "has changed since" in str(tracer.source_bytes(found))
    path.unlink()
    assert "cannot be read: No such file" in str(tracer.source_bytes(found))


def test_every_kind_of_query_leads_to_the_document_and_back(built: Built) -> None:
    tracer = built.tracer()
    for split, documents in built.documents.items():
        for number, (file, row, _, name) in enumerate(documents):
            (found,) = tracer.find(TraceQuery(document=number, split=split))
            combined, shard = found.places[1], found.places[0]
            partition = shard.artifact.split("/")[2]
            same: list[dict[str, Any]] = [
                {"file": file, "row": row},
                {"token": combined.start, "split": split},
                {"token": combined.stop - 1, "split": split},
                {"token": shard.start, "shard": partition},
                {"document": shard.at["document"], "shard": partition},
                {"row": shard.at["document"], "shard": partition},
                {"megatron_index": number, "split": split},
            ]
            for question in same:
                assert trace_documents(tracer, **question) == [found], question
            by_id = trace_documents(tracer, id=name)
            assert found in by_id
            assert {one.source for one in by_id} == {
                f"{f}:{r}" for every in built.documents.values() for f, r, _, n in every if n == name
            }
            for samples in (place.at["samples"] for place in found.places if "mds_bins" in place.artifact):
                assert isinstance(samples, list)
                assert all(
                    found in trace_documents(tracer, view="mds", sample=sample, split=split) for sample in samples
                )


def test_a_row_that_is_not_a_document_is_reported_with_its_reason(built: Built) -> None:
    tracer = built.tracer()
    kept = {(file, row) for every in built.documents.values() for file, row, _, _ in every}
    for file in {file for file, _ in kept}:
        for row in range(0, 43):
            if (file, row) not in kept:
                with raises(NotFoundError, row, file):
                    trace_documents(tracer, file=file, row=row)
    with raises(NotFoundError, 6, "missing_text"):
        trace_documents(tracer, file="train/c1/a.jsonl", row=6)
    with raises(NotFoundError, 2, "bad_json"):
        trace_documents(tracer, file="train/c2/d.jsonl", row=2)
    with raises(NotFoundError, 1, "blank"):
        trace_documents(tracer, file="train/c1/a.jsonl", row=1)


def test_a_retracted_row_is_reported_as_such(built: Built, tmp_path: Path) -> None:
    root, source = shutil.copytree(built.root, tmp_path / "root"), shutil.copytree(built.source, tmp_path / "source")
    rows = {"train/c2/c.jsonl.gz": 2, "train/c10/g.parquet": 3, "val/f.jsonl": 40}
    every = [one for documents in built.documents.values() for one in documents]
    named = [i for file, row, _, i in every if rows.get(file) == row]
    corpus = declared(source, retractions=tmp_path / "retracted.jsonl")
    ids = corpus.document.ids(sensitive=False)
    assert ids is not None
    add_retractions(
        tmp_path / "retracted.jsonl", ids, [Retraction(hash=hash_id_value(one, ids), given=one) for one in named]
    )
    assert not run_pipeline(corpus, root).failed
    for file, row in rows.items():
        with raises(NotFoundError, row, file, "retracted"):
            trace_documents(built.tracer(corpus, root), file=file, row=row)
    (source / "val/f.jsonl").unlink()
    with raises(NotFoundError, 40, "blank"):
        trace_documents(built.tracer(corpus, root), file="val/f.jsonl", row=40)


@pytest.mark.parametrize(
    ("question", "values"),
    [
        ({"token": 10**9, "split": "train"}, ("token", 10**9, "train", 0)),
        ({"token": -1, "split": "val"}, ("token", -1, "val")),
        ({"document": 40, "split": "val"}, ("document", 40, "val")),
        ({"document": 0}, ("train, val", "shard")),
        ({"document": 0, "split": "test"}, ("'test'", "train, val")),
        ({"document": 0, "shard": "train-00009"}, ("'train-00009'", "train-00000, train-00001")),
        ({"file": "train/x.jsonl", "row": 1}, ("'train/x.jsonl'", "train/c1/a.jsonl")),
        ({"id": "nobody"}, ("sample_corpus", "id")),
        ({"view": "mds", "sample": 10**6, "split": "val"}, ("sample", 10**6, "mds", "val")),
    ],
)
def test_a_missing_document_is_reported_in_one_clear_line(
    built: Built, question: dict[str, Any], values: tuple[object, ...]
) -> None:
    with raises(NotFoundError, *values) as raised:
        trace_documents(built.tracer(), **question)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("question", "values"),
    [
        ({}, ("token, document",)),
        ({"token": 1, "document": 1}, ("token and document",)),
        ({"file": "f"}, ("row",)),
        ({"row": 1}, ("`file`", "`row`")),
        ({"token": 1, "shard": "train-00000", "file": "f"}, ("`file`", "`row`")),
        ({"npy_shard": "val_000000", "sample": 0, "split": "val"}, ("`split`", "`shard`")),
        ({"npy_shard": "train_000000"}, ("`sample`", "`view`", "`npy_shard`")),
        ({"text": "a"}, ("'id'", "`id`")),
        ({"npy_shard": "train_000000", "sample": 0}, ("npy_shard",)),
    ],
)
def test_an_unanswerable_query_is_refused(built: Built, question: dict[str, Any], values: tuple[object, ...]) -> None:
    with raises(ConfigError, *values):
        trace_documents(built.tracer(), **question)


def test_documents_are_found_by_their_text_if_no_id_is_declared(built: Built, tmp_path: Path) -> None:
    corpus = declared(built.source, document={"separator": SEPARATOR}, views=[])
    run_pipeline(corpus, tmp_path)
    tracer = build_corpus_tracer(corpus, LocalArtifacts(tmp_path), corpus_specs(corpus))
    for content in (text(3), text(22), ""):
        wanted = {f"{f}:{r}" for every in built.documents.values() for f, r, t, _ in every if t == content}
        assert {one.source for one in trace_documents(tracer, text=content)} == wanted
    with raises(NotFoundError, "sample_corpus", "text"):
        trace_documents(tracer, text=text(22), split="val")
    with raises(ConfigError, "`document.id_field`"):
        trace_documents(tracer, id="doc-1")
    with raises(IntegrityError, "`document`"):
        trace_documents(built.tracer(corpus=corpus), text=text(3))


def test_sensitive_documents_are_found_with_their_key_and_not_shown(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACED_KEY", "a key of thirty-two characters..")
    policy = {"separator": SEPARATOR, "id_field": "id", "id_key": {"env": "TRACED_KEY"}}
    keyed = declared(built.source, sensitive=True, document=policy, views=[])
    # Documents cannot be found by id without the id key, although the dataset's files can be read without the key.
    corpus = keyed.model_copy(update={"document": keyed.document.model_copy(update={"id_key": None})})
    run_pipeline(keyed, tmp_path)
    store = LocalArtifacts(tmp_path)
    (found,) = trace_documents(build_corpus_tracer(keyed, store, corpus_specs(keyed)), id="doc-301")
    assert found.source == "train/c10/g.parquet:2"
    assert found.text is None
    assert "text" not in found.to_json()
    with raises(ConfigError, "`document.id_key`"):
        trace_documents(build_corpus_tracer(corpus, store, corpus_specs(corpus)), id="doc-300")
    monkeypatch.setenv("TRACED_KEY", "another key of thirty-two chars.")
    with raises(IntegrityError, "`document`"):
        trace_documents(build_corpus_tracer(keyed, store, corpus_specs(keyed)), id="doc-300")


def test_artifacts_of_other_shards_are_reported_and_not_traced(built: Built, tmp_path: Path) -> None:
    document = type(built.corpus.document).model_validate({"separator": SEPARATOR, "bos": SEPARATOR})
    other = built.corpus.model_copy(update={"document": document})
    root = tmp_path / "root"
    run_pipeline(built.corpus, root)
    run_pipeline(other.model_copy(update={"views": ()}), root)  # this makes the views out of date
    tracer = build_corpus_tracer(other, LocalArtifacts(root), corpus_specs(other))
    (found,) = trace_documents(tracer, document=5, split="train")
    assert found.text == built.documents["train"][5][2]
    assert [place.artifact.split("/")[1] for place in found.places] == ["token_bins", "combined_bins"]
    assert len(tracer.notes) == 6
    assert all("Run the dataset first" in note for note in tracer.notes)


def test_a_missing_shard_is_named(built: Built, tmp_path: Path) -> None:
    root = tmp_path / "root"
    run_pipeline(built.corpus.model_copy(update={"views": ()}), root)
    (root / "sample_corpus" / "token_bins" / "train-00001" / "receipt.json").unlink()
    with raises(MissingArtifactError, 1, "sample_corpus", "train-00001"):
        built.tracer(root=root)


def test_lines_for_a_user_start_with_the_source(built: Built) -> None:
    (found,) = trace_documents(built.tracer(), file="train/c1/b.jsonl.zst", row=2)
    told = list(found.lines())
    assert told[0] == "train/c1/b.jsonl.zst:2"
    assert any(line.startswith("  sample_corpus/megatron_bins: train.bin: tokens [") for line in told)
    assert told[-1].startswith("  text: '")
    long = replace(found.places[0], at={"samples": [3, 4, 5], "sample_ids": [9, 2, 7, 1, 8]})
    assert list(replace(found, places=(long,)).lines())[2].endswith("samples 3 to 5, sample ids 9, 2, 7, 1 and 1 more")
    assert list(replace(found, text="x" * 500).lines())[-1].endswith("and 100 more characters")
    value = json.loads(json.dumps(found.to_json()))
    assert value["source"] == told[0]
    assert value["places"][0]["bytes"] == [2 * at for at in value["places"][0]["tokens"]]


# --- a bucket


@pytest.mark.slow
def test_a_bucket_gives_the_same_answers_and_token_files_are_not_downloaded(
    built: Built, tmp_path: Path, servers: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_index, "_PAGE", 8)
    monkeypatch.setattr(stream_index, "_BLOCK", 16)
    place = servers.new("folder")
    run_pipeline(built.corpus, BucketArtifacts(tmp_path / "build", place, place.url, 1 << 30), 1)
    tracer = build_corpus_tracer(
        built.corpus,
        BucketArtifacts(tmp_path / "fresh", place, place.url, 1 << 30),
        corpus_specs(built.corpus),
    )
    local = built.tracer()

    def both(**question: Any) -> list[Trace]:
        found = trace_documents(tracer, **question)
        assert found == trace_documents(local, **question)
        return found

    for number in range(0, 100, 9):
        (found,) = both(document=number, split="train")
        both(token=found.places[1].start, split="train")
        both(file=found.file, row=found.row)
    both(id="doc-7")
    assert not [path for path in (tmp_path / "fresh").rglob("*") if path.name in ("tokens.bin", "train.bin")]


class Remote:
    """The part of `RemoteTokens` that a search uses: slices and a length, but no array."""

    def __init__(self, numbers: NDArray[np.uint64]) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: slice) -> NDArray[np.uint64]:
        return self._numbers[index]


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 17, 64])
def test_a_remote_search_equals_that_of_numpy(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_index, "_PAGE", 4)
    numbers = np.sort(np.random.default_rng(size).integers(0, 50, size)).astype(np.uint64)
    for value in range(-0, 52):
        assert count_at_most(Remote(numbers), value) == int(np.searchsorted(numbers, value, side="right"))  # type: ignore[arg-type]
