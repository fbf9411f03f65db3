"""Megatron-LM's `tools/preprocess_data.py` beside the view `megatron` of `dataprep run`: the same text, byte for byte.

Theirs runs as it is, through `HuggingFaceTokenizer`; ours in a project of `dataprep init`. A record is a document. All
are equal where `.bin` and `.idx` are the same bytes; where they are not, the documents that differ are counted by what
docs/migration/megatron.md says of them, and any other is a difference without a reason.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import zstandard
from tokenizers import Tokenizer

from dataprep_assets.errors import ConfigError
from dataprep_assets_tests.cli.commands import dataprep, environment
from dataprep_assets_tests.readers.megatron import indexed_documents
from dataprep_assets_tests.samples import SAMPLE
from dataprep_assets_tests.tools.parity.pinned import installed, run_apart
from dataprep_assets_tests.tools.parity.table import Row

SCRIPT = "tools/preprocess_data.py"
END, START = "<|endoftext|>", "<|start|>"
PLACE = "harbour"
Documents = list[list[int]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One of their runs and our dataset to compare; `but` is the reason why documents may differ."""

    shape: str
    dataset: str
    arguments: Sequence[str] = ("--append-eod", "--workers", "2")
    but: str = ""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """The declaration of one of our datasets, and the file of texts that both read."""

    tokenizer: str = "sample"
    texts: str = "texts"
    document: Mapping[str, str] = field(default_factory=lambda: {"special_tokens": "match"})
    besides: Mapping[str, Any] = field(default_factory=dict)


DATASETS = {
    "tides": Dataset(),
    "started": Dataset(tokenizer="started", document={"special_tokens": "match", "bos": START}),
    "wide": Dataset(tokenizer="wide"),
    "between": Dataset(tokenizer="between", besides={"dtype": "uint32"}),
    "narrow": Dataset(tokenizer="between"),
    "hollow": Dataset(texts="hollow"),
    "plain": Dataset(document={}),
}
EMPTY = "a document without a token has its separator here, and no sequence there"
NO_END = "without --append-eod: `document.separator` ends every document here"
LITERAL = "special tokens in text are text here by default (`document.special_tokens`)"
WIDTH = "65,520 ids: uint16 here, int32 there, unless `dtype: uint32` is declared"
CASES = [
    Case(shape="1 worker", dataset="tides", arguments=("--append-eod", "--workers", "1")),
    Case(shape="3 workers", dataset="tides", arguments=("--append-eod", "--workers", "3")),
    Case(
        shape="2 partitions in order",
        dataset="tides",
        arguments=("--append-eod", "--workers", "2", "--partitions", "2", "--keep-sequential-samples"),
    ),
    Case(shape="a template with a first token", dataset="started"),
    Case(shape="70,001 ids", dataset="wide"),
    Case(shape="65,520 ids, dtype: uint32", dataset="between"),
    Case(shape="65,520 ids", dataset="narrow", but=WIDTH),
    Case(shape="documents of no token", dataset="hollow", but=EMPTY),
    Case(shape="no separators", dataset="tides", arguments=("--workers", "2"), but=NO_END),
    Case(shape="special tokens as text", dataset="plain", but=LITERAL),
]


def compare(folder: Path) -> list[Row]:
    """Return a row for each case; `folder` is a clone of Megatron-LM."""
    if not (folder / SCRIPT).is_file():
        raise ConfigError(f"--megatron-lm: {folder}: no {SCRIPT}")
    with TemporaryDirectory() as name:
        home = Path(name)
        texts = {kind: _write(home / f"{kind}.jsonl", made) for kind, made in _texts().items()}
        for kind in dict.fromkeys(dataset.tokenizer for dataset in DATASETS.values()):
            _tokenizer(home / "tokenizers" / kind, kind)
        _run_theirs(folder, home)
        artifacts = _run_ours(home)
        return [_row(home, artifacts, number, case, texts) for number, case in enumerate(CASES)]


def _texts() -> dict[str, list[str]]:
    """Return the documents of each file: prose, texts that are difficult for tokenizers and JSON, and a long text."""
    first = sorted((SAMPLE / "data" / "train").rglob("*.zst"))[0]
    lines = zstandard.ZstdDecompressor().stream_reader(first.read_bytes()).read().splitlines()
    # Leave out empty documents, because documents without tokens have their own case.
    prose = [text for line in lines[:200] if (text := json.loads(line)["text"])]
    odd = [
        "  leading, trailing  ",
        "\n\n\n",
        "\t",
        "a\r\nb\rc\u2028d\u2029e\x0bf\x0cg\x85h",
        "\x00\x01\x7f\x80\ufeff\ufffe\uffff",
        'quotes " and \\ and \\" and \\u0041',
        "e\u0301 \u00e9 \ufb01 \u1e9b\u0323 \u0344",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \U0010ffff",
        "العربية עברית हिन्दी ไทย 中文 日本語 한국어",
        "0123456789" * 40,
        "x" * 5000,
        f"a literal {END} within, {END}{END} twice",
        f"{END}",
        f"<|pad|>{START}<|endoftext|",
    ]
    return {
        "texts": [*prose[:100], *odd, "\n".join(prose)[:100_000], *prose[100:]],
        "hollow": ["", *prose[:5], "", "", *prose[5:9], ""],
    }


def _write(path: Path, texts: list[str]) -> list[str]:
    lines = (json.dumps({"id": at, "text": text}, ensure_ascii=at % 2 == 0) for at, text in enumerate(texts))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return texts


def _tokenizer(folder: Path, kind: str) -> None:
    """Return the sample's tokenizer, one with more ids whose last ends documents, or one whose template starts with a
    token.
    """
    shutil.copytree(SAMPLE / "tokenizer", folder)
    for path in folder.iterdir():
        path.chmod(0o644)
    made, config = (json.loads((folder / f"tokenizer{name}.json").read_text()) for name in ("", "_config"))
    size = {"wide": 70_001, "between": 65_520}.get(kind)
    if size is not None:
        ids = range(len(made["model"]["vocab"]), size - 1)
        taken = {token["id"] for token in made["added_tokens"]}
        made["model"]["vocab"] |= {f"<unused {number}>": number for number in ids if number not in taken}
        _add(made, "<|last|>", size - 1)
        config["eos_token"] = "<|last|>"
    if kind == "started":
        number = 1 + max(token["id"] for token in made["added_tokens"])
        _add(made, START, number)
        made["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": START, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {START: {"id": START, "ids": [number], "tokens": [START]}},
        }
        config["bos_token"] = START
    (folder / "tokenizer.json").write_text(json.dumps(made))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _add(made: dict[str, Any], content: str, number: int) -> None:
    made["added_tokens"].append({**made["added_tokens"][0], "content": content, "id": number})


def _run_theirs(folder: Path, home: Path) -> None:
    lines = []
    for number, case in enumerate(CASES):
        dataset = DATASETS[case.dataset]
        (home / f"theirs-{number}").mkdir()
        # Copy the input, because Megatron-LM writes partitions next to it.
        given = shutil.copy(home / f"{dataset.texts}.jsonl", home / f"theirs-{number}" / "in.jsonl")
        lines.append(
            [
                *("--input", str(given), "--output-prefix", str(_theirs(home, number).with_name("out"))),
                *("--tokenizer-type", "HuggingFaceTokenizer"),
                *("--tokenizer-model", str(home / "tokenizers" / dataset.tokenizer), *case.arguments),
            ]
        )
    job = {"script": str(folder / SCRIPT), "lines": lines}
    run_apart("their_preprocess", job, [folder, installed("triton")])


def _theirs(home: Path, number: int) -> Path:
    return home / f"theirs-{number}" / "out_text_document"


def _run_ours(home: Path) -> Path:
    """Build all datasets with one `dataprep run`, and return the folder of the artifacts."""
    root = home / PLACE
    dataprep(home, "init", str(root), project=home).check_returncode()
    for name, dataset in DATASETS.items():
        folder = root / PLACE / "defs" / name
        (folder / "texts").mkdir(parents=True)
        shutil.copy(home / f"{dataset.texts}.jsonl", folder / "texts" / "in.jsonl")
        declared = {
            "dataset": name,
            "source": {"kind": "local", "path": "./texts"},
            "include": ["*.jsonl"],
            "splits": {"train": ["*.jsonl"]},
            "tokenizer": {"path": str(home / "tokenizers" / dataset.tokenizer), "name": dataset.tokenizer},
            "document": dataset.document,
            "views": ["megatron"],
            "workers": 2,
            **dataset.besides,
        }
        value = {"type": "dataprep_assets.components.TokenizedCorpus", "attributes": declared}
        (folder / "defs.yaml").write_text(json.dumps(value))  # JSON is valid YAML
    # Set no time limit, because seven datasets take longer than a command's usual limit.
    line = [sys.executable, "-m", "dataprep_assets.cli", "run", *DATASETS]
    subprocess.run(line, cwd=root, env=environment(home), check=True, stdout=subprocess.DEVNULL)
    return home / "artifacts"


def _row(home: Path, artifacts: Path, number: int, case: Case, texts: Mapping[str, list[str]]) -> Row:
    ours, theirs = artifacts / case.dataset / "megatron_bins" / "train", _theirs(home, number)
    records = len(texts[DATASETS[case.dataset].texts])
    same = [ours.with_suffix(kind).read_bytes() == theirs.with_suffix(kind).read_bytes() for kind in (".bin", ".idx")]
    if all(same):
        return Row("Megatron-LM", case.shape, records, records, 0, ".bin and .idx byte for byte")
    equal = explained = 0
    given = texts[DATASETS[case.dataset].texts]
    for text, here, there in zip(given, _documents(ours), _documents(theirs), strict=True):
        equal += here == there
        explained += here != there and _explained(case.but, text, here, there)
    if case.but == WIDTH:  # the documents are equal, but the bytes differ
        equal, explained = 0, equal
    return Row("Megatron-LM", case.shape, records, equal, explained, case.but or "the files differ")


def _documents(prefix: Path) -> Documents:
    sequences, starts = indexed_documents(prefix)
    return [
        [number for sequence in sequences[first:last] for number in sequence.tolist()]
        for first, last in pairwise(starts)
    ]


def _explained(but: str, text: str, here: list[int], there: list[int]) -> bool:
    """Return whether a document differs only in the way that `but` names."""
    if but == EMPTY:
        return text == "" and not there and len(here) == 1
    if but == NO_END:
        return here[:-1] == there
    if but != LITERAL or not any(token in text for token in (END, "<|pad|>")):
        return False
    tokenizer = Tokenizer.from_file(str(SAMPLE / "tokenizer" / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return here == [*tokenizer.encode(text, add_special_tokens=False).ids, there[-1]]
