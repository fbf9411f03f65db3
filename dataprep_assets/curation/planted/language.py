"""Sentences written for this project in widely used languages. Sentences of a similar language are the hard negatives.

A short document must get the code of its language, and no document of a similar language may get it.
"""

from collections.abc import Iterator

from dataprep_assets.curation.planted import PlantedCase, Values

SENTENCES: dict[str, tuple[str, ...]] = {
    "en": (
        "The harbour is closed today, and nobody knows when the ships will be allowed to leave it again.",
        "My grandmother keeps the old letters in a box under the stairs, together with her dancing shoes.",
        "Before you paint the door, sand it lightly and wait until the first coat is completely dry.",
    ),
    "de": (
        "Der Hafen ist heute geschlossen, und niemand weiß, wann die Schiffe wieder auslaufen dürfen.",
        "Meine Großmutter bewahrt die alten Briefe in einer Kiste unter der Treppe auf, neben ihren Tanzschuhen.",
        "Bevor du die Tür streichst, schleife sie leicht an und warte, bis die erste Schicht trocken ist.",
    ),
    "nl": (
        "De haven is vandaag gesloten en niemand weet wanneer de schepen weer mogen vertrekken.",
        "Mijn grootmoeder bewaart de oude brieven in een doos onder de trap, samen met haar dansschoenen.",
        "Schuur de deur licht op voordat je haar verft en wacht tot de eerste laag helemaal droog is.",
    ),
    "fr": (
        "Le port est fermé aujourd'hui, et personne ne sait quand les navires pourront de nouveau partir.",
        "Ma grand-mère garde les vieilles lettres dans une boîte sous l'escalier, avec ses chaussures de danse.",
        "Avant de peindre la porte, poncez-la légèrement et attendez que la première couche soit sèche.",
    ),
    "es": (
        "El puerto está cerrado hoy y nadie sabe cuándo podrán volver a salir los barcos.",
        "Mi abuela guarda las cartas viejas en una caja debajo de la escalera, junto con sus zapatos de baile.",
        "Antes de pintar la puerta, líjela un poco y espere hasta que la primera capa esté completamente seca.",
    ),
    "pt": (
        "O porto está fechado hoje e ninguém sabe quando os navios poderão voltar a sair.",
        "A minha avó guarda as cartas antigas numa caixa debaixo da escada, com os seus sapatos de dança.",
        "Antes de pintar a porta, lixe-a um pouco e espere até que a primeira camada esteja bem seca.",
    ),
    "it": (
        "Il porto è chiuso oggi e nessuno sa quando le navi potranno di nuovo partire.",
        "Mia nonna conserva le vecchie lettere in una scatola sotto le scale, insieme alle sue scarpe da ballo.",
        "Prima di dipingere la porta, carteggiatela leggermente e aspettate che il primo strato sia asciutto.",
    ),
    "pl": (
        "Port jest dziś zamknięty i nikt nie wie, kiedy statki będą mogły znowu wypłynąć.",
        "Moja babcia trzyma stare listy w pudełku pod schodami, razem ze swoimi butami do tańca.",
        "Zanim pomalujesz drzwi, przeszlifuj je lekko i poczekaj, aż pierwsza warstwa całkiem wyschnie.",
    ),
    "ru": (
        "Порт сегодня закрыт, и никто не знает, когда кораблям снова разрешат выйти в море.",
        "Моя бабушка хранит старые письма в коробке под лестницей вместе со своими бальными туфлями.",
        "Прежде чем красить дверь, слегка отшлифуйте её и подождите, пока первый слой полностью высохнет.",
    ),
    "ja": (
        "港は本日閉鎖されており、船がいつ再び出港できるかは誰にも分かりません。",
        "祖母は古い手紙を階段の下の箱に、踊りの靴と一緒にしまっています。",
        "扉を塗る前に軽く磨いて、最初の塗料がすっかり乾くまで待ってください。",
    ),
    "zh": (
        "港口今天关闭了，没有人知道船只什么时候才能再次出海。",
        "我的祖母把旧信放在楼梯下面的盒子里，和她的舞鞋放在一起。",
        "刷门之前先轻轻打磨，然后等第一层油漆完全干透。",
    ),
}
NEIGHBORS = {"de": "nl", "nl": "de", "es": "pt", "pt": "es", "fr": "it", "it": "fr", "ja": "zh", "zh": "ja"}
"""Language → a language whose texts look similar."""


def yield_cases() -> Iterator[PlantedCase]:
    """Yield the cases: each sentence by itself, and all sentences of a language together."""
    for code, sentences in SENTENCES.items():
        for text in (*sentences, " ".join(sentences)):
            yield _build_case(code, text)
    for code, neighbor in NEIGHBORS.items():
        for text in SENTENCES[neighbor]:
            yield _build_case(code, text, positive=False)


def _build_case(code: str, text: str, *, positive: bool = True) -> PlantedCase:
    def is_found(_: Values, after: Values) -> bool:
        return bool(after["language"] == code)

    return PlantedCase(kind=f"languages, {code}", text=text, is_found=is_found, positive=positive, alone=True)
