"""Proof on the shares of a blend run: each dataset has its requested share.

The shares are computed again from the files that the trainer reads: those of pretraining from `blend.json`, those of RL
from `shards.json` and the ledgers of the shards that it lists, those of SFT are rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from dataprep_assets.errors import FormatError
from dataprep_assets.formats import blend_json
from dataprep_assets.graph.finding import Finding, judged, verdict
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan import BlendPlan, partition_key
from dataprep_assets.pipelines.blend.realised import Realised
from dataprep_assets.pipelines.blend.run_layout import json_object
from dataprep_assets.pipelines.blend.runs import RunFacts
from dataprep_assets.pipelines.blend.trainer_entry import BLEND, SHARDS, manifest_key
from dataprep_assets.planning.blend import drift, record_shares, requested_shares


@judged
def realised_as_requested(blend: BlendDeclaration, directory: Path, receipt: Receipt, plan: BlendPlan) -> Finding:
    """Each dataset's realised share is within the declared tolerance of its request, and no epoch limit is crossed.

    `blend` is the declaration, `directory` the run's, `receipt` its receipt, `plan` the committed plan.
    """
    facts = RunFacts.of(receipt)
    defects: list[str] = []
    worst = 0.0
    for split in dict.fromkeys(row.split for row in facts.realised):
        is_whole = blend.held_out is None
        # where shards are held out, every dataset may have some in any split, whatever its home is
        weights = {u.name: u.dataset.weight for u in plan.units if u.home == split or not is_whole}
        of_run = _SplitOfRun(directory=directory, facts=facts, split=split, weights=weights, is_whole=is_whole)
        requested, realised = _SHARES[blend.stage](of_run)
        worst = max(worst, drift(requested, realised))
        defects += [
            f"{split}: {name} was to be {want:.4f} of the blend and is {realised.get(name, 0.0):.4f}"
            for name, want in requested.items()
            if abs(realised.get(name, 0.0) - want) > blend.tolerance
        ]
        if split == "train" and blend.max_epochs is not None:
            defects += [
                f"{split}: {row.name} would be read {row.epochs:.2f} times, more than {blend.max_epochs:g}; it "
                f"can be {row.realisable:.4f} of the blend, not {row.requested:.4f}"
                for row in of_run.rows
                if row.epochs > blend.max_epochs
            ]
    return verdict(
        defects,
        f"Every dataset's share is as requested, within {blend.tolerance:g}.",
        _RL_ADVICE if blend.stage == "rl" else _ADVICE,
        # as text: numbers are plotted over time, and this one is declared
        facts={"largest_difference": worst, "tolerance": str(blend.tolerance)},
        table=[asdict(row) for row in facts.realised],
    )


_ADVICE = "Change the weights to what the data allows, add data, or raise `num_shards`, `max_epochs` or `tolerance`"
_RL_ADVICE = (
    "See in the shards' ledgers which transform left records out, make the weights whole multiples of the smallest, or "
    "raise `max_epochs` or `tolerance`"
)
_Shares = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class _SplitOfRun:
    """A split of a run: the weights of its datasets, and whether every shard of these is of this split."""

    directory: Path
    facts: RunFacts
    split: str
    weights: Mapping[str, float]
    is_whole: bool

    @property
    def rows(self) -> list[Realised]:
        """The split's rows of the receipt's table."""
        return [row for row in self.facts.realised if row.split == self.split]


def _pretrain_shares(at: _SplitOfRun) -> tuple[_Shares, _Shares]:
    return requested_shares(at.weights), _listed_shares(at.directory, at.facts).get(at.split, {})


def _sft_shares(at: _SplitOfRun) -> tuple[_Shares, _Shares]:
    return requested_shares(at.weights), {row.name: row.realised for row in at.rows}


def _rl_shares(at: _SplitOfRun) -> tuple[_Shares, _Shares]:
    """Records of the sources, each as often as the weights say, and records in the files as often as they are listed.

    A shard whose records were all left out is in no split; its records count unless shards were held out.
    """
    used, ledgers = {*at.facts.used[at.split]}, _ledgers(at.directory)
    asked = dict.fromkeys(at.weights, 0)
    for stem, ledger in ledgers.items():
        name, _, shard = PurePosixPath(stem).parts
        is_used = partition_key(name, int(shard.removeprefix("shard_"))) in used
        if name in asked and (at.is_whole or is_used):
            asked[name] += ledger.rows_in
    root = f"{at.facts.root}/datasets/"
    written = dict.fromkeys(at.weights, 0)
    for path in json_object(at.directory / SHARDS).get(manifest_key(at.split), []):
        stem = path.removeprefix(root).removesuffix(".zst").removesuffix(".jsonl")
        if stem in ledgers:  # an unknown one is a defect of the list
            name = PurePosixPath(stem).parts[0]
            written[name] = written.get(name, 0) + ledgers[stem].documents
    return record_shares(asked, at.weights), record_shares(written, dict.fromkeys(written, 1.0))


def _ledgers(directory: Path) -> dict[str, Ledger]:
    """`<name>/<plan_hash>/shard_000000` → the ledger of each shard of a run."""
    found = {}
    for path in sorted((directory / "datasets").glob("*/*/receipts/shard_*.json")):
        stem = path.parent.parent.relative_to(directory / "datasets") / path.stem
        try:
            found[stem.as_posix()] = Ledger.from_json(json_object(path)["ledger"])
        except (KeyError, TypeError) as error:
            raise FormatError(f"{path}: no ledger of a shard in it: {error}") from error
    return found


_SHARES: Mapping[str, Callable[[_SplitOfRun], tuple[_Shares, _Shares]]] = {
    "pretrain": _pretrain_shares,
    "sft": _sft_shares,
    "rl": _rl_shares,
}


def _listed_shares(directory: Path, facts: RunFacts) -> dict[str, dict[str, float]]:
    root = f"{facts.root}/datasets/"
    found: dict[str, dict[str, float]] = {}
    for split, entries in blend_json.read_blend(directory / BLEND).items():
        total = sum(entry.weight for entry in entries)
        shares = found.setdefault(split, {})
        for entry in entries:
            name = entry.prefix.removeprefix(root).partition("/")[0]
            shares[name] = shares.get(name, 0.0) + entry.weight / total
    return found
