"""The shards that each split of a blend run uses, and the table of requested and realized shares.

The functions depend only on finished shards and the declaration. A share is a part of one split: of the trainer's
weights (pretraining), of packed rows (SFT), of pairs, or of records (RL).

Entry points: `list_used_shards`, `weigh_shards`, `repeat_shards`, `compute_shares`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.finished_shards import FinishedShard
from dataprep_assets.planning.blend import (
    choose_whole_shards,
    compute_outlooks,
    compute_record_shares,
    compute_repeats,
    divide_share,
    normalize_weights,
    split_shards,
)


@dataclass(frozen=True, kw_only=True)
class RealizedShare:
    """Requested and realized share of a dataset in a split. `tokens` and `rows` count the data of the used shards.

    RL shares are shares of records. `requested` counts the source's records, each as often as the weights require.
    `realised` counts the written records, as often as they are listed (`epochs`).
    """

    split: str
    name: str
    requested: float
    realised: float
    realisable: float
    epochs: float
    tokens: int
    rows: int
    shards: int


def list_used_shards(blend: BlendDeclaration, shards: Sequence[FinishedShard]) -> dict[str, list[FinishedShard]]:
    """Return the shards with data that each split uses, dataset by dataset.

    The splits are the blend's own lists, or are made by `held_out`. For packed SFT and pairs, some shards are left out
    so that the numbers of rows match the weights.
    """
    by_split: dict[str, list[FinishedShard]] = {}
    units = {shard.unit.name: shard.unit for shard in shards}
    for name, unit in units.items():
        # Exclude empty shards, because a split that gets only an empty shard would have no data of this dataset.
        full = {shard.index: shard for shard in shards if shard.unit is unit and shard.rows}
        split_options = blend.held_out
        if split_options is None:
            indexes_by_split = {unit.home: list(full)}
        else:
            indexes_by_split = split_shards(
                list(full), dataset=name, valid=split_options.valid, test=split_options.test, seed=split_options.seed
            )
        for split, indexes in indexes_by_split.items():
            by_split.setdefault(split, []).extend(full[index] for index in indexes)
    by_split = {split: members for split, members in by_split.items() if members}
    if blend.stage not in ("sft", "pairs"):
        return by_split
    return {split: _select_in_proportion(members) for split, members in by_split.items()}


def _select_in_proportion(members: Sequence[FinishedShard]) -> list[FinishedShard]:
    groups = _group_by_dataset(members)
    indexes_by_dataset = choose_whole_shards(
        {n: [s.rows for s in group] for n, group in groups.items()}, _compute_shares(members)
    )
    return [groups[name][index] for name, indexes in indexes_by_dataset.items() for index in indexes]


def _group_by_dataset(members: Sequence[FinishedShard]) -> dict[str, list[FinishedShard]]:
    groups: dict[str, list[FinishedShard]] = {}
    for shard in members:
        groups.setdefault(shard.unit.name, []).append(shard)
    return groups


def _compute_shares(members: Sequence[FinishedShard]) -> dict[str, float]:
    return normalize_weights(_compute_weights(members))


def _compute_weights(members: Sequence[FinishedShard]) -> dict[str, float]:
    return {shard.unit.name: shard.unit.dataset.weight for shard in members}


def weigh_shards(members: Sequence[FinishedShard]) -> list[tuple[float, FinishedShard]]:
    """Return each shard of a split with its weight: its dataset's share, divided among the shards by tokens."""
    shares = _compute_shares(members)
    return [
        pair
        for name, group in _group_by_dataset(members).items()
        for pair in zip(divide_share(shares[name], [s.tokens for s in group]), group, strict=True)
    ]


def repeat_shards(members: Sequence[FinishedShard]) -> list[FinishedShard]:
    """Return a split's shards, repeated in proportion to the weights: first each shard once, then the repetitions."""
    repeats = compute_repeats(_compute_weights(members))
    rounds = range(max(repeats.values()))
    return [shard for round_index in rounds for shard in members if repeats[shard.unit.name] > round_index]


def compute_shares(
    blend: BlendDeclaration, shards: Sequence[FinishedShard], shards_by_split: Mapping[str, Sequence[FinishedShard]]
) -> list[RealizedShare]:
    """Return the table of requested and realized shares, split by split.

    `blend` is the declaration, `shards` are all finished shards of the plan, and `shards_by_split` are the shards of
    each split (`list_used_shards`). Realized shares are computed from the weights in `blend.json` (pretraining), from
    packed rows (SFT), from pairs, or from records (RL).
    """
    if blend.stage == "rl":
        return [
            row
            for split, members in shards_by_split.items()
            for row in _compute_record_shares(blend, split, shards, members)
        ]
    table = []
    for split, members in shards_by_split.items():
        shares, groups = _compute_shares(members), _group_by_dataset(members)
        if blend.stage == "pretrain":
            parts = dict.fromkeys(groups, 0.0)
            for weight, shard in weigh_shards(members):
                # Round each weight as in `blend.json`, because the trainer reads the rounded weight.
                parts[shard.unit.name] += float(f"{weight:.15g}")
        else:
            parts = {name: float(sum(s.rows for s in group)) for name, group in groups.items()}
        total = sum(parts.values())
        amounts = {name: sum(s.tokens for s in group) for name, group in groups.items()}
        for outlook in compute_outlooks(shares, amounts, train_tokens=blend.train_tokens, max_epochs=blend.max_epochs):
            # For SFT and pairs, the trainer uses no weights and reads each file once.
            is_read_once = blend.stage in ("sft", "pairs")
            share = parts[outlook.name] / total
            table.append(
                _build_row(
                    split,
                    outlook.name,
                    groups[outlook.name],
                    requested=outlook.requested,
                    realised=share,
                    realisable=share if is_read_once else outlook.realizable,
                    epochs=1.0 if is_read_once else outlook.epochs,
                )
            )
    return table


def _build_row(split: str, name: str, group: Sequence[FinishedShard], **shares: float) -> RealizedShare:
    tokens, rows = sum(s.tokens for s in group), sum(s.rows for s in group)
    return RealizedShare(split=split, name=name, tokens=tokens, rows=rows, shards=len(group), **shares)


def _compute_record_shares(
    blend: BlendDeclaration, split: str, shards: Sequence[FinishedShard], members: Sequence[FinishedShard]
) -> list[RealizedShare]:
    """Return the shares of an RL split, in which each record is repeated in proportion to its dataset's weight."""
    weights, groups = _compute_weights(members), _group_by_dataset(members)
    # Without `held_out`, count the records of all shards, because a shard whose records were all left out is in no
    # split.
    requested_groups = _group_by_dataset(members if blend.held_out else [s for s in shards if s.unit.name in groups])
    requested = compute_record_shares({n: sum(s.ledger.rows_in for s in requested_groups[n]) for n in groups}, weights)
    repeats = compute_repeats(weights)
    written_shares = compute_record_shares({n: sum(s.rows for s in group) for n, group in groups.items()}, repeats)
    return [
        _build_row(
            split,
            name,
            group,
            requested=requested[name],
            realised=written_shares[name],
            realisable=written_shares[name],
            epochs=float(repeats[name]),
        )
        for name, group in groups.items()
    ]
