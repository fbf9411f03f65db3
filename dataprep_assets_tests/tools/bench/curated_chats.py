"""`python -m dataprep_assets_tests.tools.bench.curated_chats`: memory of `dataprep run` on many curated conversations.

Each size is a new project with a blend of short conversations, which is built once with every check. It has the tagger
`personal`, rules over columns, near-duplicates by questions, benchmark items, the document table, packing and a view.
Memory is the sum of proportional set sizes: of a page that n processes share, each counts an n-th. The run's output
divides the time into parts, and printed per part are the peaks of the main process, of the largest other process, and
of all processes at a time.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from dataprep_assets_tests.tools.bench.invented_text import sentence, vocabulary
from dataprep_assets_tests.tools.bench.memory import descendants, proportional_bytes
from dataprep_assets_tests.tools.bench.runner import measure
from dataprep_assets_tests.tools.bench.whole_run import build_command, find_tokenizer

TARGET = 2_000_000_000
"""The maximum bytes of all processes at a time."""
DATASET = "chats"
_FILES, _ITEMS, _ITEM_WORDS, _SENTENCES = 8, 1_000, 20, 50_000
_SAMPLE_SECONDS = 0.25


def write_conversations(folder: Path, count: int, seed: int = 0) -> None:
    """Write this many conversations of one to three turns to JSON Lines files, and benchmark items next to them.

    A tenth repeats the question of an earlier conversation with one more word, one in 200 has a benchmark item, a tenth
    has an e-mail address, and a third has reasoning.
    """
    draw, words = random.Random(seed), vocabulary()
    # Draw from prepared sentences, because inventing each word of a million conversations takes longer than the run.
    sentences = [sentence(draw, words, draw.randint(4, 10)) for _ in range(_SENTENCES)]
    items = [sentence(draw, words, _ITEM_WORDS) for _ in range(_ITEMS)]
    (folder / "rows").mkdir()
    (folder / "items.jsonl").write_text("".join(json.dumps({"question": text}) + "\n" for text in items))
    questions: list[str] = []
    for number in range(_FILES):
        with (folder / "rows" / f"{number}.jsonl").open("w") as lines:
            for index in range(number, count, _FILES):
                question = " ".join(draw.choices(sentences, k=3))
                if questions and index % 10 == 1:
                    question = f"{draw.choice(questions)} {draw.choice(words)}"
                elif index % 100 == 2:
                    questions.append(question)
                if index % 200 == 3:
                    question = f"{question} {draw.choice(items)}"
                messages = [{"role": "user", "content": question}]
                for turn in range(draw.choice((1, 1, 1, 2, 3))):
                    if turn:
                        messages.append({"role": "user", "content": draw.choice(sentences)})
                    answer = {"role": "assistant", "content": " ".join(draw.choices(sentences, k=2))}
                    if index % 10 == 4:
                        answer["content"] += f" {draw.choice(words)}{index}@{draw.choice(words)}.com"
                    if index % 3 == 0:
                        answer["reasoning_content"] = draw.choice(sentences)
                    messages.append(answer)
                lines.write(json.dumps({"messages": messages, "topic": words[index % 50]}) + "\n")


def declare_blend(folder: Path, tokenizer: Path) -> dict[str, Any]:
    """Return the declaration of the blend of a folder's conversations."""
    attributes = {
        "dataset": DATASET,
        "stage": "sft",
        "blend": {"datasets": [{"name": DATASET, "path": str(folder / "rows")}]},
        "tokenizer": {"path": str(tokenizer)},
        "sft": {"pack_size": 4096, "chat_template": "chatml_reasoning"},
        "num_shards": _FILES,
        "tag": ["personal"],
        "keep": {"answered": "answer_characters > 100"},
        "drop": {"long_answers": "answer_question_ratio > 6", "personal": "emails > 0"},
        "keep_fields": {"topic": "string"},
        "duplicates": {"text": "questions", "across_splits": "drop"},
        "decontaminate": {"sets": {"items": {"path": str(folder / "items.jsonl"), "fields": ["question"]}}},
        "held_out": {"valid": 1},
        "views": ["sft_rows"],
    }
    return {"type": "dataprep_assets.components.TrainingBlend", "attributes": attributes}


def _list_memory(pid: int) -> tuple[int, int, int]:
    """Return the memory of the process that runs the steps, of its largest worker, and of all processes, in bytes."""
    # The command's own process only guards the process that runs the steps, which is its first child.
    sizes = [proportional_bytes(process) for process in descendants(pid)]
    return max(sizes[:2]), max(sizes[2:], default=0), sum(sizes)


class StepMemory:
    """The peak memory of each step of a run.

    Attributes:
        peaks: Step → peak bytes of the main process, of the largest other process, and of all processes at a time.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """Run a command to its end. Raises SystemExit if it fails."""
        self.peaks: dict[str, list[int]] = {}
        self._peak, self._lock, self._ended = [0, 0, 0], threading.Lock(), threading.Event()
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert run.stdout is not None, "a pipe was asked for"
        watch = threading.Thread(target=self._watch, args=(run.pid,), daemon=True)
        watch.start()
        output = []
        for line in run.stdout:
            output.append(line)
            # The line of a step is printed at its end, after its checks.
            if line.startswith("✓ "):
                self._close_step(line.split()[1])
        self._ended.set()
        watch.join()
        self._close_step("report")
        if run.wait():
            raise SystemExit("".join(output[-20:]))

    def _watch(self, pid: int) -> None:
        while not self._ended.wait(_SAMPLE_SECONDS):
            memory = _list_memory(pid)
            with self._lock:
                self._peak = list(map(max, self._peak, memory))

    def _close_step(self, name: str) -> None:
        with self._lock:
            self.peaks[name], self._peak = self._peak, [0, 0, 0]


def measure_blend(folder: Path, count: int, tokenizer: Path) -> StepMemory:
    """Return the memory of the first build of a blend of this many conversations, in a new project."""
    write_conversations(folder, count)
    home, root = folder / "home", folder / "project"
    home.mkdir()
    measure([*build_command(home, root)[:-2], "init", str(root)])
    (defs,) = (path for path in root.rglob("defs") if path.is_dir() and ".dataprep" not in path.parts)
    (defs / DATASET).mkdir()
    (defs / DATASET / "defs.yaml").write_text(yaml.safe_dump(declare_blend(folder, tokenizer)))
    return StepMemory(build_command(home, root, "run", DATASET))


def render(count: int, memory: StepMemory) -> str:
    """Return the memory of each step as text."""
    peak = max(total for _, _, total in memory.peaks.values())
    lines = [f"{count:,} conversations, MB:       main  worker     all"]
    lines += [
        f"  {name:<22}" + "".join(f"{value / 1e6:>8,.0f}" for value in peaks) for name, peaks in memory.peaks.items()
    ]
    return "\n".join([*lines, f"  at most {TARGET / 1e9:g} GB in all: {'met' if peak <= TARGET else 'MISSED'}"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a size misses the target."""
    parser = argparse.ArgumentParser(
        prog="python -m dataprep_assets_tests.tools.bench.curated_chats", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--counts", type=int, nargs="+", default=[100_000, 300_000, 1_000_000], help="conversations")
    parser.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json and its configuration")
    parser.add_argument("--scratch", type=Path, help="folder for the projects, which are removed again")
    arguments = parser.parse_args(argv)
    has_missed = False
    for count in arguments.counts:
        with tempfile.TemporaryDirectory(prefix="dataprep-bench-", dir=arguments.scratch) as folder:
            memory = measure_blend(Path(folder), count, find_tokenizer(arguments.tokenizer))
        print(render(count, memory), flush=True)
        has_missed |= max(total for _, _, total in memory.peaks.values()) > TARGET
    return int(has_missed)


if __name__ == "__main__":
    sys.exit(main())
