"""What a state decides of each artifact: a value that changes exactly when the artifact has to be rebuilt.

Written from what the documentation promises (docs/corpus-changes.md, docs/yaml-reference.md), independent of recipes
and keys: where the product and this differ, one of them is wrong.
"""

from typing import Any

from dataprep_assets.integrity.digest import digest_value
from dataprep_assets_tests.bench.changes.corpus import SPLITS, VIEWS, State
from dataprep_assets_tests.bench.invented_text import SEPARATORS

CERTIFIED_FILES = 6


def replanned(state: State, before: dict[str, list[str]]) -> dict[str, list[str]]:
    """The plan after files came and went: shards keep what is left of theirs, new files make one new shard a split."""
    plan: dict[str, list[str]] = {}
    for split in SPLITS:
        earlier = {key: files for key, files in before.items() if key.startswith(f"{split}-")}
        kept = {key: sorted(f for f in files if f in state.files) for key, files in earlier.items()}
        plan |= {key: files for key, files in kept.items() if files}
        held = {f for files in earlier.values() for f in files}
        if new := sorted(f for f in state.files if f.startswith(f"{split}/") and f not in held):
            plan[f"{split}-{max(int(key[-5:]) for key in earlier) + 1:05d}"] = new
    return plan


def decided(state: State) -> dict[str, Any]:
    """Artifact → all that it is made of, as far as it matters to its bytes or to its proofs."""
    s = state.settings
    size = {path: len(file.render()) for path, file in state.files.items()}
    stream = [state.tokenizer, *(s[n] for n in ("document.separator", "document.bos", "document.special_tokens"))]
    found: dict[str, Any] = {
        "manifest": [[key, [(f, size[f]) for f in files]] for key, files in state.plan.items()],
        "engine_certificate": [
            state.tokenizer,
            s["document.special_tokens"],
            s["tokenizer.refuse"],
            [(f, size[f]) for f in _certified(state)],
        ],
    }
    contents: dict[str, list[Any]] = {split: [] for split in SPLITS}
    texts: dict[str, list[Any]] = {split: [] for split in SPLITS}
    for key, files in state.plan.items():
        split = key.rpartition("-")[0]
        rendered = [(f, state.files[f].render()) for f in files]
        rows = [row for f in files for row in state.files[f].documents]
        here = sorted(i for i, _ in rows if i in state.retracted)
        found[f"snapshot/{key}"] = rendered
        found[f"token_bins/{key}"] = [
            *stream,
            *(s[n] for n in ("dtype", "bad_records.policy", "bad_records.budget", "tokenizer.refuse")),
            rendered,
            here,
        ]
        left = [(i, t) for i, t in rows if i not in state.retracted]
        moved = [by for f in files for by in _moved(state, f)]
        encoded = _encoded(state, [t for _, t in left])
        contents[split].append([key, encoded, [i for i, _ in left], moved if any(moved) else []])
        texts[split].append(encoded)
    for split in SPLITS:
        found[f"combined_bins/{split}"] = [s["tokenizer.name"], contents[split]]
    joined = [[s["tokenizer.name"], [t for shard in texts[split] for t in shard]] for split in SPLITS]
    for view in VIEWS:
        found[f"{view}_bins"] = [joined, s["olmo_sequence_length"] if view == "olmo" else None]
    return found


def _moved(state: State, path: str) -> list[int]:
    """Of each document that is left of a file, how many rows before it were left out: the index has to know."""
    found, before = [], 0
    for name, _ in state.files[path].documents:
        if name in state.retracted:
            before += 1
        else:
            found.append(before)
    return found


def _encoded(state: State, texts: list[str]) -> list[Any]:
    """Stand-ins of the documents' ids: equal where the ids are."""
    s = state.settings
    ids = [state.tokenizer, s["document.separator"], s["document.bos"], s["dtype"]]
    matched = s["document.special_tokens"] == "match"
    return [[*ids, matched and any(token in text for token in SEPARATORS), text] for text in texts]


def _certified(state: State) -> list[str]:
    """The files that the engine is certified on: two of each split, by the digest of their names."""
    chosen: list[str] = []
    for split in SPLITS:
        members = [f for key, files in state.plan.items() if key.startswith(f"{split}-") for f in files]
        drawn = sorted(members, key=digest_value)[: CERTIFIED_FILES // len(SPLITS)]
        chosen += [f for f in members if f in drawn]
    return chosen


def rebuilt(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """The artifacts that a change of state touches."""
    return {name for name, value in after.items() if name not in before or before[name] != value}
