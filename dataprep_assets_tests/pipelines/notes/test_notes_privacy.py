"""No patient data leaks: canaries are in every field of a record, and in data that makes each step fail.

Real runs on a real instance execute in their own process. Then the tests search everything that it left: each cell of
the databases, logs, receipts, metadata and printed output. Stored rows are ids, so even data files contain no readable
canary.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.orchestration.partitions import job_name
from dataprep_assets.pipelines.notes.cohorts.cohort_shards import plan_sharded_cohorts
from dataprep_assets.pipelines.notes.cohorts.cohort_source import list_cohorts
from dataprep_assets.pipelines.notes.cohorts.packed_cohorts import packed_cohorts
from dataprep_assets.pipelines.notes.dataset import notes_engine
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.patient_key import PatientKey
from dataprep_assets.site.dataset import describe_dataset
from dataprep_assets.site.history import read_history
from dataprep_assets.site.pages import PageEnvironment
from dataprep_assets.site.states import summarize_datasets
from dataprep_assets.site.stored import StoredDataset
from dataprep_assets.stream.engine_certificate import ensure_certificate
from dataprep_assets_tests.database_cells import read_cells
from dataprep_assets_tests.pipelines.notes.clinic import note, patient
from dataprep_assets_tests.pipelines.notes.notes_project import NotesProject, notes_project, plain_attributes
from dataprep_assets_tests.plain_digests import PlainDigests

Left = tuple[Path, str, PlainDigests]
CANARY = "CANARY"
PEOPLE = re.compile(r"(?<![\w.,-])(?:[1-9]|10) (?:of \S+ )?(?:\w+ )?(?:patients?|notes?|records?|documents?|rows?)\b")
PAGES = "pages"
PRIVATE = ".private"
"""The folder of a dataset's private file, which contains in full the data that everything else omits."""
SENTENCE = re.compile(r"passed|failed( at \w+ [\w-]+(, \w+ [\w-]+)*)?\. Run `dataprep show --private \w+`")
"""The public result of a check."""
WORDS = itertools.count(1)
KEY = f"{CANARY}-key-{'0' * 32}"
FIELDS = {
    "birth_date": "birth",
    "patient": {"colour": "colour"},
    "note": {"author": "author"},
}
COMMON = {
    "sensitive": True,
    "patient_key": {"env": "NOTES_KEY"},
    "cohorts": {"pattern": r".*(?P<year>\d{4})-(?P<month>\d{2})\.json", "fields": FIELDS},
    "template": {"header": "{colour} {author}\n"},
}


def person(month: str, name: str = "id", text: str = "text", **changes: Any) -> dict[str, Any]:
    """Return a patient of a month with a canary in every value."""
    words = [f"{CANARY}{next(WORDS):04}" for _ in range(4)]
    one = note(f"{CANARY}-{text} of {month} {words[0]}", author=words[1])
    record = patient(f"{CANARY}-{name}-{month}", one, birth=f"{month}-03", colour=words[2], more=words[3])
    return {**record, **changes}


def without(record: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in record.items() if k != key}


def put(folder: Path, month: str, content: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / f"{CANARY}-{month}.json").write_bytes(raw)


def whole(month: str) -> bytes:
    return json.dumps([person(month)]).encode()


def failing() -> dict[str, Any]:
    """Return month → a cohort that cannot be packed."""
    cases: list[tuple[str, Any]] = []

    def case(make: Any) -> None:
        month = f"2010-{len(cases) + 1:02d}" if len(cases) < 12 else f"2011-{len(cases) - 11:02d}"
        cases.append((month, make(month)))

    case(lambda m: whole(m).replace(b'"notes": [', b'"notes": [CANARY,', 1))  # malformed JSON
    case(lambda m: whole(m)[:-20])  # truncated
    case(lambda m: whole(m).replace(b"-text", b"\xff-text"))  # not UTF-8
    case(lambda m: [without(person(m), "colour")])  # missing metadata
    case(lambda m: [person(m, colour=[CANARY])])  # metadata of the wrong type
    case(lambda m: [person(m, birth="1999-12-31")])  # wrong month
    case(lambda m: [person(m, birth=f"{CANARY} day")])  # invalid date
    case(lambda m: [person(m), person(m)])  # duplicate patient
    case(lambda m: [person(m, notes=[note(f"{CANARY} x", f"{CANARY} day", author=CANARY)])])
    case(lambda m: [person(m, notes=[note([CANARY], author=CANARY)])])  # text of the wrong type
    case(lambda m: [person(m, notes=CANARY)])
    case(lambda m: [person(m, patient_id={CANARY: 1})])
    case(lambda m: [person(m, colour=f"{CANARY} " * 90)])  # a header longer than a row
    case(lambda m: {CANARY: person(m)})  # not in the declared format
    case(lambda m: [])  # no patients
    case(lambda m: [CANARY])  # not an object
    case(lambda m: [person(m, notes=[CANARY])])  # an invalid note
    case(lambda m: [person(m, birth=None)])
    case(lambda m: [person(m, patient_id="")])
    case(lambda m: b"\x1f\x8b" + whole(m))  # a compressed file with the name of a text file
    case(lambda m: b"PK\x03\x04" + whole(m))
    case(lambda m: CANARY.encode("utf-16"))
    case(lambda m: whole(m) + b" CANARY")  # trailing bytes
    case(lambda m: [person(m, text="encoder")])  # the encoder raises an error that quotes its input
    return dict(cases)


SITE = """
import os, signal, sys
from importlib.machinery import PathFinder


class Faulty:
    @staticmethod
    def find_spec(name, path, target=None):
        if name != "dataprep_assets.tokenization.engines":
            return None
        spec = PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            encode = module.ReferenceEngine.encode

            def failing(self, texts):
                for text in texts:
                    if "CANARY-encoder" in text:
                        raise ValueError("cannot encode " + text)
                    if "CANARY-kill" in text:
                        os.kill(os.getpid(), signal.SIGKILL)
                return encode(self, texts)

            module.ReferenceEngine.encode = failing

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Faulty)
"""
"""Makes the reference engine fail on some texts, as a library would: with a message that quotes them, or by a crash."""


def specification(folder: Path) -> list[dict[str, Any]]:
    """Return the datasets of the run with their sources."""
    cases = failing()
    for month, content in cases.items():
        put(folder / "failing", month, content)
    for size in range(1, 11):
        month = f"2010-{size:02}"
        put(folder / "groups", month, [person(month, f"id{at}") for at in range(size)])
    good = ["2010-01", "2010-02", "2010-03"]
    for month in good:
        bad = [person(month, notes=CANARY, patient_id=f"{CANARY}-bad"), without(person(month, "other"), "colour")]
        put(folder / "drops", month, [*(person(month, f"id{at}") for at in range(12)), *bad])
        put(folder / "budget", month, [person(month), *bad])
        put(folder / "twice", month, [person(month, patient_id=f"{CANARY}-the-same")])
        put(folder / "template", month, [person(month)])
        put(folder / "killed", month, [person(month, text="kill" if month == good[1] else "text")])
        put(folder / "several", month, [person(month)])
    (folder / "several" / f"{CANARY}-again-2010-01.json").write_bytes(b"[]")
    drop = {
        "bad_records": {"policy": "drop", "budget": 0.9},
        "template": {"header": "{colour} {author}\n", "missing": "drop"},
    }

    def one(name: str, months: Sequence[str] = good, **changes: Any) -> dict[str, Any]:
        return plain_attributes(folder / name, months, **{"dataset": name, **COMMON, **changes})

    return [
        one("failing", list(cases)),
        one("drops", **drop, splits={"train": 0.5, "val": 0.5}, formats=["tfrecord"]),
        one("budget", **drop | {"bad_records": {"policy": "drop", "budget": 0.01}}),
        one("twice"),
        one("template", template={"engine": "jinja", "header": "{{ colour.nothing.here }}"}),
        one("killed"),
        one("several"),
        one("nowhere"),
        one("groups", [f"2010-{size:02}" for size in range(1, 11)]),
    ]


def run_everything(made: NotesProject) -> None:
    """Run all datasets in the observed process, whether they fail or not; then plant faults, and run every check."""
    for component in made.components:
        job = made.definitions.resolve_job_def(job_name(component.declaration.dataset))
        job.execute_in_process(instance=made.instance, raise_on_error=False)
    put(made.root.parent / "drops", "2010-01", [person("2010-01", "changed")])
    packed = made.root / "drops" / "packed_cohorts"
    lines = next(packed.glob("2010-02/*/2010-02.jsonl"))
    lines.write_bytes(b'{"inputs": ["CANARY"]}\n' + lines.read_bytes())
    next(packed.glob("2010-03/*/2010-03.parquet")).write_bytes(b"CANARY")
    for check in sorted({c.asset_key for c in made.definitions.resolve_asset_graph().asset_check_keys}):
        if check.path[0] in ("drops", "failing", "nowhere"):
            made.check(check)
    lines.unlink()  # this file has canaries that the test itself wrote
    for path in packed.glob("2010-03/*/2010-03.parquet"):
        path.unlink()
    write_pages(made)


def write_pages(made: NotesProject) -> None:
    """Write the page of each dataset to a folder, which the tests search like the other output."""
    (made.root.parent / PAGES).mkdir()
    datasets = [StoredDataset(component, made.store) for component in made.components]
    histories = {dataset.name: read_history(made.instance, dataset) for dataset in datasets}
    states = {state.dataset: state for state in summarize_datasets(datasets, made.instance, histories)}
    for dataset in datasets:
        page = describe_dataset(dataset, states[dataset.name])
        (made.root.parent / PAGES / f"{dataset.name}.html").write_text(page.render(PageEnvironment()))


def main() -> None:
    """Run `python -m dataprep_assets_tests.pipelines.notes.test_notes_privacy FOLDER`."""
    folder = Path(sys.argv[1])
    with notes_project(folder, *json.loads((folder / "spec.json").read_bytes()), home=folder / "dagster") as made:
        run_everything(made)


SOURCES = ("failing", "drops", "budget", "twice", "template", "killed", "several", "groups")


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """Return the folder of the run without its sources, all its output, and the digests of source files, notes
    and ids.
    """
    folder = tmp_path_factory.mktemp("hospital")
    (folder / "spec.json").write_text(json.dumps(specification(folder), default=str))
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    checkout = Path(__file__).parents[3]
    path = os.pathsep.join([str(site), str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "NOTES_KEY": KEY}
    done = subprocess.run(
        [sys.executable, "-m", "dataprep_assets_tests.pipelines.notes.test_notes_privacy", str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=570,
        check=False,
        umask=0o022,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    sources = [path for source in SOURCES for path in (folder / source).iterdir()]
    # Exclude empty lists of patients, which all have the same digest.
    contents = [content for path in sources if (content := path.read_bytes()) != b"[]"]
    assert len({word for content in contents for word in re.findall(rb"CANARY\d{4}", content)}) >= 200
    digests = PlainDigests([*contents, *texts_of(contents)])
    for source in (*SOURCES, "site"):
        shutil.rmtree(folder / source)
    (folder / "spec.json").unlink()
    return folder, done.stdout + done.stderr, digests


def texts_of(contents: Sequence[bytes]) -> Iterator[bytes]:
    """Return each text in a record: of notes, and of fields that identify a patient."""
    for content in contents:
        with contextlib.suppress(ValueError):
            yield from (text.encode() for text in descriptions(json.loads(content)) if CANARY in text)


@pytest.mark.slow
def test_every_way_to_fail_occurred(left: Left) -> None:
    kept = "".join(path.read_text() for path in sorted(left[0].rglob(f"{PRIVATE}/*")))
    assert [month for month in failing() if f"  {month}: " not in kept] == []
    for said in (
        "is not valid JSON. Correct the file, or download it again",
        "in record 1",
        "invalid_utf8",
        "missing_metadata",
        "bad_metadata",
        "wrong_birth_month",
        "bad_birth_date",
        "duplicate_patient",
        "bad_date",
        "text_not_a_string",
        "notes_not_a_list",
        "bad_patient_id",
        "header_too_long",
        "no JSON array",
        "the file has no patient",
        "ValueError at",
        "more than the budget",
        "in several cohorts",
        "2010-02: its worker process died",
        "several files for",
        "nowhere: ",
    ):
        assert said in kept, said


@pytest.mark.slow
def test_no_canary_is_in_printed_output(left: Left) -> None:
    assert [line for line in left[1].splitlines() if CANARY in line] == []


@pytest.mark.slow
def test_no_canary_is_in_any_database(left: Left) -> None:
    databases = [p for p in left[0].rglob("*") if p.is_file() and p.read_bytes()[:15] == b"SQLite format 3"]
    assert len(databases) >= 3
    seen = 0
    for database in databases:
        for table, value in read_cells(database):
            seen += 1
            assert CANARY.encode() not in value, (database.name, table)
    assert seen > 1000


@pytest.mark.slow
def test_no_canary_is_in_the_name_or_content_of_any_file(left: Left) -> None:
    files = [path for path in left[0].rglob("*") if path.is_file()]
    assert any(path.name == "quarantine.jsonl" for path in files)
    assert any(path.suffix == ".err" for path in files), "compute logs"
    assert any(".findings" in path.parts for path in files)
    for path in files:
        if path.name.endswith(("-wal", "-shm")):  # SQLite's own files, which the test of the databases covers
            continue
        assert CANARY not in str(path.relative_to(left[0]))
        assert PRIVATE not in path.parts or stat.S_IMODE(path.stat().st_mode) == 0o600
        assert CANARY.encode() not in path.read_bytes(), path


@pytest.mark.slow
def test_all_files_are_private_to_their_owner(left: Left) -> None:
    found = [path for path in (left[0] / "artifacts").rglob("*") if not path.is_symlink()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} <= {0o600, 0o400}
    kinds = {path.name for path in found} | {path.suffix for path in found}
    assert {"receipt.json", "quarantine.jsonl", ".staging", ".findings", ".lock"} <= kinds


@pytest.mark.slow
def test_no_digest_reveals_a_file_a_note_or_a_patient_of_the_sources(left: Left) -> None:
    digests = left[2]
    assert len(digests.contents) > 40
    assert digests.found(left[1].encode()) is None
    for path in left[0].rglob("*"):
        assert not path.is_file() or digests.found(path.read_bytes()) is None, path
    for database in left[0].rglob("*.db"):
        assert digests.found(b"\n".join(value for _, value in read_cells(database))) is None, database


@pytest.mark.slow
def test_no_small_count_is_visible(left: Left) -> None:
    """The sources have 12 patients a month, 2 bad records, and one patient per month in other datasets."""
    numbers, texts = set[tuple[str, int]](), [left[1]]
    for database in left[0].rglob("*.db"):
        for _, value in read_cells(database):
            for event in documents_in(value):
                numbers |= set(small_numbers(event))
                texts += descriptions(event)
    assert numbers == set(), "metadata and tables"
    told = [found[0] for text in texts for found in PEOPLE.finditer(text)]
    assert told == []
    assert any("< 11" in text for text in texts)


@pytest.mark.slow
def test_the_pages_of_the_site_show_no_small_count_and_no_chart(left: Left) -> None:
    pages = {path.stem: path.read_text() for path in (left[0] / PAGES).iterdir()}
    assert pages.keys() == {"nowhere", *SOURCES}
    for name, page in pages.items():
        assert "<svg" not in page, name
        assert [found[0] for found in PEOPLE.finditer(page)] == [], name
        assert [found[0] for found in re.finditer(r"<b>(?:[1-9]|10)</b>|number\">(?:[1-9]|10)<", page)] == [], name
    assert any("&lt; 11" in page for page in pages.values())


@pytest.mark.slow
def test_the_result_of_a_check_is_only_passed_or_failed_with_positions(left: Left) -> None:
    events = [e for database in left[0].rglob("*.db") for _, value in read_cells(database) for e in documents_in(value)]
    found = {text for event in events for text in results_in(event)}
    assert {"passed"} < found
    assert [text for text in found if not SENTENCE.fullmatch(text)] == []


def results_in(value: Any) -> Iterator[str]:
    """Return the results of checks."""
    if isinstance(value, dict) and value.get("__class__") == "AssetCheckEvaluation":
        yield value["description"]
    for one in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from results_in(one)


def documents_in(value: bytes) -> Iterator[Any]:
    with contextlib.suppress(ValueError):
        yield json.loads(value)


def small_numbers(value: Any) -> Iterator[tuple[str, int]]:
    """Return labels and values of small whole numbers in metadata, and columns and values in tables."""
    if isinstance(value, list):
        for one in value:
            yield from small_numbers(one)
    elif isinstance(value, dict):
        data = value.get("entry_data")
        if isinstance(data, dict) and data.get("__class__") == "IntMetadataEntryData" and 0 < data["value"] < 11:
            yield value["label"], data["value"]
        if value.get("__class__") == "TableRecord":
            yield from ((name, v) for name, v in value["data"].items() if type(v) is int and 0 < v < 11)
        for one in value.values():
            yield from small_numbers(one)


def descriptions(value: Any) -> Iterator[str]:
    """Return every sentence of an event."""
    if isinstance(value, str):
        yield value
    for one in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from descriptions(one)


def test_the_repr_of_worker_arguments_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTES_KEY", KEY)
    put(tmp_path / "in", "2010-01", [person("2010-01")])
    attributes = plain_attributes(tmp_path / "in", ["2010-01", "2010-01"], **COMMON)
    notes = validate_declaration(NotesDeclaration, attributes, tmp_path / "defs.yaml")
    store = LocalArtifacts(tmp_path / "out")
    ensure_certificate(notes_engine(notes), store)
    shown = [notes, *packed_cohorts(notes, store, ["2010-01"]), *list_cohorts(notes).values()]
    shown += [cohort.plan for cohort in packed_cohorts(notes, store, ["2010-01"])]
    shown += plan_sharded_cohorts(notes, store, ["2010-01"])
    shown.append(PatientKey(public=KEY))
    assert [type(value).__name__ for value in shown if CANARY in repr(value)] == []


def test_a_key_written_into_the_yaml_is_not_quoted_in_the_error(tmp_path: Path) -> None:
    attributes = plain_attributes(tmp_path / "in", ["2010-01", "2010-01"], **COMMON)
    for wrong in ({"public": KEY}, {"public": KEY, "env": "NOTES_KEY"}, {"env": "NOTES_KEY", CANARY: KEY}, KEY):
        with pytest.raises(ConfigError) as raised:
            validate_declaration(NotesDeclaration, {**attributes, "patient_key": wrong}, tmp_path / "defs.yaml")
        assert KEY not in f"{raised.value} {raised.value.__cause__}"


if __name__ == "__main__":
    main()
