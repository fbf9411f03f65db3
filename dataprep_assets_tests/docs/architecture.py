"""Draw `docs/pictures/architecture.svg`, the boxes and arrows of how a corpus is built."""

from dataprep_assets_tests.docs.drawing import Box, arrows, framed

WIDTH, HEIGHT = 940, 452
BOXES = (
    Box("source", 20, 80, 140, 84, ("local folder,", "Hugging Face Hub,", "object storage"), "outside"),
    Box("manifest", 190, 80, 140, 84, ("every file, its split;", "the shard plan")),
    Box("snapshot", 360, 80, 140, 84, ("digests of a", "shard's files")),
    Box("filter, deduplicate, decontaminate", 530, 50, 390, 144, kind="group"),
    Box("tags", 550, 80, 110, 36),
    Box("signatures", 550, 142, 110, 36),
    Box("duplicates", 685, 142, 105, 36),
    Box("selection", 810, 110, 95, 36),
    Box("engine_certificate", 20, 250, 160, 84, ("the fast engine has", "the reference's ids")),
    Box("token_bins", 210, 250, 125, 84, ("each shard,", "tokenized once")),
    Box("combined_bins", 365, 250, 125, 84, ("a split as one", "stream of ids")),
    Box("views: one per trainer", 520, 232, 264, 120, kind="group"),
    Box("nanogpt_bins", 528, 258, 122, 26),
    Box("megatron_bins", 654, 258, 122, 26),
    Box("datatrove_bins", 528, 288, 122, 26),
    Box("olmo_bins", 654, 288, 122, 26),
    Box("mds_bins", 528, 318, 122, 26),
    Box("hf_parquet_bins", 654, 318, 122, 26),
    Box("your trainer", 814, 250, 106, 84, ("reads the files", "in place"), "outside"),
    Box(
        "receipt.json in every artifact", 20, 380, 435, 52, ("inputs, dropped rows, output files, digests",), "evidence"
    ),
    Box(
        "checks on every artifact",
        485,
        380,
        435,
        52,
        ("recomputed from its bytes; a blocking failure stops the next step",),
        "evidence",
    ),
)
_ARROWS = (
    "M160 122 H188",
    "M330 122 H358",
    "M500 122 H528",
    "M660 98 H857 V108",
    "M660 160 H683",
    "M790 160 H857 V148",
    "M725 194 V214 H272 V248",
    "M180 292 H208",
    "M335 292 H363",
    "M490 292 H518",
    "M784 292 H812",
)


def artifact_names() -> set[str]:
    """Return the names of the artifacts in the drawing."""
    return {box.title for box in BOXES if box.kind == "box"}


def drawing() -> str:
    """Return the whole text of the file."""
    body = (*(element for box in BOXES for element in box.draw()), *arrows(_ARROWS))
    return framed("How dataprep builds a corpus", "a corpus: text in, token files out", WIDTH, HEIGHT, body)
