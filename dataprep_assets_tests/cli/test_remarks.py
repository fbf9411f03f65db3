"""`dataprep check` of notes and blends reports each mistake in a sentence with file and line, and builds nothing."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dataprep_assets.cli import main
from dataprep_assets.errors import ConfigError
from dataprep_assets.library.project import open_project
from dataprep_assets.project_template import write_project
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.samples import SAMPLE

SAMPLES = SAMPLE.parent
DATASET = '{"datasets": [{"name": "a", "path": "%s"}]}'

NOTES = [
    (
        "path: ../sample_corpus/tokenizer",
        "path: /nowhere/tokenizer",
        "tokenizer:",
        "/nowhere/tokenizer: the folder does not exist. Save one ",
    ),
    ('separator: "<|endoftext|>"', 'separator: "<|nope|>"', "separator:", "'<|nope|>' is not in the vocabulary"),
    ("  document:", '  document:\n    bos: "<|nope|>"', "bos:", "document.bos: '<|nope|>' is not in the vocabulary"),
    ('token: "<|pad|>"', 'token: "<|nope|>"', "pad:", "pad.token: '<|nope|>' is not in the vocabulary"),
    ('token: "<|pad|>"', "id: 5", "pad:", "pad: id 5 is an ordinary token, which documents contain"),
    ('token: "<|pad|>"', 'token: "<|endoftext|>"', "pad:", "ends or begins every document"),
    ('token: "<|pad|>"', "id: 5000", "pad:", "pad.id must be less than 4096"),
    ("public: a key for", "env: UNSET_KEY #", "patient_key:", "the environment variable UNSET_KEY is not set"),
    (
        "public: a key for",
        "env: SHORT_KEY #",
        "patient_key:",
        "SHORT_KEY has 5 characters, but a key needs at least 32",
    ),
    ('last: "2011-02"', 'last: "2011-04"', "months:", "2 declared months have no file in the source: 2011-03, 2011-04"),
    ('last: "2011-02"', 'last: "2011-02"\n    allow_missing: ["2011-01"]', "source:", "files for 2011-01, but"),
    ("path: ./data", "path: ./date", "path:", "date: folder does not exist"),
    (
        "  row_length:",
        "  retractions: ./list.jsonl\n  row_length:",
        "retractions:",
        "list.jsonl: line 1: must be a retraction",
    ),
    ('last: "2011-02"', 'last: "2011-13"', "last:", "months.last: invalid value: Last month, as YYYY-MM"),
    (
        "likes {colour}",
        "likes {coluor}",
        "header:",
        "template.header: unknown fields coluor. Available: author, ",
    ),
    ("likes {colour}", "likes {colour", "header:", "template.header: "),
]
SFT = [
    ("path: ./tokenizer", "path: ./tokeniser", "tokenizer:", "tokeniser"),
    (
        "chat_template: chatml_reasoning",
        "chat_template: ./chat.jinja",
        "chat_template:",
        "readable file: ",
    ),
    (
        "chat_template: chatml_reasoning",
        'chat_template: "{% for %}"',
        "chat_template:",
        "inline: line 1: ",
    ),
    (
        "chat_template: chatml_reasoning",
        "chat_template: \"{{ strftime_now('%d') }} {{ messages }}\"",
        "chat_template:",
        "uses today's date (strftime_now), so the same rows would give different bytes tomorrow",
    ),
    (
        "chat_template: chatml_reasoning",
        'chat_template: "{% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content }}<|im_end|>\\n{% endfor %}"\n'
        "    allow_loss: [reasoning, calls, tools]",
        "chat_template:",
        r"writes no generation prompt, so the text before each answer ('<|im_start|>assistant\n') is in the loss",
    ),
    (
        "chat_template: chatml_reasoning",
        'chat_template: chatml_reasoning\n    stop: "<|nope|>"',
        "chat_template:",
        "not '<|nope|>'. Available: <|im_end|>",
    ),
    ("blend: ./blend.json", "blend: ./blond.json", "blend:", "blond.json: cannot be read: No such file"),
    (
        "blend: ./blend.json",
        "blend: ./wrong.json",
        "blend:",
        "wrong.json:1: not a blend file: expecting value, at column 15",
    ),
    ("blend: ./blend.json", f"blend: {DATASET % './absent.jsonl'}", "blend:", "absent.jsonl: No such file"),
    (
        "blend: ./blend.json",
        f"blend: {DATASET % './data/*.parquet'}",
        "blend:",
        "other formats only if the path ends with their suffix, e.g., *.csv)",
    ),
    (
        "blend: ./blend.json",
        f"blend: {DATASET % 'ftp://host/a.jsonl'}",
        "blend:",
        "Use hf://, s3://, gs://, asset:// or a local path",
    ),
    (
        "blend: ./blend.json",
        f"blend: {DATASET % 'hf://one'}",
        "blend:",
        "must be hf://organization/name or hf://…/name@revision",
    ),
    (
        "blend: ./blend.json",
        f"blend: {DATASET % 's3://bucket/a'}",
        "blend:",
        "sources.object_cache: required, because a is in s3://bucket/a. Set it to a download folder",
    ),
    ("held_out: {valid: 1}", "held_out: {vlaid: 1}", "held_out:", "held_out.vlaid: unknown key; did you mean `valid`?"),
]
PRETRAIN = [
    ("path: ../sample_corpus/tokenizer", "path: ./none", "tokenizer:", "none: the folder does not exist. Save one "),
    ('separator: "<|endoftext|>"', 'separator: "<|nope|>"', "separator:", "'<|nope|>' is not in the vocabulary"),
]
RL = [
    ("transforms:", "transforms: [passthruogh]\n    # ", "transforms:", "unknown transform 'passthruogh'"),
    (
        "transforms:",
        'transforms: ["no_module:function"]\n    # ',
        "transforms:",
        "no_module:function: cannot be",
    ),
    (
        "transforms:",
        "transforms: [select]\n    # ",
        "transforms:",
        "select without fields would drop everything. Add fields",
    ),
    (
        "transforms:",
        "transforms: [{resolve_hf_placeholders: {sources: {a/b: hf://a/b}}}]\n    # ",
        "transforms:",
        "a/b",
    ),
]
_BOTH = """    - {dataset: sample_notes, license: CC0-1.0 OR Apache-2.0}
    - {dataset: sample_replay, license: CC0-1.0 OR Apache-2.0}"""
COMBINED = [
    (
        _BOTH,
        "    - {dataset: nots_0}",
        "sources:",
        "unknown dataset nots_0; did you mean 'notes_0'?",
    ),
    (
        _BOTH,
        "    - {dataset: elsewhere}",
        "sources:",
        "unknown dataset elsewhere; ",
    ),
]
TASKS = [
    (
        "old_root: ./data/old",
        "old_root: ./data/older",
        "old_root:",
        "older/Data/rejection_sampling/0_data: folder does not exist",
    ),
    ("version: all", "version: version_9", "Copa:", "tasks.Copa.version"),
    (
        "version: all",
        "version: latest\n      versions_in: none",
        "Copa:",
        "Set `versions_in` to the folder",
    ),
    ("mode: symlink", "old_folder: ArcC", "ArcC_Cloze:", "0_data/ArcC: folder does not exist"),
    (
        "original: ./data/original",
        "original: ./data/orig",
        "original:",
        "orig: folder does not exist. The old project's base is used instead",
    ),
]
SCHEDULE = [
    ("split: val", "split: valid", "sources:", "sample_corpus: unknown split 'valid'. Available: train, val"),
    ("weight: 9", "weight: 0", "- {dataset: sample_corpus", "sources.0.weight: must be greater than 0, not 0"),
]
BASES = {
    "schedule": SCHEDULE,
    "notes": NOTES,
    "blend_sft": SFT,
    "blend_pretrain": PRETRAIN,
    "blend_rl": RL,
    "notes_replay_combined": COMBINED,
    "tasks": TASKS,
}
CASES = [(base, number) for base, cases in BASES.items() for number in range(len(cases))]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, list[str]], Path]]:
    """Run `dataprep check` once; return its lines about each wrong declaration, by name, and the folder of all."""
    root = tmp_path_factory.mktemp("remarks") / "remarked_project"
    write_project(root)
    defs = root / "remarked_project" / "defs"
    for base, number in CASES:
        folder, sample = defs / f"{base}_{number}", SAMPLES / f"sample_{base}"
        folder.mkdir()
        for part in sample.iterdir():
            if part.name != "defs.yaml":
                (folder / part.name).symlink_to(part)
        (folder / "list.jsonl").write_text('{"patient": "Ann Nonymous"}\n')
        (folder / "wrong.json").write_text('{"datasets": [}')
        old, new, _, _ = BASES[base][number]
        text = (sample / "defs.yaml").read_text().replace(f"dataset: sample_{base}", f"dataset: {base}_{number}")
        assert old in text, (base, number)
        (folder / "defs.yaml").write_text(text.replace(old, new, 1).replace("../sample_", f"{SAMPLES}/sample_"))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DATAPREP_PROJECT", "UNSET_KEY"):
            patch.delenv(name, raising=False)
        patch.setenv("SHORT_KEY", "short")
        lines: list[str] = []
        patch.setattr("builtins.print", lambda *said, **_: lines.extend(str(said[0]).splitlines()))
        assert main(["--project", str(root), "check"]) == 2
        by_name = {
            f"{base}_{number}": [line for line in lines if f"/{base}_{number}/defs.yaml:" in line]
            for base, number in CASES
        }
        yield by_name, defs


@pytest.mark.parametrize(("base", "number"), CASES)
def test_each_mistake_is_reported_in_one_sentence_with_its_line(
    told: tuple[dict[str, list[str]], Path], base: str, number: int
) -> None:
    lines, defs = told
    name, (_, _, key, said) = f"{base}_{number}", BASES[base][number]
    path = defs / name / "defs.yaml"
    places = [at for at, line in enumerate(path.read_text().splitlines(), 1) if line.lstrip().startswith(key)]
    (line,) = lines[name]
    assert line.removeprefix("note: ").startswith(tuple(f"{path}:{place}: " for place in places)), line
    assert said in line
    assert "Ann Nonymous" not in line


def test_a_mistake_that_only_a_source_shows_stops_a_first_run(told: tuple[dict[str, list[str]], Path]) -> None:
    """A dataset may be up to date without its source; a missing key or token stops it at once."""
    _, defs = told
    declared = open_project(defs.parents[1])
    declared.dataset("notes_9").require_sound(is_whole=False)
    with pytest.raises(ConfigError):
        declared.dataset("notes_9").require_sound()
    with raises(ConfigError, "UNSET_KEY"):
        declared.dataset("notes_7").require_sound()


@pytest.mark.parametrize(
    ("source", "dataset", "declared", "key"),
    [
        ("sample_notes", "sample_notes_replay_combined", {"publish": {"hub": "a/b"}}, "publish"),
        ("sample_corpus", "sample_schedule", {"training_summary": {}}, "training_summary"),
        ("sample_corpus", "sample_schedule", {"training_summary": {}, "sensitive": True}, None),
    ],
)
def test_what_leaves_a_dataset_that_reads_a_sensitive_one_is_refused(
    source: str,
    dataset: str,
    declared: dict[str, Any],
    key: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_KEY", "0123456789abcdef" * 3)
    # Use a new name, because another test may have imported a package with the same name.
    project = tmp_path / f"{dataset}_{len(declared)}_project"
    write_project(project)
    defs = project / project.name / "defs"
    shutil.copytree(SAMPLES, defs, dirs_exist_ok=True)
    keys = {
        "sample_notes": {"patient_key": {"env": "A_KEY"}},
        "sample_corpus": {"document": {"separator": "<|endoftext|>", "id_key": {"env": "A_KEY"}}},
    }
    for name, changes in ((source, keys[source] | {"sensitive": True}), (dataset, declared)):
        value = yaml.safe_load((defs / name / "defs.yaml").read_text())
        value["attributes"] |= changes
        (defs / name / "defs.yaml").write_text(yaml.safe_dump(value))
    mistakes = open_project(project).dataset(dataset).check()
    refusals = [mistake for mistake in mistakes if not mistake.hint]
    assert len(refusals) == (key is not None), refusals
    if key is not None:
        assert_names(refusals[0].sentence, f"{key}: ", source, "sensitive")


def test_a_wrong_storage_is_reported_with_its_line_and_affects_no_other_dataset(tmp_path: Path) -> None:
    project = tmp_path / "two_storages_project"
    write_project(project)
    folder = project / project.name / "defs"
    shutil.copytree(folder / "sample_corpus", folder / "other")
    path = folder / "other" / "defs.yaml"
    path.write_text(path.read_text().replace("  dataset: sample_corpus", "  dataset: other\n  storage: s3://"))
    opened = open_project(project)
    with raises(ConfigError, f"{path}:", "storage: 's3://'"):
        opened.dataset("other")
    assert not [mistake for mistake in opened.dataset("sample_corpus").check() if not mistake.hint]
    assert [dataset.declaration.dataset for dataset in opened.load_all(["other", "sample_corpus"])] == ["sample_corpus"]
