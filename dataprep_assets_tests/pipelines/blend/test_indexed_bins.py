"""Tests of Megatron's bin and idx files of a blend's shards: each source document once, as declared."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import BadRecordError, ConfigError
from dataprep_assets.formats import flat_bins, megatron
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import Ledger
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.indexed_bins import prepare_indexed_bins_shards
from dataprep_assets.pipelines.blend.plan.blend_plan import build_blend_plan
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.stream import choose_dtype
from dataprep_assets.stream.token_shard import TokenShard
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.blend.pipeline import (
    SEPARATOR,
    build_shards,
    declare_pretraining,
    make_text,
    make_texts,
    write_rows,
    write_small_sources,
)
from dataprep_assets_tests.pipelines.corpus.pipeline import Outcome
from dataprep_assets_tests.pipelines.corpus.shards import reference_ids
from dataprep_assets_tests.samples import SAMPLE

BUNDLE = TokenizerBundle.load(SAMPLE / "tokenizer")
EOS = BUNDLE.find_token(SEPARATOR, key="separator").id


def _built(blend: BlendDeclaration, root: Path, workers: int = 1) -> tuple[list[TokenShard], Outcome]:
    store, outcome = LocalArtifacts(root), Outcome()
    build_blend_plan(blend, store)
    plan = load_blend_plan(blend, store)
    build_shards(blend, store, plan, workers, outcome)
    return prepare_indexed_bins_shards(blend, store, plan, plan.partitions), outcome


def _read_documents(work: TokenShard) -> list[list[int]]:
    """Return the ids of each sequence of a shard, according to its idx."""
    index = megatron.read_idx(work.directory / "tokens.idx")
    ids = flat_bins.open_tokens(work.directory / "tokens.bin", index.dtype)
    width = flat_bins.token_dtype(index.dtype).itemsize
    starts = (np.asarray(index.pointers) // width).tolist()
    return [ids[s : s + n].tolist() for s, n in zip(starts, index.lengths.tolist(), strict=True)]


def _ledger(works: list[TokenShard]) -> Ledger:
    ledgers = [work.store.require(work.artifact).ledger for work in works]
    return Ledger.total(ledger for ledger in ledgers if ledger is not None)


def _build_one(
    tmp_path: Path, rows: list[Any], name: str = "a.jsonl", **changes: Any
) -> tuple[list[TokenShard], Outcome]:
    """Return the shards of one dataset with these rows."""
    path = write_rows(tmp_path / name, rows)
    changes = {"num_shards": 1, "blend": {"datasets": [{"name": "a", "path": str(path)}]}} | changes
    return _built(declare_pretraining(tmp_path, **changes), tmp_path / "out")


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_every_document_is_stored_once_with_its_separator(tmp_path: Path, shards: int) -> None:
    works, outcome = _built(
        declare_pretraining(write_small_sources(tmp_path / "s"), num_shards=shards), tmp_path / "out", 2
    )
    assert not outcome.failed
    for name, count in (("code", 90), ("web", 60)):
        wanted = [[*ids, EOS] for ids in reference_ids([make_text(name, row) for row in range(count)])]
        stored = [d for w in works if w.partition.startswith(name) for d in _read_documents(w)]
        assert sorted(stored) == sorted(wanted)
        if shards == 1:
            assert stored == wanted  # in a single shard, the documents are in the order of the files


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst", "a.jsonl.gz", "a.json", "a.json.gz", "a.parquet"])
def test_every_format_gives_the_same_bytes(tmp_path: Path, name: str) -> None:
    (work,), _ = _build_one(tmp_path, make_texts("a", 20), name)
    assert _read_documents(work) == [[*ids, EOS] for ids in reference_ids([make_text("a", row) for row in range(20)])]


def test_a_json_array_is_read_as_its_elements(tmp_path: Path) -> None:
    import json

    (tmp_path / "a.json").write_text(json.dumps(make_texts("a", 9), indent=1))
    blend = declare_pretraining(
        tmp_path, num_shards=2, blend={"datasets": [{"name": "a", "path": str(tmp_path / "a.json")}]}
    )
    works, _ = _built(blend, tmp_path / "out")
    assert [len(_read_documents(work)) for work in works] == [4, 5]


def test_bos_and_eos_are_added_as_declared(tmp_path: Path) -> None:
    ids = reference_ids([make_text("a", 0)])[0]
    for add_eos, name in ((True, "with"), (False, "without")):
        options = {"separator": SEPARATOR, "add_eos": add_eos}
        (work,), _ = _build_one(tmp_path / name, make_texts("a", 1), pretrain=options)
        assert _read_documents(work) == [[*ids, *([EOS] if add_eos else [])]]
        assert _ledger([work]).separators == int(add_eos)


def test_short_documents_are_filtered_and_counted_without_an_error(tmp_path: Path) -> None:
    import json
    import shutil

    tokenizer = shutil.copytree(SAMPLE / "tokenizer", tmp_path / "tokenizer")
    config = json.loads((tokenizer / "tokenizer_config.json").read_bytes()) | {"bos_token": SEPARATOR}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(config))
    options = {"separator": SEPARATOR, "add_bos": True}
    (work,), _ = _build_one(tmp_path, make_texts("a", 2), pretrain=options, tokenizer={"path": tokenizer})
    assert _read_documents(work) == [[EOS, *ids, EOS] for ids in reference_ids([make_text("a", 0), make_text("a", 1)])]


def test_short_documents_are_filtered_counted_and_no_fault(tmp_path: Path) -> None:
    rows = [{"text": "x" * n} for n in (1, 20, 2, 30, 19)]
    options = {"separator": SEPARATOR, "min_doc_chars": 20}
    (work,), _ = _build_one(tmp_path, rows, pretrain=options)
    assert _read_documents(work) == [[*ids, EOS] for ids in reference_ids(["x" * 20, "x" * 30])]
    ledger = _ledger([work])
    assert (ledger.rows_in, ledger.documents, ledger.dropped) == (5, 2, {"below_min_doc_chars": 3})


def test_long_documents_are_truncated_and_still_end_with_the_separator(tmp_path: Path) -> None:
    """They are truncated before the separator is appended, so that every document ends with it.

    See docs/formats/megatron.md#invariants.
    """
    rows = [{"text": make_text("a", row, words)} for row, words in enumerate((1, 50, 2, 80, 1))]
    options = {"separator": SEPARATOR, "max_doc_tokens": 12}
    (work,), _ = _build_one(tmp_path, rows, pretrain=options)
    wanted = [[*ids[:11], EOS] for ids in reference_ids([row["text"] for row in rows])]
    assert _read_documents(work) == wanted
    assert max(map(len, wanted)) == 12
    assert work.store.require(work.artifact).facts["truncated"] == sum(len(d) == 12 for d in wanted)


def test_empty_documents_become_separators_or_are_dropped(tmp_path: Path) -> None:
    rows = [{"text": t} for t in ("", "a", "", "b", "")]
    (work,), _ = _build_one(tmp_path / "eos", rows)
    assert [len(d) for d in _read_documents(work)] == [1, 2, 1, 2, 1]
    (work,), _ = _build_one(tmp_path / "none", rows, pretrain={"separator": SEPARATOR, "add_eos": False})
    assert [len(d) for d in _read_documents(work)] == [1, 1]  # empty documents are dropped, because they have no tokens
    assert _ledger([work]).dropped == {"no_tokens": 3}


def test_max_rows_limits_each_shard(tmp_path: Path) -> None:
    works, _ = _build_one(tmp_path, make_texts("a", 20), num_shards=2, max_rows=3)
    assert [d[-1] for w in works for d in _read_documents(w)] == [EOS] * 6
    stored = [d for w in works for d in _read_documents(w)]
    assert stored == [[*i, EOS] for i in reference_ids([make_text("a", r) for r in (0, 1, 2, 10, 11, 12)])]


def test_more_shards_than_rows_give_valid_empty_shards(tmp_path: Path) -> None:
    works, outcome = _build_one(tmp_path, make_texts("a", 3), num_shards=5)
    assert not outcome.failed
    assert sorted(len(_read_documents(work)) for work in works) == [0, 0, 1, 1, 1]


def test_a_bad_row_stops_its_shard_or_is_dropped_and_named(tmp_path: Path) -> None:
    rows = [*make_texts("a", 3), {"text": 7}, *make_texts("a", 3, 3)]
    _, outcome = _build_one(tmp_path, rows)
    (error,) = outcome.failed.values()
    assert isinstance(error, BadRecordError)
    assert "row 4" in str(error)
    works, outcome = _build_one(tmp_path, rows, bad_records={"policy": "drop", "budget": 0.5})
    assert not outcome.failed
    assert _ledger(works).dropped == {"text_not_a_string": 1}
    assert sum(len(_read_documents(work)) for work in works) == 6


def test_one_unstorable_document_duplicates_or_loses_no_other(tmp_path: Path) -> None:
    """Upstream's bisecting retry stored 11 documents of 8, one of which was bad.

    See docs/formats/shard-plan.md#bisecting-retry.
    """
    rows = [*make_texts("a", 4), {"text": None}, *make_texts("a", 3, 4)]
    works, _ = _build_one(tmp_path, rows, bad_records={"policy": "drop", "budget": 0.5})
    stored = [d for w in works for d in _read_documents(w)]
    assert stored == [[*ids, EOS] for ids in reference_ids([make_text("a", row) for row in range(7)])]


def _tokenizer_of(folder: Path, size: int) -> Path:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    folder.mkdir()
    Tokenizer(WordLevel({f"w{i}": i for i in range(size)}, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(("size", "wanted"), [(65_499, "uint16"), (65_500, "uint32"), (65_537, "uint32")])
def test_the_dtype_is_megatrons_and_one_that_is_too_small_is_refused(tmp_path: Path, size: int, wanted: str) -> None:
    tokenizer = {"path": _tokenizer_of(tmp_path / "tokenizer", size)}

    def declared(dtype: str) -> str:
        return choose_dtype(declare_pretraining(tmp_path, tokenizer=tokenizer, pretrain={"dtype": dtype}))

    assert declared("auto") == wanted
    assert declared("int32") == "uint32"
    if size > 65_536:
        with raises(ConfigError, 65_537):
            declared("uint16")
    else:
        assert declared("uint16") == "uint16"


def test_int32_is_written_with_megatrons_code(tmp_path: Path) -> None:
    (work,), _ = _build_one(tmp_path, make_texts("a", 2), pretrain={"separator": SEPARATOR, "dtype": "int32"})
    assert (work.directory / "tokens.idx").read_bytes()[17] == 4
    assert work.directory.joinpath("tokens.bin").stat().st_size == 4 * _ledger([work]).tokens


def test_a_second_run_does_nothing_and_a_truncated_bin_is_found(tmp_path: Path) -> None:
    """Upstream treats a `.bin` of 3 bytes as finished (docs/formats/shard-plan.md#resume)."""
    blend = declare_pretraining(write_small_sources(tmp_path / "s"))
    works, _ = _built(blend, tmp_path / "out")
    _, again = _built(blend, tmp_path / "out")
    assert not again.built
    path = works[0].directory / "tokens.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:3])
    _, mended = _built(blend, tmp_path / "out")
    assert mended.built == [f"indexed_bins/{works[0].partition}"]
    assert path.read_bytes() == whole


def test_force_rebuilds_everything(tmp_path: Path) -> None:
    blend = declare_pretraining(write_small_sources(tmp_path / "s"))
    works, _ = _built(blend, tmp_path / "out")
    _, again = _built(declare_pretraining(tmp_path / "s", force="once more"), tmp_path / "out")
    assert {f"indexed_bins/{work.partition}" for work in works} <= {*again.built}


def test_keys_distinguish_ranges_and_options_and_old_keys_are_unchanged(tmp_path: Path) -> None:
    (work, *_), _ = _built(declare_pretraining(write_small_sources(tmp_path / "s")), tmp_path / "out")
    plain = replace(work, megatron=False, files=tuple(replace(f, rows=None) for f in work.files))
    others = [
        replace(plain, megatron=True),
        replace(plain, salt="x"),
        replace(plain, files=work.files),
        replace(plain, plan=replace(plain.plan, min_characters=5)),
        replace(plain, plan=replace(plain.plan, max_tokens=5)),
        replace(plain, plan=replace(plain.plan, separator_id=None)),
    ]
    keys = [work_.key for work_ in (plain, *others)]
    assert len(set(keys)) == len(keys)
