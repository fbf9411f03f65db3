"""The families of heavy libraries that one process may import together.

TensorFlow and Triton (which PyTorch and Megatron-Core require) each contain their own LLVM: a process that imports
TensorFlow first and Triton later dies with a segmentation fault. Others only cost seconds and hundreds of megabytes.
Therefore no test process imports any of them: the tests call functions of this folder, which run in one process per
family.
"""

import importlib.util
from dataclasses import dataclass

HEAVY = frozenset(
    {
        *("tensorflow", "tensorflow_datasets", "keras", "jax", "grain"),
        *("torch", "torchvision", "triton", "megatron", "streaming", "datatrove"),
        *("transformers", "datasets", "ray", "olmo_core"),
    }
)
"""Top-level modules that no test process imports. `array_record` is not listed, because it is a small extension module
that the product itself imports wherever it writes ArrayRecord; nor is `torchdata`, which does not import torch by
itself and for which mlcroissant searches."""

_TORCH = frozenset({"torch", "torchvision", "triton"})


@dataclass(frozen=True)
class Family:
    """Libraries that one process imports together.

    Args:
        name: The name in messages.
        needs: Modules that must be installed; otherwise a test that calls a function of the family is skipped.
        install: The command that installs them.
        modules: The modules of `HEAVY` that the process may import.
    """

    name: str
    needs: tuple[str, ...]
    install: str
    modules: frozenset[str]

    @property
    def missing(self) -> str | None:
        """The reason why the tests of this family cannot run here, or None."""
        absent = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"{' and '.join(absent)} not installed: {self.install}" if absent else None


TENSORFLOW = Family(
    name="tensorflow",
    needs=("tensorflow", "tensorflow_datasets", "array_record", "grain"),
    install="the extra `tfds`",
    modules=frozenset({"tensorflow", "tensorflow_datasets", "keras", "jax", "grain"}),
)
PYTORCH = Family(name="pytorch", needs=("torch",), install="the extra `readers`", modules=_TORCH)
TRANSFORMERS = Family(
    name="transformers", needs=("transformers",), install="it is a requirement", modules=_TORCH | {"transformers"}
)
TORCHDATA = Family(
    name="torchdata",
    needs=("torch", "torchdata"),
    install="the extra `readers`",
    modules=_TORCH,
)
GRAIN = Family(name="grain", needs=("grain",), install="the extra `tfds`", modules=frozenset({"grain", "jax"}))
MEGATRON = Family(
    name="megatron", needs=("torch", "megatron"), install="the extra `readers`", modules=_TORCH | {"megatron"}
)
MOSAICML = Family(
    name="mosaicml",
    needs=("torch", "streaming"),
    install="see the Makefile",
    modules=_TORCH | {"transformers", "streaming"},
)
DATATROVE = Family(
    name="datatrove", needs=("torch", "datatrove"), install="the extra `readers`", modules=_TORCH | {"datatrove"}
)
DATASETS = Family(name="datasets", needs=("datasets",), install="the extra `readers`", modules=frozenset({"datasets"}))
TRL = Family(
    name="trl",
    needs=("torch", "datasets", "trl", "accelerate"),
    install="see the Makefile",
    modules=_TORCH | {"transformers", "datasets"},
)
OLMO_CORE = Family(
    name="olmo_core",
    needs=("torch", "olmo_core"),
    install="see the Makefile",
    modules=_TORCH | {"olmo_core", "transformers", "datasets"},
)
VERL = Family(
    name="verl",
    needs=("torch", "datasets", "verl"),
    install="verl and its requirements, in an environment of their own",
    modules=_TORCH | {"transformers", "datasets", "ray"},
)
NEMO_GYM = Family(
    name="nemo_gym",
    needs=("nemo_gym",),
    install="NVIDIA-NeMo/Gym, in an environment of its own",
    modules=_TORCH | {"transformers", "datasets", "ray"},
)
WORDS = Family(
    name="words",
    needs=("spacy", "jieba", "sudachipy", "pythainlp", "kiwipiepy"),
    install="the extra `words`",
    modules=_TORCH,
)
NONE = Family(name="none", needs=(), install="nothing", modules=frozenset())
"""No library, for tests of the processes themselves."""
