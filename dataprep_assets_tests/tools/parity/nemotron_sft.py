"""Sequences and loss masks of chat data beside those of Nemotron's `data_prep`, on the same invented rows.

Theirs come from `core/chat_sft_shard_core.py`, a row at a time, in a process with the transformers that its
`pyproject.toml` asks for (`their_sft.py`); ours from the spool of the same rows, with `like: nemotron` and the chat
template of their clone, named as a path. Ours are packed too, and every check of the project looks at them, under both
presets. Entry point: `compare`.
"""

import shutil
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from dataprep_assets.engine.checks.verdicts import find_all
from dataprep_assets.integrity.artifacts import Artifact, LocalArtifacts
from dataprep_assets.packing.algorithms import Algorithm
from dataprep_assets.pipelines.blend.sft import spool
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, chat_plan
from dataprep_assets.pipelines.blend.sft.packed_sft_checks import PACKED_SFT_CHECKS, open_shard
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import refuse_engine
from dataprep_assets.tokenization.chat.choices import NEMOTRON, PRESETS, ChatChoices
from dataprep_assets.tokenization.chat.template import ChatTemplate
from dataprep_assets_tests.tokenization.chat.trap import HEADERS, HERMES, TRAP
from dataprep_assets_tests.tools.parity.conversations import SHAPES, START, rows
from dataprep_assets_tests.tools.parity.pinned import pinned, run_apart
from dataprep_assets_tests.tools.parity.shards import packed, packed_shard, source_of
from dataprep_assets_tests.tools.parity.table import Row
from dataprep_assets_tests.tools.parity.their_sft import PACK_SIZE, Sequence

TOKENIZER = Path(spool.__file__).parents[3] / "defs" / "samples" / "sample_blend_sft" / "tokenizer"
PER_SHAPE = 30
PUBLISHED = ("nano3", "lightning35")
"""Nemotron's own templates."""
WRITTEN = {"trap": TRAP, "hermes": HERMES, "headers": HEADERS}
"""Our tests' templates, to confirm what the tests claim about `like: nemotron`, including templates that are not
theirs."""
_ALGORITHMS: tuple[Algorithm, ...] = ("concatenative", "first_fit_decreasing")
_ROW, _PACKED_SHAPES = 8192, ("plain", "system", "reasoning", "tools", "tools and reasoning", "two answers", "long")
_MARKS = {"hermes": ("<|im_start|>assistant\\n", "<|im_end|>\\n"), "headers": ("[assistant]\\n\\n", "<|im_end|>")}
"""Their start and end of an answer. Upstream assumes the marks of its own templates for any template."""
_NULL = "transformers 4.57 passes null fields of messages to the template"
_THEIRS = "the original takes its own templates' marks for those of this one"


def plan_with(template: Path, choices: ChatChoices = NEMOTRON, tokenizer: Path = TOKENIZER) -> ChatPlan:
    """Return our plan with a template in a file, encoded by the reference engine."""
    bundle = TokenizerBundle.load(tokenizer)
    refused = refuse_engine(bundle, "text", "tokenizers", "a comparison")
    return chat_plan(
        bundle,
        refused,
        ChatTemplate.load(str(template)),
        pack_size=PACK_SIZE,
        bad_rows="drop",
        choices=choices,
        sample_rate=0.0,
    )


def compare(folder: Path, tokenizer: Path = TOKENIZER) -> list[Row]:
    """Return a row for each template and shape. `folder` is a clone of NVIDIA-NeMo/Nemotron, `tokenizer` a
    tokenizer's.
    """
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        templates = {t: folder / "src/nemotron/data_prep/templates" / f"{t}.jinja" for t in PUBLISHED}
        for called, text in WRITTEN.items():
            (path := scratch / f"{called}.jinja").write_text(text)
            templates[called] = path
        given = {shape: rows(shape, PER_SHAPE) for shape in SHAPES}
        tasks: list[dict[str, Any]] = [
            task | {"template": str(path)}
            for called, path in templates.items()
            for shape in given
            for task in _asked(called, given[shape])
        ]
        mixed = [row for shape in _PACKED_SHAPES for row in given[shape]]
        first = templates[PUBLISHED[0]]
        for algorithm in _ALGORITHMS:
            pack = {"algorithm": algorithm, "pack_size": _ROW}
            tasks.append({"template": str(first), "rows": mixed, "pack": pack})
        job = {"tokenizer": str(tokenizer), "scratch": str(scratch / "theirs"), "tasks": tasks}
        told = run_apart("their_sft", job, [pinned(folder, "transformers"), folder / "src"])
        theirs = iter(told["made"])
        found = []
        for called, path in templates.items():
            plan = plan_with(path, tokenizer=tokenizer)
            compared = _Compared(f"sft, {called}", plan, TokenizerBundle.load(tokenizer).decode)
            for shape, some in given.items():
                made = {task["why"]: next(theirs) for task in _asked(called, some)}
                found.append(compared.row(shape, some, made, scratch / "ours"))
        for algorithm in _ALGORITHMS:
            file = packed(replace(plan_with(first), pack_size=_ROW), mixed, scratch / algorithm, algorithm)
            found.append(_packing(file, Path(next(theirs)), algorithm, len(mixed)))
        found += [row for called, path in templates.items() for row in _checks(called, path, given, scratch)]
        return [replace(row, note=f"{row.note}; transformers {told['transformers']}") for row in found[:1]] + found[1:]


def _asked(called: str, given: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Return the requests to upstream for rows: unchanged, and again without each feature in which it is known to
    differ.

    `why` is that feature: if our row equals the upstream result without it, the row differs for no other reason.
    """
    yield {"rows": given, "why": ""}
    whole = [_without_nulls(row) for row in given]
    if whole != given:
        yield {"rows": whole, "why": _NULL}
    if called in _MARKS:
        yield {"rows": given, "why": _THEIRS, "marks": _MARKS[called]}
        if whole != given:
            yield {"rows": whole, "why": f"{_NULL}; {_THEIRS}", "marks": _MARKS[called]}


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    messages = [
        {name: value for name, value in message.items() if value is not None} if isinstance(message, dict) else message
        for message in row["messages"] or []
    ]
    return {**row, "messages": messages} if row["messages"] else row


class _Compared:
    """Rows of one template, ours compared with theirs."""

    def __init__(self, area: str, plan: ChatPlan, decode: Callable[[Any], str]) -> None:
        self._area, self._plan, self._decode = area, plan, decode

    def row(self, shape: str, given: list[dict[str, Any]], made: Mapping[str, list[list[list[Any]]]], at: Path) -> Row:
        """Return the table's line of a shape.

        `made` has their sequences of each row, by the omitted feature (`_asked`); `at` is a working folder.
        """
        theirs = {why: [[(ids, mask) for ids, mask in sequences] for sequences in of] for why, of in made.items()}
        ours = list(_ours(self._plan, given, at))
        shutil.rmtree(at)
        notes: Counter[str] = Counter()
        for number, (row, mine) in enumerate(zip(given, ours, strict=True)):
            if mine != theirs[""][number]:
                known = [why for why, of in theirs.items() if why and of[number] == mine]
                if not known and self._thought_in_text(row, mine, theirs[""][number]):
                    known = ["`inline_reasoning` is refused; their mask begins within a thought in the text"]
                notes.update(known[:1])
        equal = sum(mine == other for mine, other in zip(ours, theirs[""], strict=True))
        told = f"{sum(map(bool, ours))} rows packed here, {sum(map(bool, theirs['']))} there"
        note = "; ".join([told, *(f"{count}: {why}" for why, count in notes.items())])
        return Row(self._area, shape, len(ours), equal, notes.total(), note)

    def _thought_in_text(self, row: dict[str, Any], ours: list[Sequence], theirs: list[Sequence]) -> bool:
        """Return whether their mask starts inside an answer's own text, which has a thought."""
        thought = str((row["messages"] or [{}])[-1].get("content"))
        if ours or not theirs or not thought.startswith("<think>"):
            return False
        ids, mask = theirs[-1]
        untrained = self._decode(ids[: len(mask) - mask[::-1].index(0)])
        beginning = unicodedata.normalize("NFC", thought[: len("<think></think>")])
        return untrained.endswith(f"{START}assistant\n{beginning}")


def _ours(plan: ChatPlan, given: list[dict[str, Any]], folder: Path) -> Iterator[list[Sequence]]:
    """Return the sequences of each row, in order."""
    source = source_of(given, folder)
    shard = Artifact(dataset="parity", name="packed_sft", partition="a")
    spool.spool_source(plan, source, folder, shard)
    at = LocalArtifacts(folder).directory(spool.get_spool_artifact(shard, 0))
    tokens = np.fromfile(at / spool.TOKENS, np.int32)
    masks = np.fromfile(at / spool.MASKS, np.uint8)
    lengths = np.fromfile(at / spool.LENGTHS, np.uint32).astype(np.int64)
    ends = np.cumsum(lengths)
    origins = np.fromfile(at / spool.ORIGINS, np.int64).reshape(-1, 2)[:, 0]
    made: dict[int, list[Sequence]] = {}
    for row, start, end in zip(origins.tolist(), (ends - lengths).tolist(), ends.tolist(), strict=True):
        made.setdefault(row, []).append((tokens[start:end].tolist(), [0, *masks[start : end - 1].tolist()]))
    yield from (made.get(row, []) for row in range(1, len(given) + 1))


def _packing(made: Path, their_file: Path, algorithm: Algorithm, conversations: int) -> Row:
    """Compare packed files of rows that both accept, in each row of the file and each of its columns."""
    ours, theirs = pq.read_table(made).to_pylist(), pq.read_table(their_file).to_pylist()
    # Compare all columns of the original. Ours also has columns that follow from them.
    equal = sum({name: mine[name] for name in other} == other for mine, other in zip(ours, theirs, strict=False))
    note = f"{conversations} conversations; `first_fit_shuffle` shuffles by another generator, so its rows differ"
    return Row("sft, packed rows", algorithm, max(len(ours), len(theirs)), equal, 0, note)


def _checks(called: str, path: Path, given: Mapping[str, list[dict[str, Any]]], scratch: Path) -> Iterator[Row]:
    """Run every check of ours on the packed rows of each shape: a record is a check of a shape."""
    for like, choices in PRESETS.items():
        plan = replace(plan_with(path, choices), pack_size=_ROW)
        red: list[str] = []
        count = 0
        for shape, some in given.items():
            at = scratch / "checked"
            shard = packed_shard(plan, some, at)
            for name, finding in find_all(PACKED_SFT_CHECKS, open_shard, None, shard).items():
                count += 1
                if not finding.passed:
                    red.append(f"{name} of {shape}")
            shutil.rmtree(at)
        note = "; ".join(red) or f"the checks of {len(given)} shapes pass"
        yield Row("sft, our checks", f"{called}, like: {like}", count, count - len(red), 0, note)
