"""`dataprep check` samples the first rows of source files: a row that a run would refuse is an error there."""

import gzip
import json
from collections.abc import Iterator

import pytest

from dataprep_assets.cli import main
from dataprep_assets.cli.support import project
from dataprep_assets.project_template import write_project
from dataprep_assets_tests.samples import SAMPLE
from dataprep_assets_tests.sources.foreign_files import PAGE, POINTER, columnar

GOOD = b"".join(b'{"text": "good text %d"}\n' % number for number in range(20))
CORPUS = """type: dataprep_assets.components.{kind}
attributes:
  dataset: {name}
  source: {{kind: local, path: ./texts}}
  include: ["**/*"]
  splits: {{train: ["**/*"]}}
  tokenizer: {{path: {tokenizer}}}
  document: {{separator: "<|endoftext|>"}}
  {extra}
"""
RELEASE = "release: {sequence_length: 64, tokens_per_shard: 16384, shuffle_seed: 7, publish: ./published}"
BLEND = """type: dataprep_assets.components.TrainingBlend
attributes:
  dataset: {name}
  stage: pretrain
  blend: {{datasets: [{{name: texts, path: ./texts}}]}}
  tokenizer: {{path: {tokenizer}}}
  pretrain: {{separator: "<|endoftext|>", sequence_length: 64}}
  num_shards: 1
  {extra}
"""
DROP = "bad_records: {policy: drop}"
STATE = json.dumps({"_data_files": [{"filename": "data.arrow"}]}).encode()
# Each case has the files next to `a.jsonl`, the expected output of the check (empty if the files are read correctly),
# and whether this output is only a note.
CASES: dict[str, tuple[dict[str, bytes], str, bool]] = {
    "array": ({"z.json": json.dumps([{"text": "a"}]).encode()}, "", False),
    "gzip_without_ending": ({"z.jsonl": gzip.compress(GOOD)}, "", False),
    "plain_with_ending": ({"z.jsonl.gz": GOOD * 2}, "", False),
    "utf16": ({"z.jsonl": GOOD.decode().encode("utf-16")}, "", False),
    "utf16_without_mark": (
        {"z.jsonl": GOOD.decode().encode("utf-16-le")},
        "z.jsonl: the file is text in UTF-16LE",
        False,
    ),
    "pretty": ({"z.json": json.dumps({"text": "a"}, indent=1).encode()}, "jq -c .", False),
    "under_a_key": ({"z.json": json.dumps({"data": [{"text": "a"}]}).encode()}, "jq -c '.KEY[]'", False),
    "cp1252": ({"z.jsonl": '{"text": "café"}\n'.encode("cp1252") * 5}, "iconv -f CP1252", False),
    "lists": ({"z.jsonl": b'{"text": ["a", "b"]}\n'}, "text_not_a_string", False),
    "pointer": ({"z.jsonl": POINTER}, "git lfs pull", False),
    "page": ({"z.jsonl.gz": PAGE}, "HTML page", False),
    "truncated": ({"z.jsonl.gz": gzip.compress(GOOD)[:-9]}, "truncated", False),
}
CORPORA: dict[str, tuple[dict[str, bytes], str, bool]] = {
    "pointer_as_text": ({"z.txt": POINTER}, "git lfs pull", False),
    "page_as_parquet": ({"z.parquet": PAGE}, "HTML page", False),
    "merged_tsv": ({"z.tsv": b'id\ttext\n1\t"a\n2\tb"\n'}, "csv_quotes", False),
    "merged_csv": ({"z.csv": b'id,text\n1,"a\n2,b"\n'}, "csv_quotes", True),
    "caches": (
        {"s/data.arrow": columnar("arrow stream"), "s/cache-1.arrow": columnar("arrow stream"), "s/state.json": STATE},
        "1 file excluded (s/cache-1.arrow)",
        True,
    ),
}
KINDS = {"corpus": ("TokenizedCorpus", "views: [nanogpt]"), "release": ("ShardRelease", RELEASE)}


def _declared() -> Iterator[tuple[str, str, dict[str, bytes], str, bool]]:
    """Return the name, the text, the files and the expected message of each declaration."""
    for case, (files, said, note) in {**CASES, **CORPORA}.items():
        kind = "release" if case in ("pretty", "pointer") else "corpus"
        for policy in ("", DROP) if case in CASES else ("",):
            name = f"{kind}_{case}{'_drop' if policy else ''}"
            component, extra = KINDS[kind]
            text = CORPUS.format(
                kind=component, name=name, tokenizer=SAMPLE / "tokenizer", extra=f"{extra}\n  {policy}"
            )
            if case == "caches":
                text = text.replace('["**/*"]\n  splits', '["**/*.jsonl", "**/*.arrow"]\n  splits')
            yield name, text, files, said, note
    for case, (files, said, note) in CASES.items():
        # Skip the files without usable rows, because a blend drops bad rows here, and is refused only if `a.jsonl` has
        # no usable row either.
        if case not in ("lists", "under_a_key"):
            text = BLEND.format(name=f"blend_{case}", tokenizer=SAMPLE / "tokenizer", extra=DROP)
            yield f"blend_{case}", text, files, said, note


EVERY = {name: (text, files, said, note) for name, text, files, said, note in _declared()}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    """Run `dataprep check` once and return its lines about each declaration, by name."""
    root = tmp_path_factory.mktemp("files") / "file_project"
    write_project(root)
    for name, (text, files, _, _) in EVERY.items():
        folder = root / "file_project" / "defs" / name
        for path, data in {"a.jsonl": GOOD, **files}.items():
            (folder / "texts" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "texts" / path).write_bytes(data)
        (folder / "defs.yaml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DATAPREP_PROJECT", raising=False)
        patch.setattr(project, "_chosen", [])
        project.current_project.cache_clear()
        lines: list[str] = []
        patch.setattr("builtins.print", lambda *said, **_: lines.extend(str(said[0]).splitlines()))
        assert main(["--project", str(root), "check"]) == 2
        yield {name: [line for line in lines if f"/{name}/defs.yaml:" in line] for name in EVERY}
    project.current_project.cache_clear()


@pytest.mark.parametrize("name", EVERY)
def test_a_file_that_a_run_would_refuse_is_reported_with_its_kind(told: dict[str, list[str]], name: str) -> None:
    _, _, said, note = EVERY[name]
    if not said:
        assert told[name] == []
        return
    (line,) = told[name]
    assert line.startswith("note: ") == note
    assert said in line
    assert "policy: drop" not in line
