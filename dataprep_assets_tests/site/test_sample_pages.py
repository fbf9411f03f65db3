"""Pages with samples show what the trainers' files contain, and dropped rows with the reason."""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.trace.trace import TraceQuery
from dataprep_assets.errors import IntegrityError, SourceError
from dataprep_assets.formats.conversations import sft_rows
from dataprep_assets.formats.conversations.labeled_tokens import UNTRAINED
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.dataset import Blend
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.sft.message_tokens import MessageTokens
from dataprep_assets.pipelines.corpus.dataset import Corpus
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.site.pages import PageEnvironment
from dataprep_assets.site.samples import SamplePage, list_sample_pages
from dataprep_assets.site.stored import StoredDataset
from dataprep_assets.stream.tokenizer import load_declared_tokenizer
from dataprep_assets_tests.engine.building import build_all, build_source, dump_declaration, redeclare
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.blend.pipeline import write_rows
from dataprep_assets_tests.pipelines.blend.sft.conversations import make_conversation
from dataprep_assets_tests.samples import SAMPLE
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer

pytestmark = pytest.mark.slow

HOSTILE = 'A <script>alert("x")</script> page </span></div> with \u202ehidden\u202c and \u200bzero\x1b[2J & <b>bold</b>'
QUESTION = "Which of the three lamps on the northern pier was lit on the night when the ferry came in late?"
SENTENCES = [f"Sentence {number} of the page names the word w{number} once." for number in range(12)]


def render(pages: list[SamplePage], slug: str) -> str:
    (page,) = [page for page in pages if page.slug == slug]
    return page.render(PageEnvironment())


def read_items(page: str) -> list[str]:
    """Return the HTML of each row of a page."""
    return re.findall(r"<article .*?</article>", page, re.DOTALL)


def read_text(html: str) -> str:
    """Return the text of HTML, without its elements."""
    return unescape(re.sub(r"<[^>]*>", "", html))


def read_panels(item: str) -> dict[str, str]:
    """Return the HTML of each panel of a row, by its heading."""
    panels = re.findall(r'<section class="panel">\s*<h3>(.*?)</h3>\s*<div[^>]*>(.*?)</div>', item, re.DOTALL)
    return {read_text(heading): text for heading, text in panels}


@pytest.fixture(scope="module")
def pages_corpus(tmp_path_factory: pytest.TempPathFactory) -> StoredDataset:
    """Return a corpus with a hostile document, a short one, a near-duplicate, and one with a benchmark item."""
    pytest.importorskip("rensa", reason="the extra `duplicates`")
    home = tmp_path_factory.mktemp("pages")
    texts = [
        f"{HOSTILE} {' '.join(SENTENCES)}",
        "too short",
        " ".join(["First", *SENTENCES[::-1]]),
        " ".join(["Second", *SENTENCES[::-1]]),
        f"{' '.join(SENTENCES[::2])} {QUESTION.upper()} The end.",
        "夜é " * 2_000,
    ]
    (home / "data" / "train").mkdir(parents=True)
    lines = [json.dumps({"text": text}) for text in texts]
    (home / "data" / "train" / "a b<i>.jsonl").write_text("\n".join([*lines, "{bad"]) + "\n")
    (home / "quiz.jsonl").write_text(json.dumps({"question": QUESTION}) + "\n")
    corpus = CorpusDeclaration.model_validate(
        {
            "dataset": "pages",
            "source": {"kind": "local", "path": home / "data"},
            "include": ["**/*.jsonl"],
            "splits": {"train": ["train/**"]},
            "tokenizer": {"path": SAMPLE / "tokenizer", "name": "sample", "engine": "tokenizers"},
            "document": {"separator": "<|endoftext|>"},
            "tag": ["gopher"],
            "drop": {"short": "words < 5"},
            "duplicates": {"threshold": 0.7},
            "decontaminate": {"sets": {"quiz": "quiz.jsonl"}},
            "bad_records": {"policy": "drop", "budget": 0.5},
            "views": ["nanogpt", "megatron"],
        }
    ).resolve_paths(home)
    store = LocalArtifacts(home / "artifacts")
    dataset = Corpus(corpus)
    build_all(dataset.specs, store)
    return StoredDataset(dataset, store)


def test_a_corpus_has_a_page_of_kept_rows_and_a_page_per_reason(pages_corpus: StoredDataset) -> None:
    pages = list_sample_pages(pages_corpus)
    assert pages[0].slug == "kept"
    assert {page.slug for page in pages[1:]} == {
        "dropped-short",
        "near-duplicates",
        "contaminated",
        "dropped-bad_json",
    }
    assert len({page.digest for page in pages}) == len(pages)


def test_pages_of_the_same_artifacts_are_the_same_bytes(pages_corpus: StoredDataset) -> None:
    again = StoredDataset(pages_corpus.component, pages_corpus.store)
    first, second = list_sample_pages(pages_corpus), list_sample_pages(again)
    assert [page.digest for page in first] == [page.digest for page in second]
    assert [page.render(PageEnvironment()) for page in first] == [page.render(PageEnvironment()) for page in second]


def test_kept_texts_are_the_tokens_of_the_trainers_file(pages_corpus: StoredDataset) -> None:
    corpus, store = pages_corpus.component.declaration, pages_corpus.store
    assert isinstance(corpus, CorpusDeclaration)
    assert isinstance(store, LocalArtifacts)
    ids = np.fromfile(store.directory(corpus.artifact("nanogpt_bins")) / "train.bin", np.uint16)
    decode = load_declared_tokenizer(corpus.tokenizer).decode
    documents = [part + "<|endoftext|>" for part in decode(ids).split("<|endoftext|>")[:-1]]
    page = render(list_sample_pages(pages_corpus), "kept")
    items = read_items(page)
    assert len(items) == len(documents) == 3
    assert_names(page, "All rows (3)")
    for item, document in zip(items, documents, strict=True):
        (panel,) = read_panels(item).values()
        tokens = re.findall(r"<span>(.*?)</span>(?!</span>\])", panel, re.DOTALL)
        assert tokens
        shown = read_text(re.sub(r'<span class="hidden-character".*?</span>', "", panel))
        hidden = re.compile("[\u200b\u202e\u202c\x1b]")
        expected = hidden.sub("", document)
        assert expected.startswith(shown)
        more = re.search(r"… and ([\d,]+) more tokens?", item)
        assert (more is None) == (expected == shown)
        assert "pages/nanogpt_bins/train.bin, tokens " in item
        assert "<dt>words</dt><dd>" in item


def test_hashes_of_ids_are_not_shown(pages_corpus: StoredDataset) -> None:
    hashes = {row["id"] for row in pages_corpus.component.documents(pages_corpus.store).rows(columns=["id"])} - {None}
    assert len(hashes) == 6
    for page in list_sample_pages(pages_corpus):
        html = page.render(PageEnvironment())
        assert not any(hashed in html for hashed in hashes)


def test_hostile_texts_and_file_names_are_shown_as_text(pages_corpus: StoredDataset) -> None:
    for page in list_sample_pages(pages_corpus):
        html = page.render(PageEnvironment())
        assert "<script>alert" not in html
        assert "a b<i>" not in html
        assert html.count("<script") == 1  # the site's own
        for character in "\u202e\u202c\u200b\x1b":
            assert character not in html
    items = read_items(render(list_sample_pages(pages_corpus), "kept"))
    (item,) = [item for item in items if '<script>alert("x")</script>' in read_text(item)]
    assert 'title="U+202E RIGHT-TO-LEFT OVERRIDE">U+202E</span>' in item
    assert ">ESC</span>" in item
    assert "a b&lt;i&gt;.jsonl:1" in item
    (command,) = re.findall("<code>(dataprep trace .*?)</code>", item)
    options = {"--file": "train/a b<i>.jsonl", "--row": "1", "--split": "train"}
    assert shlex.split(unescape(command)) == ["dataprep", "trace", "pages", *chain(*options.items())]


def test_dropped_rows_have_the_values_of_the_rule_and_the_text_of_the_source(pages_corpus: StoredDataset) -> None:
    page = render(list_sample_pages(pages_corpus), "dropped-short")
    assert_names(page, "Rule: words &lt; 5", "the source files")
    (item,) = read_items(page)
    assert read_panels(item) == {"text": "too short"}
    assert "<dt>words</dt><dd>2</dd>" in item
    assert "--row 2<" in item
    (item,) = read_items(render(list_sample_pages(pages_corpus), "dropped-bad_json"))
    assert "no text" in item


def build_short_rows(home: Path) -> StoredDataset:
    """Return a corpus of the files `a.jsonl` and `b.jsonl`, each with 20 short documents and one that is kept."""
    (home / "data").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        lines = [json.dumps({"text": f"short {number} {name}"}) for number in range(20)]
        (home / "data" / name).write_text("\n".join([*lines, json.dumps({"text": " ".join(SENTENCES)})]) + "\n")
    corpus = CorpusDeclaration.model_validate(
        {
            "dataset": "mixed",
            "source": {"kind": "local", "path": home / "data"},
            "include": ["*.jsonl"],
            "splits": {"train": ["*"]},
            "tokenizer": {"path": SAMPLE / "tokenizer", "name": "sample", "engine": "tokenizers"},
            "document": {"separator": "<|endoftext|>", "bos": "<|endoftext|>"},
            "tag": ["gopher"],
            "drop": {"short": "words < 9"},
        }
    ).resolve_paths(home)
    dataset, store = Corpus(corpus), LocalArtifacts(home / "artifacts")
    build_all(dataset.specs, store)
    return StoredDataset(dataset, store)


def test_dropped_rows_of_all_files_are_mixed(tmp_path: Path) -> None:
    items = read_items(render(list_sample_pages(build_short_rows(tmp_path)), "dropped-short"))
    headings = [re.findall(r"<h2>(.*?):(\d+)</h2>", item)[0] for item in items]
    names = ["a.jsonl", "b.jsonl"]
    assert sorted(headings) == sorted((name, str(number)) for name in names for number in range(1, 21))
    assert {name for name, _ in headings[:10]} == set(names)


def test_bos_and_the_separator_are_not_in_the_text_of_a_document(tmp_path: Path) -> None:
    corpus = build_short_rows(tmp_path)
    parts = [part for row in corpus.component.sample(corpus.store, 200, "0") for part in row.parts]
    assert [(part.tokens[0], part.tokens[-1]) for part in parts] == [("<|endoftext|>", "<|endoftext|>")] * 2
    assert [part.document_text for part in parts] == [" ".join(SENTENCES)] * 2


def test_near_duplicates_are_beside_the_kept_document_with_marked_differences(pages_corpus: StoredDataset) -> None:
    page = render(list_sample_pages(pages_corpus), "near-duplicates")
    assert_names(page, "Rule: ", "at least 0.7")
    (item,) = read_items(page)
    panels = read_panels(item)
    dropped, kept = panels.pop("dropped"), panels.popitem()[1]
    assert {read_text("".join(re.findall("<del>(.*?)</del>", dropped))).strip()} < {"First", "Second"}
    assert {read_text("".join(re.findall("<ins>(.*?)</ins>", kept))).strip()} < {"First", "Second"}
    assert "endoftext" not in kept
    assert "kept document: pages/nanogpt_bins/train.bin" in item
    assert "<dt>similarity</dt>" in item


def test_tokens_that_the_stream_adds_are_not_in_the_text_of_the_document(pages_corpus: StoredDataset) -> None:
    parts = [part for row in pages_corpus.component.sample(pages_corpus.store, 200, "0") for part in row.parts]
    assert {(part.prefix_tokens, part.suffix_tokens, part.omitted_tokens > 0) for part in parts} == {
        (0, 1, False),
        (0, 0, True),
    }
    for part in parts:
        assert "".join(part.tokens).removesuffix("<|endoftext|>") == part.document_text


def test_contaminated_documents_are_beside_the_benchmark_item(pages_corpus: StoredDataset) -> None:
    (item,) = read_items(render(list_sample_pages(pages_corpus), "contaminated"))
    panels = read_panels(item)
    assert read_text(panels["benchmark item quiz:1:question"]) == f"question: {QUESTION}"
    assert re.findall("<mark>(.*?)</mark>", panels["text"]) == [QUESTION.upper().removesuffix("?")]


def test_an_unreadable_source_is_named_and_the_other_pages_are_shown(
    pages_corpus: StoredDataset, tmp_path: Path
) -> None:
    corpus = pages_corpus.component.declaration
    assert isinstance(corpus, CorpusDeclaration)
    moved = corpus.model_copy(update={"source": corpus.source.model_copy(update={"path": tmp_path / "data"})})
    shutil.copytree(corpus.source.path, tmp_path / "data")
    lost = StoredDataset(Corpus(moved), pages_corpus.store)
    (file,) = (tmp_path / "data" / "train").iterdir()
    file.write_text("changed")
    page = render(list_sample_pages(lost), "dropped-short")
    assert_names(page, "cannot be read", "train/a b&lt;i&gt;.jsonl: changed")
    assert len(read_items(page)) == 1
    assert len(read_items(render(list_sample_pages(lost), "kept"))) == 3


def test_a_sensitive_dataset_and_an_unbuilt_one_have_no_page(pages_corpus: StoredDataset, tmp_path: Path) -> None:
    declaration = pages_corpus.component.declaration.model_copy(update={"sensitive": True})
    assert isinstance(declaration, CorpusDeclaration)
    assert list_sample_pages(StoredDataset(Corpus(declaration), pages_corpus.store)) == []
    assert list(Corpus(declaration).sample(pages_corpus.store, 200, "0")) == []
    assert list_sample_pages(replace(pages_corpus, store=LocalArtifacts(tmp_path))) == []


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LocalArtifacts:
    return LocalArtifacts(tmp_path_factory.mktemp("samples"))


@pytest.fixture(scope="module")
def chat(store: LocalArtifacts) -> StoredDataset:
    return StoredDataset(build_source("sample_blend_sft", store), store)


def read_labeled_sequences(chat: StoredDataset) -> Iterator[tuple[list[int], list[bool]]]:
    """Yield the ids of each sequence of the view `sft_rows`, and whether each has a label."""
    assert isinstance(chat.store, LocalArtifacts)
    view = chat.store.directory(chat.component.declaration.artifact("sft_rows"))
    for path in sorted(view.glob("*/*.arrow")):
        for block in sft_rows.read_sequences(path, is_packed=False):
            for ids, labels in block:
                yield ids.tolist(), (labels != UNTRAINED).tolist()


def test_the_lengths_of_conversations_are_those_of_their_rows(chat: StoredDataset) -> None:
    lengths = chat.component.read_lengths(chat.store, 1 << 24)
    assert lengths is not None
    assert sorted(lengths.tolist()) == sorted(len(ids) for ids, _ in read_labeled_sequences(chat))
    assert chat.component.read_lengths(chat.store, 100) is None


def test_marked_tokens_are_exactly_the_tokens_with_a_label(chat: StoredDataset) -> None:
    decode = load_declared_tokenizer(chat.component.declaration.required_tokenizer).decode  # type: ignore[attr-defined]
    expected = set()
    for ids, trained in read_labeled_sequences(chat):
        marked = [token for token, is_trained in zip(ids, trained, strict=True) if is_trained]
        expected.add((decode(ids), len(ids), decode(marked), len(marked)))
    items = read_items(render(list_sample_pages(chat), "kept"))
    assert items
    for item in items:
        panel = re.sub(r'<b class="role">.*?</b>', "", read_panels(item)["conversation"])
        marks = re.findall(r"<mark>(.*?)</mark>", panel, re.DOTALL)
        count = len(marks) + len(re.findall(r"<span>", panel))
        assert marks
        assert (read_text(panel), count, read_text("".join(marks)), len(marks)) in expected


def test_kept_rows_have_their_split_and_the_number_of_all_rows(chat: StoredDataset) -> None:
    sequences = list(read_labeled_sequences(chat))
    page = render(list_sample_pages(chat), "kept")
    items = read_items(page)
    assert len(items) < len(sequences)
    assert_names(page, f"{len(items)} random rows of {len(sequences)}")
    splits = [re.findall(r">split (\w+)<", item) for item in items]
    assert {split for (split,) in splits} == {"train", "valid"}
    for item, (split,) in zip(items, splits, strict=True):
        assert f"/splits/{split}/" in item


def test_marked_tokens_follow_the_loss_mask_of_the_packed_row(chat: StoredDataset) -> None:
    assert isinstance(chat.store, LocalArtifacts)
    for row in chat.component.sample(chat.store, 200, "0"):
        (place,), (part,) = row.locations, row.parts
        _, name, partition = place.artifact.split("/")
        run = chat.store.directory(chat.component.declaration.artifact(name, partition))
        packed = pq.read_table(run / place.file).to_pylist()[int(place.at["row"])]  # type: ignore[arg-type]
        assert part.trained_mask is not None
        assert part.omitted_tokens == 0
        assert [int(trained) for trained in part.trained_mask] == packed["assistant_masks"][place.start : place.stop]


def test_rows_have_the_number_of_tokens_in_the_loss_and_of_sequences_of_the_conversation(chat: StoredDataset) -> None:
    rows = list(chat.component.sample(chat.store, 200, "0"))
    page = render(list_sample_pages(chat), "kept")
    trained, total, sequences = 0, 0, set[int]()
    for row, item in zip(rows, read_items(page), strict=True):
        marks, spans = (len(re.findall(f"<{tag}>", read_panels(item)["conversation"])) for tag in ("mark", "span"))
        assert f"{marks} of {marks + spans} tokens ({marks / (marks + spans):.1%})" in item
        trained, total = trained + marks, total + marks + spans
        traces = chat.component.tracer(chat.store).find(TraceQuery(file=row.file, row=row.row, split=row.split))
        numbers = [place for place in traces[0].places if place.artifact.split("/")[1] == "packed_sft"]
        sequences.add(len(numbers))
        noted = re.findall(r"is in (\d+) sequences", item)
        assert noted == ([str(len(numbers))] if len(numbers) > 1 else [])
    assert_names(page, f"{trained:,} of {total:,} tokens")
    assert {1, 2} <= sequences


def test_the_roles_of_messages_are_labels(chat: StoredDataset) -> None:
    items = read_items(render(list_sample_pages(chat), "kept"))
    for item in items:
        panel = read_panels(item)["conversation"]
        assert {"user", "assistant"} <= set(re.findall(r'<b class="role">(.*?)</b>', panel))
        tokens = r"(?:<span>[^<]*</span>|<mark>[^<]*</mark>)*"
        template = read_text("".join(re.findall(f'<span class="template">({tokens})</span>', panel)))
        assert "im_start" in template
        assert "FICTION" not in template


def test_conversations_are_shown_without_roles_if_the_source_is_unreadable(
    chat: StoredDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise SourceError("chat.jsonl: missing", relpath="chat.jsonl")

    monkeypatch.setattr(MessageTokens, "prefetch", refuse)
    items = read_items(render(list_sample_pages(chat), "kept"))
    assert len(items) > 10
    for item in items:
        assert "Roles are not shown" in item
        assert "chat.jsonl: missing" in item
        assert "<mark>" in item
        assert 'class="role"' not in item


def test_tokens_of_another_tokenizer_are_not_shown(chat: StoredDataset, tmp_path: Path) -> None:
    value = dump_declaration(chat.component)
    folder = shutil.copytree(value["tokenizer"]["path"], tmp_path / "tokenizer")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"model_max_length": 7}))
    value["tokenizer"]["path"] = str(folder)
    changed = StoredDataset(redeclare(chat.component, value), chat.store)
    with raises(IntegrityError, "different tokenizer", "dataprep run sample_blend_sft"):
        list(changed.component.sample(chat.store, 200, "0"))


def test_dropped_conversations_are_shown_with_the_rule_or_the_benchmark_item(tmp_path: Path) -> None:
    leak = [{"role": "user", "content": f"From an exam: {QUESTION}"}, {"role": "assistant", "content": "The second."}]
    short = [{"role": "user", "content": "A <b>question</b>"}, {"role": "assistant", "content": "x"}]
    rows = [make_conversation(seed, 20) for seed in range(8)]
    path = write_rows(tmp_path / "chat" / "a.jsonl", [*rows, {"messages": leak}, {"messages": short}])
    (tmp_path / "quiz.jsonl").write_text(json.dumps({"question": QUESTION}) + "\n")
    blend = BlendDeclaration.model_validate(
        {
            "dataset": "chat",
            "stage": "sft",
            "blend": {"datasets": [{"name": "chat", "path": str(path)}]},
            "tokenizer": {"path": write_chat_tokenizer(tmp_path / "tokenizer").directory, "engine": "tokenizers"},
            "sft": {"pack_size": 1024, "chat_template": "chatml_reasoning"},
            "drop": {"short": "answer_characters < 2"},
            "decontaminate": {"sets": {"quiz": "quiz.jsonl"}},
        }
    ).resolve_paths(tmp_path)
    dataset, store = Blend(blend), LocalArtifacts(tmp_path / "out")
    build_all(dataset.specs, store)
    pages = list_sample_pages(StoredDataset(dataset, store))
    (item,) = read_items(render(pages, "contaminated"))
    panels = read_panels(item)
    assert read_text(panels["benchmark item quiz:1:question"]) == f"question: {QUESTION}"
    assert re.findall("<mark>(.*?)</mark>", panels["text"]) == [QUESTION.removesuffix("?")]
    (item,) = read_items(render(pages, "dropped-short"))
    assert read_panels(item) == {"text": "user: A &lt;b&gt;question&lt;/b&gt;\nassistant: x"}
    assert "<dt>answer_characters</dt><dd>1</dd>" in item
    assert all("<dt>answer_characters</dt>" in item for item in read_items(render(pages, "kept")))


@pytest.mark.parametrize(
    ("name", "headings"),
    [
        ("sample_blend_pairs", {"prompt", "chosen", "rejected"}),
        ("sample_blend_rl", {"prompt", "expected answer"}),
        ("sample_blend_pretrain", {"text"}),
        ("sample_release", {"text"}),
    ],
)
def test_every_kind_of_dataset_shows_the_parts_of_its_rows(
    name: str, headings: set[str], store: LocalArtifacts
) -> None:
    dataset: Dataset = build_source(name, store)
    items = read_items(render(list_sample_pages(StoredDataset(dataset, store)), "kept"))
    assert 10 < len(items) <= 200
    for item in items:
        assert headings <= read_panels(item).keys()
        assert f"dataprep trace {name} --file " in item
        assert f"Read from <code>{name}/" in item
