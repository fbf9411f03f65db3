"""`python -m dataprep_assets_tests.tools.atlas.sweep TEMPLATES`: every template times every kind, packed and compared.

Each template is a shard of `stage: sft`, each kind of conversation a file of one row. With `--run`, each template is a
dataset in a project of `dataprep init`, which takes ten times as long.
The packed rows are compared with what transformers renders: the ids of each sequence, the trained texts by their own
words, and for a template with `{% generation %}` transformers' mask of the answer's tokens. The exit code is 1 if a
cell is wrong, or if a refusal does not name row and feature.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, tzinfo
from functools import partial
from itertools import groupby, pairwise, product
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import yaml  # type: ignore[import-untyped]

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.errors import ConfigError, TokenizerError
from dataprep_assets.formats.row_origins import ORIGINS, read_origins
from dataprep_assets.integrity.artifacts import Artifact, LocalArtifacts
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatSource, chat_plan
from dataprep_assets.pipelines.blend.sft.packed_sft_checks import PACKED_SFT_CHECKS, open_shard
from dataprep_assets.pipelines.blend.sft.packing import build_sft_shard
from dataprep_assets.pipelines.blend.sft.shard import PACKED, QUARANTINE, PackPlan, SftShard
from dataprep_assets.stores.files import sha256_file
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import refuse_engine
from dataprep_assets.tokenization.chat.choices import OURS
from dataprep_assets.tokenization.chat.template import ChatTemplate, compile_template, get_template_variables
from dataprep_assets_tests.tools.atlas.cells import (
    FULL,
    PART,
    REFUSED,
    WRONG,
    Cell,
    Piece,
    forms,
    judge,
    with_first_key,
    written_by,
)
from dataprep_assets_tests.tools.atlas.kinds import KINDS, ROLES, Kind
from dataprep_assets_tests.tools.atlas.template_folder import templates_in, write_tokenizer_of

_DATE = date(2026, 1, 31)
_PACK_SIZE = 8192
_TIMEOUT = 1800
_TOGETHER = 12
"""The number of datasets in one run."""


@dataclass(frozen=True)
class SweptTemplate:
    """The cells of a template by kind, and the kinds that the bare template writes; or the reason for a refusal."""

    name: str
    cells: Mapping[str, Cell]
    writable: frozenset[str] = frozenset()
    refusal: str = ""

    @property
    def lacking(self) -> list[str]:
        """The kinds that the template can write, but that are not used in full."""
        return [kind for kind in self.writable if kind not in self.cells or self.cells[kind].verdict != FULL]


def dataset_name(template: str) -> str:
    """Return the name of the dataset of a template."""
    return f"t_{template}".lower()


def declare(project: Path, name: str, text: str) -> None:
    """Write the dataset of a template into a project of `dataprep init`."""
    folder = _folder_of(project, name)
    (folder / "rows").mkdir(parents=True)
    write_tokenizer_of(name, text, folder / "tokenizer")
    for number, kind in enumerate(KINDS):
        (folder / "rows" / f"{number:02d}.jsonl").write_text(json.dumps(kind.row) + "\n", encoding="utf-8")
    attributes = {
        "dataset": dataset_name(name),
        "stage": "sft",
        "num_shards": 1,
        "blend": {"datasets": [{"name": "kinds", "path": "./rows/*.jsonl"}]},
        "tokenizer": {"path": "./tokenizer"},
        "bad_records": {"policy": "drop", "budget": 1.0},
        "sft": {
            "pack_size": _PACK_SIZE,
            "sample_rate": 1.0,
            "template_date": _DATE.isoformat(),
            "roles": list(ROLES),
        },
    }
    declaration = {"type": "dataprep_assets.components.TrainingBlend", "attributes": attributes}
    (folder / "defs.yaml").write_text(yaml.safe_dump(declaration, sort_keys=False), encoding="utf-8")


def run_datasets(project: Path, names: Sequence[str]) -> dict[str, str]:
    """Run datasets, and return the output of the ones that are refused."""
    command = [str(Path(sys.executable).with_name("dataprep")), "run"]
    environment = {key: value for key, value in os.environ.items() if key not in ("DAGSTER_HOME", "DATAPREP_ROOT")}
    outputs = {}

    def run(*datasets: str) -> str:
        done = subprocess.run(
            [*command, *datasets],
            cwd=project,
            env=environment | {"DAGSTER_DISABLE_TELEMETRY": "yes"},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
        return "" if not done.returncode else done.stdout[-4000:] + done.stderr[-4000:]

    for start in range(0, len(names), _TOGETHER):
        group = names[start : start + _TOGETHER]
        if run(*group):
            # Run the datasets one by one, because a refused dataset may have ended the run of its group.
            outputs.update({name: output for name in group if (output := run(name))})
        print(f"{start + len(group)} of {len(names)} datasets run", file=sys.stderr, flush=True)
    return outputs


def _origins(folder: Path) -> list[int]:
    """Return the number of the source file of each packed sequence."""
    return [int(source) for source in read_origins(folder / ORIGINS, 3)[:, 0]]


def packed_sequences(folder: Path) -> dict[int, list[Sequence[tuple[int, int]]]]:
    """Return the packed sequences by number of their source file: pairs of an id and whether it is trained."""
    sequences: dict[int, list[Sequence[tuple[int, int]]]] = {}
    if not (folder / PACKED).exists():
        return sequences
    origins = iter(_origins(folder))
    for row in parquet.read_table(folder / PACKED).to_pylist():
        ids, mask, starts = row["input_ids"], row["loss_mask"], row["seq_start_id"]
        for start, stop in pairwise([*starts, len(ids)]):
            # The mask at position i belongs to token i + 1, and the first token of a sequence is never in the loss.
            trained = [0, *mask[start : stop - 1]]
            sequences.setdefault(next(origins), []).append([*zip(ids[start:stop], trained, strict=True)])
    return sequences


class _SweepDay(datetime):
    """A `datetime` class whose current day is that of the sweep."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "_SweepDay":
        return cls.combine(_DATE, cls.min.time(), tz)


class Reference:
    """The results of transformers for a kind of conversation with the tokenizer of a folder."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer
        from transformers.utils import chat_template_utils

        # Replace the class, because transformers has no other way to set the day of `strftime_now`.
        chat_template_utils.datetime = _SweepDay  # type: ignore[attr-defined]
        self._tokenizer = AutoTokenizer.from_pretrained(str(folder))
        self._text = (folder / "chat_template.jinja").read_text(encoding="utf-8")

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a rendered text."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _renderings(self, kind: Kind) -> Iterator[tuple[str, bool]]:
        """Yield the renderings of each beginning of a conversation, and whether one is a generation prompt."""
        from transformers.utils import chat_template_utils

        messages = [with_first_key(message) for message in kind.row["messages"]]
        inputs = _different([form.apply_form(messages) for form in forms()])
        for given, end, prompt in product(inputs, range(len(messages), 0, -1), (False, True)):
            for thinking in ({}, {"enable_thinking": True}, {"enable_thinking": False}):
                with suppress(Exception):
                    # Use the inner function, because `apply_chat_template` converts null content to text, and arguments
                    # to objects.
                    (text,), _ = chat_template_utils.render_jinja_template(
                        [given[:end]],
                        tools=kind.row.get("tools"),
                        chat_template=self._text,
                        add_generation_prompt=prompt,
                        **self._tokenizer.special_tokens_map,
                        **thinking,
                    )
                    yield str(text), prompt

    def differences(self, kind: Kind, sequences: Sequence[Sequence[tuple[int, int]]]) -> Iterator[str]:
        """Yield the differences between packed sequences and all renderings of a kind."""
        unknown = {}
        for sequence in sequences:
            ids = [token for token, _ in sequence]
            text = self.decode(ids)
            # Also accept the ids of separately encoded pieces, because a model reads its prompt before it answers, so
            # no token can span the start of an answer.
            if ids not in (
                self.encode(text),
                [token for piece, _ in _pieces(self, sequence) for token in self.encode(piece)],
            ):
                yield f"the ids of {text!r} are not those of its text"
            unknown[text] = ids
        for rendering, prompt in self._renderings(kind):
            if not unknown:
                return
            for text in [*unknown]:
                ending = text[len(rendering) :] if text.startswith(rendering) else None
                # Accept a text that adds only the missing end of an answer to a rendering, or that adds the last answer
                # to a prompt, because the history may lack text that the prompt opens.
                if ending is not None and (kind.trained[-1] in ending if prompt else len(self.encode(ending)) <= 1):
                    del unknown[text]
        yield from (f"{text!r} is no rendering of transformers" for text in unknown)

    def marked_ids(self, kind: Kind) -> set[tuple[int, ...]]:
        """Return the ids that transformers puts in the loss for a template with `{% generation %}`.

        Renderings that lose a text of the answers are excluded, because a history may lack text that a prompt opens.
        """
        messages = [with_first_key(message) for message in kind.row["messages"]]
        sequences = set()
        for given in _different([form.apply_form(messages) for form in forms()]):
            with suppress(Exception):
                encoded = self._tokenizer.apply_chat_template(
                    given,
                    tools=kind.row.get("tools"),
                    return_dict=True,
                    return_assistant_tokens_mask=True,
                )
                pairs = zip(encoded["input_ids"], encoded["assistant_masks"], strict=True)
                marked = tuple(token for token, mask in pairs if mask)
                if all(text in self.decode(marked) for text in kind.trained):
                    sequences.add(marked)
        return sequences


def _different(inputs: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    return [given for number, given in enumerate(inputs) if given not in inputs[:number]]


def build_shard(folder: Path) -> Path:
    """Build the shard of a declared template without a run, and return its folder."""
    bundle = TokenizerBundle.load(folder / "tokenizer")
    certificate = refuse_engine(bundle, "text", "tokenizers", "a sweep of templates")
    shard = SftShard(
        artifact=Artifact(dataset="cells", name="packed_sft", partition="kinds-00000"),
        store=LocalArtifacts(folder / "artifacts"),
        sources=tuple(_source(path, number) for number, path in enumerate(sorted((folder / "rows").iterdir()))),
        plan=chat_plan(
            bundle,
            certificate,
            ChatTemplate.load_from_tokenizer(bundle),
            pack_size=_PACK_SIZE,
            template_date=_DATE,
            choices=replace(OURS, roles=ROLES),
            bad_rows="drop",
        ),
        packing=PackPlan(),
        budget=1.0,
    )
    build_sft_shard(shard, "full", None)
    if failed := [name for name, finding in _findings(shard).items() if not finding.passed]:
        raise SystemExit(f"{folder.name}: checks failed: {', '.join(failed)}")
    return shard.store.local(shard.artifact)


def _findings(shard: SftShard) -> dict[str, Finding]:
    packed = open_shard(shard)
    return {check.name: check.run(packed) for check in PACKED_SFT_CHECKS if check.blocking}


def _source(path: Path, ordinal: int) -> ChatSource:
    size, digest = path.stat().st_size, sha256_file(path)
    return ChatSource(
        label=path.name, path=path, format="jsonl", compression=None, sha256=digest, ordinal=ordinal, size=size
    )


def cells_of(name: str, folder: Path, shards: Sequence[Path]) -> SweptTemplate:
    """Return the cells of a template.

    Args:
        name: The name of the template.
        folder: Its tokenizer.
        shards: The folders of its packed shards.
    """
    bundle, template = TokenizerBundle.load(folder), ChatTemplate.load(str(folder / "chat_template.jinja"))
    renderer = compile_template(template, get_template_variables(bundle), _DATE)
    reference, cells = Reference(folder), {}
    for shard in shards:
        receipt = json.loads((shard / "receipt.json").read_bytes())
        packed = packed_sequences(shard)
        quarantine = [json.loads(line) for line in _lines(shard / QUARANTINE)]
        for source in receipt["facts"]["sources"]:
            kind = KINDS[int(Path(source["file"]).stem)]
            sequences = packed.get(source["ordinal"], [])
            reasons = [*source.get("cuts", {}), *(r["reason"] for r in quarantine if r["file"] == source["file"])]
            cell = judge(kind, [_pieces(reference, sequence) for sequence in sequences], reasons)
            differences = list(reference.differences(kind, sequences))
            if template.marks_answers and cell.verdict == FULL and len(sequences) == 1:
                trained = tuple(token for token, is_trained in sequences[0] if is_trained)
                if (marked := reference.marked_ids(kind)) and trained not in marked:
                    texts = [reference.decode(ids) for ids in marked]
                    differences.append(f"{reference.decode(trained)!r} is in the loss, the marks are around {texts}")
            if differences:
                cell = replace(cell, verdict=WRONG, reason="; ".join([*filter(None, [cell.reason]), *differences]))
            cells[kind.name] = cell
    return SweptTemplate(name, cells, frozenset(kind.name for kind in KINDS if written_by(renderer, kind)))


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


def _pieces(reference: Reference, sequence: Sequence[tuple[int, int]]) -> list[Piece]:
    return [
        (reference.decode([token for token, _ in group]), bool(is_trained))
        for is_trained, group in groupby(sequence, key=lambda pair: pair[1])
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.atlas.sweep", description=__doc__)
    parser.add_argument("templates", type=Path, help="folder with chat templates (`*.jinja`)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these templates")
    parser.add_argument("--run", action="store_true", help="by `dataprep run`")
    parser.add_argument("--project", type=Path, help="keep the project in this new folder")
    parser.add_argument("--json", type=Path, help="also write all cells here")
    given = parser.parse_args(argv)
    templates = {name: t for name, t in templates_in(given.templates).items() if not given.only or name in given.only}
    with tempfile.TemporaryDirectory(prefix="dataprep-atlas-") as scratch:
        project = (given.project or Path(scratch, "cells")).resolve()
        _init(project)
        for name, text in templates.items():
            declare(project, name, text)
        cells = [*_swept_by_run(project, [*templates])] if given.run else [*map(partial(_swept, project), templates)]
    if given.json:
        table = {s.name: {k: [c.verdict, c.reason, c.sequences] for k, c in s.cells.items()} for s in cells}
        given.json.write_text(json.dumps(table, indent=1, ensure_ascii=False), encoding="utf-8")
    return _report(cells)


def _swept(project: Path, name: str) -> SweptTemplate:
    folder = _folder_of(project, name)
    try:
        cells = cells_of(name, folder / "tokenizer", [build_shard(folder)])
    except (ConfigError, TokenizerError) as error:
        cells = SweptTemplate(name, {}, refusal=str(error))
    _print(cells)
    return cells


def _swept_by_run(project: Path, names: Sequence[str]) -> Iterator[SweptTemplate]:
    refusals = run_datasets(project, [dataset_name(name) for name in names])
    for name in names:
        output = refusals.get(dataset_name(name), "")
        receipts = (project / ".dataprep" / "artifacts" / dataset_name(name)).glob("packed_sft/*/receipt.json")
        shards = sorted(path.parent for path in receipts)
        tokenizer = _folder_of(project, name) / "tokenizer"
        cells = SweptTemplate(name, {}, refusal=output) if output else cells_of(name, tokenizer, shards)
        _print(cells)
        yield cells


def _folder_of(project: Path, name: str) -> Path:
    return project / project.name / "defs" / dataset_name(name)


def _init(project: Path) -> None:
    command = [str(Path(sys.executable).with_name("dataprep")), "init", project.name]
    subprocess.run(command, cwd=project.parent, check=True, stdout=subprocess.DEVNULL)


def _print(template: SweptTemplate) -> None:
    print(f"{template.name}: {template.refusal or Counter(cell.verdict for cell in template.cells.values())}")
    for name, cell in template.cells.items():
        if cell.verdict != FULL:
            note = "" if cell.verdict == WRONG or name not in template.writable else " (the bare template writes it)"
            print(f"    {name}: {cell.verdict}: {cell.reason}{note}")
    sys.stdout.flush()


def _report(cells: Sequence[SweptTemplate]) -> int:
    """Print the totals, and return the exit code."""
    verdicts = Counter(cell.verdict for one in cells for cell in one.cells.values())
    stock = [one for one in cells if not one.name.endswith("_training")]
    complete = [one for one in stock if not one.refusal and not one.lacking]
    print(f"{len(cells)} templates × {len(KINDS)} kinds: {', '.join(f'{v} {verdicts[v]}' for v in _VERDICTS)}")
    print(f"refused as a whole: {', '.join(one.name for one in cells if one.refusal) or 'none'}")
    print(f"{len(complete)} of {len(stock)} stock templates take every kind that they can write themselves")
    for one in cells:
        if one.lacking:
            print(f"    {one.name} lacks {', '.join(one.lacking)}")
    return int(bool(verdicts[WRONG]))


_VERDICTS = (FULL, PART, REFUSED, WRONG)


if __name__ == "__main__":
    raise SystemExit(main())
