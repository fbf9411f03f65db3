"""Planted near-duplicates: recall of the search, compared with the recall that the bands predict.

A sample of a dataset's texts is edited at known rates: words are replaced, dropped or swapped, paragraphs reordered,
boilerplate added, and case or Unicode form changed. The Jaccard similarity of each pair is computed from its shingles,
so the S-curve gives the expected recall per pair. Hard negatives only look similar: different texts under one license,
forms with other values, a text in two languages. The comparison of shingles rejects them.

The translations were written for this project. Every pair of translations of a text is a hard negative. Their names,
numbers and codes are equal, so a method that compares too little of a text would report them as duplicates.

Entry points: `plant_pairs`, `PlantedPairs`.
"""

import random
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.duplicates.kept_set import compute_similarity, count_overlap
from dataprep_assets.curation.duplicates.signatures import SignatureSettings, Signer

NOTICES: tuple[tuple[str, ...], ...] = (
    (
        "The lamp of Skarvik lighthouse will be out from 3 to 9 November 2031 while the lens is cleaned. Ships keep "
        "two miles away and call the keeper on channel 16. Skarvik, 58 12 44 N, 6 03 17 E, SKV 4410 B, tel. 555 0101.",
        "Das Feuer des Leuchtturms Skarvik bleibt vom 3. bis 9. November 2031 aus, während die Linse gereinigt wird. "
        "Schiffe halten zwei Meilen Abstand und rufen den Wärter auf Kanal 16. Skarvik, 58 12 44 N, 6 03 17 E, "
        "SKV 4410 B, tel. 555 0101.",
        "Le feu du phare de Skarvik sera éteint du 3 au 9 novembre 2031 pendant le nettoyage de la lentille. Les "
        "navires restent à deux milles et appellent le gardien sur le canal 16. Skarvik, 58 12 44 N, 6 03 17 E, "
        "SKV 4410 B, tel. 555 0101.",
        "La luz del faro de Skarvik estará apagada del 3 al 9 de noviembre de 2031 mientras se limpia la lente. Los "
        "barcos se mantienen a dos millas y llaman al farero por el canal 16. Skarvik, 58 12 44 N, 6 03 17 E, "
        "SKV 4410 B, tel. 555 0101.",
        "Het licht van de vuurtoren Skarvik is van 3 tot en met 9 november 2031 uit terwijl de lens wordt "
        "schoongemaakt. Schepen blijven twee mijl weg en roepen de wachter op via kanaal 16. Skarvik, 58 12 44 N, "
        "6 03 17 E, SKV 4410 B, tel. 555 0101.",
        "Огонь маяка Скарвик не будет гореть с 3 по 9 ноября 2031 года, пока чистят линзу. Суда держатся в двух милях "
        "и вызывают смотрителя на канале 16. Skarvik, 58 12 44 N, 6 03 17 E, SKV 4410 B, tel. 555 0101.",
        "スカルヴィク灯台の灯火は、レンズの清掃のため二〇三一年十一月三日から九日まで消灯します。船舶は二海里離れ、"
        "チャンネル16で灯台守を呼んでください。Skarvik, 58 12 44 N, 6 03 17 E, SKV 4410 B, tel. 555 0101.",
        "斯卡维克灯塔因清洁透镜,将于二〇三一年十一月三日至九日熄灯。船只请保持两海里距离,并用十六频道呼叫守塔人。"
        "Skarvik, 58 12 44 N, 6 03 17 E, SKV 4410 B, tel. 555 0101.",
    ),
    (
        "Mix 250 g flour, 120 g butter and 80 g sugar, and let the dough rest for an hour. Bake the biscuits at 180 C "
        "for twelve minutes, until the edges are brown. Recipe 77 of Ada Brandvold, Ostervag 1904, OB 77 12.",
        "250 g Mehl, 120 g Butter und 80 g Zucker mischen und den Teig eine Stunde ruhen lassen. Die Kekse bei 180 C "
        "zwölf Minuten backen, bis die Ränder braun sind. Rezept 77 von Ada Brandvold, Ostervag 1904, OB 77 12.",
        "Mélanger 250 g de farine, 120 g de beurre et 80 g de sucre, et laisser reposer la pâte une heure. Cuire les "
        "biscuits à 180 C pendant douze minutes, jusqu'à ce que les bords soient bruns. Recette 77 de Ada Brandvold, "
        "Ostervag 1904, OB 77 12.",
        "Mezclar 250 g de harina, 120 g de mantequilla y 80 g de azúcar, y dejar reposar la masa una hora. Hornear las "
        "galletas a 180 C durante doce minutos, hasta que los bordes estén dorados. Receta 77 de Ada Brandvold, "
        "Ostervag 1904, OB 77 12.",
        "Meng 250 g bloem, 120 g boter en 80 g suiker en laat het deeg een uur rusten. Bak de koekjes twaalf minuten "
        "op 180 C, tot de randen bruin zijn. Recept 77 van Ada Brandvold, Ostervag 1904, OB 77 12.",
        "Смешать 250 г муки, 120 г масла и 80 г сахара и оставить тесто на час. Печь печенье при 180 C двенадцать "
        "минут, пока края не станут коричневыми. Рецепт 77, Ada Brandvold, Ostervag 1904, OB 77 12.",
        "小麦粉250 g、バター120 g、砂糖80 gを混ぜ、生地を一時間休ませます。縁が茶色になるまで180 Cで十二分焼きます。"
        "レシピ77、Ada Brandvold, Ostervag 1904, OB 77 12.",
        "将250 g面粉、120 g黄油和80 g糖混合,面团静置一小时。以180 C烤十二分钟,直到边缘变成褐色。"
        "食谱77,Ada Brandvold, Ostervag 1904, OB 77 12.",
    ),
)
"""Each text in English, German, French, Spanish, Dutch, Russian, Japanese and Chinese."""


RATES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
"""Shares of words to edit."""
_BOILERPLATE = (
    "Home About Contact Privacy Terms of use. All rights reserved. Subscribe to our newsletter and follow us. "
    "This site uses cookies to improve your experience. Share this page with your friends. Back to top."
)
_LICENSE = (
    "Permission is hereby granted free of charge to any person obtaining a copy of this text to deal in it without "
    "restriction including without limitation the rights to use copy modify merge publish distribute sublicense and "
    "sell copies of it and to permit persons to whom it is furnished to do so subject to the following conditions. "
    "The text is provided as is without warranty of any kind express or implied including but not limited to the "
    "warranties of merchantability fitness for a particular purpose and noninfringement. "
)


@dataclass(frozen=True, kw_only=True)
class PlantedPairs:
    """Planted pairs of one kind; arrays have the shape ``(pairs,)``.

    Attributes:
        edit: Name of the edit.
        rate: Share of edited words.
        similarities: Jaccard similarity of the two texts of each pair.
        shared: Whether the two texts share a band.
    """

    edit: str
    rate: float
    similarities: NDArray[np.float64]
    shared: NDArray[np.bool_]


def plant_pairs(texts: Sequence[str], settings: SignatureSettings, seed: int) -> list[PlantedPairs]:
    """Edit texts in every way, and return which edited texts share a band with their original.

    Args:
        texts: A sample of texts.
        settings: Settings of the signatures.
        seed: Seed for the edits.
    """
    draw, signer, vocabulary = random.Random(seed), Signer(settings), _build_vocabulary(texts)
    planted_edits = []
    for name, rate, edit in _list_edits(vocabulary):
        # Skip texts that an edit with a low rate left unchanged, because every method finds identical texts.
        pairs = [(original, edited) for text in texts for original, edited in [edit(text, draw)] if edited != original]
        if pairs:
            similarities, shared = _measure_pairs(signer, pairs)
            planted_edits.append(PlantedPairs(edit=name, rate=rate, similarities=similarities, shared=shared))
    return planted_edits


def _build_vocabulary(texts: Sequence[str]) -> list[str]:
    return sorted({word for text in texts for word in text.split()}) or ["word"]


Edit = Callable[[str, random.Random], tuple[str, str]]
"""Function that returns the two texts of a pair."""


def _list_edits(vocabulary: Sequence[str]) -> Iterator[tuple[str, float, Edit]]:
    for rate in RATES:
        yield "replaced", rate, partial(_pair_with_edit, partial(_replace_words, rate=rate, vocabulary=vocabulary))
        yield "dropped", rate, partial(_pair_with_edit, partial(_drop_words, rate=rate))
        yield "swapped", rate, partial(_pair_with_edit, partial(_swap_words, rate=rate))
    yield "paragraphs", 0.0, lambda text, draw: (text, _shuffle_paragraphs(text, draw))
    yield "boilerplate", 0.0, lambda text, _: (text, f"{_BOILERPLATE}\n\n{text}\n\n{_BOILERPLATE}")
    yield "case", 0.0, lambda text, _: (text, text.upper())
    yield "encoding", 0.0, lambda text, _: (text, "\ufeff" + unicodedata.normalize("NFD", text).replace(" ", "\u00a0"))
    yield "licence", 1.0, lambda text, draw: (_LICENSE + text, _LICENSE + _shuffle_words(text, draw, vocabulary))
    yield "form", 0.5, lambda text, draw: (text, _replace_every_fourth_word(text, draw, vocabulary))
    yield "translation", 1.0, lambda _, draw: _draw_translations(draw)


def _pair_with_edit(edit: Callable[[str, random.Random], str], text: str, draw: random.Random) -> tuple[str, str]:
    return text, edit(text, draw)


def _replace_words(text: str, draw: random.Random, rate: float, vocabulary: Sequence[str]) -> str:
    return " ".join(draw.choice(vocabulary) if draw.random() < rate else word for word in text.split())


def _drop_words(text: str, draw: random.Random, rate: float) -> str:
    return " ".join(word for word in text.split() if draw.random() >= rate)


def _swap_words(text: str, draw: random.Random, rate: float) -> str:
    words = text.split()
    for index in range(len(words) - 1):
        if draw.random() < rate:
            words[index], words[index + 1] = words[index + 1], words[index]
    return " ".join(words)


def _shuffle_paragraphs(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    if len(lines) < 3:
        words = text.split()
        lines = [" ".join(words[index : index + 40]) for index in range(0, len(words), 40)]
    return "\n".join(draw.sample(lines, len(lines)))


def _shuffle_words(text: str, draw: random.Random, vocabulary: Sequence[str]) -> str:
    return " ".join(draw.choice(vocabulary) for _ in text.split())


def _replace_every_fourth_word(text: str, draw: random.Random, vocabulary: Sequence[str]) -> str:
    """Replace every fourth word of a text: the form stays the same, its values change."""
    return " ".join(draw.choice(vocabulary) if index % 4 == 0 else word for index, word in enumerate(text.split()))


def _draw_translations(draw: random.Random) -> tuple[str, str]:
    """Return a short text in two languages."""
    text, translation = draw.sample(draw.choice(NOTICES), 2)
    return text, translation


def _measure_pairs(signer: Signer, pairs: Sequence[tuple[str, str]]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    hashes, ends = signer.compute_shingles([text for pair in pairs for text in pair])
    bands = signer.compute_bands(hashes, ends)
    sets = np.split(hashes, ends[:-1])
    similarities = [
        compute_similarity(*count_overlap(original, edited))
        for original, edited in zip(sets[::2], sets[1::2], strict=True)
    ]
    return np.array(similarities), (bands[::2] == bands[1::2]).any(axis=1)
