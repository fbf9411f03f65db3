"""Words and sentences in other languages from which the sample corpus is generated."""

from collections.abc import Mapping, Sequence

from dataprep_assets_tests.tools.sample.english import listed

LANGUAGES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "de": {
        "who": listed(
            "die alte Bibliothekarin|der junge Tischler|unsere Nachbarin|ein müder Briefträger|die Gärtnerin|"
            "der Müller aus {place}|meine Großmutter|das kleine Mädchen"
        ),
        "when": listed(
            "am Montag|im Frühling|kurz vor Mitternacht|nach dem Regen|heute|seit {small} Jahren|im Jahr {year}"
        ),
        "where": listed("auf dem Marktplatz|im Gewächshaus|hinter der Mühle|am Flussufer|in der Straßenbahn|zu Hause"),
        "sentence": (
            "{when_up} öffnet {who} {where} die Fensterläden.",
            "{who_up} zählt {when} die Äpfel und kommt auf {medium}.",
            "Weil es regnet, bleibt {who} {where}.",
            "»Wo ist der Schlüssel?«, fragt {who}, doch niemand antwortet.",
            "{when_up} trifft {who} {where} einen alten Freund.",
            "{who_up} übt {where} Geige, was größtenteils schön klingt.",
            "Der Zug nach {place} hat {small} Minuten Verspätung; {who} wartet geduldig.",
            "Die Donaudampfschifffahrtsgesellschaft verkaufte {when} {large} Fahrkarten.",
        ),
    },
    "fr": {
        "who": listed(
            "la boulangère|le vieux facteur|notre voisine|un élève distrait|la pianiste|le garde de {place}|"
            "l'horloger|ma grand-mère"
        ),
        "when": listed("chaque matin|en été|vers minuit|après l'orage|aujourd'hui|depuis {small} ans|le dimanche"),
        "where": listed(
            "près du marché|dans le grenier|derrière l'église|au bord de la rivière|sur le quai|à la maison"
        ),
        "sentence": (
            "{when_up}, {who} ouvre la fenêtre et écoute les oiseaux.",
            "{who_up} oublie toujours son parapluie {where}.",
            "Où est passée la clé ? demande {who}, sans attendre de réponse.",
            "{when_up}, on trouve {where} du pain frais, des œufs et du café très noir.",
            "Il pleut à {place} ; {who} reste {where} et lit le journal.",
            "« C'est ça, la vérité », répond {who}, qui s'y connaît.",
            "Le train de {place} part à {small} h {two}, mais {who} arrive en retard.",
            "{who_up} a compté {large} étoiles {where}, puis s'est endormi·e.",
        ),
    },
    "es": {
        "who": listed(
            "la maestra|el viejo pescador|nuestra vecina|un niño curioso|la relojera|el alcalde de {place}|"
            "mi abuela|el señor Núñez"
        ),
        "when": listed(
            "cada mañana|en otoño|a medianoche|después de la lluvia|hoy|desde hace {small} años|el miércoles"
        ),
        "where": listed("en la plaza|junto al río|detrás de la estación|en el mercado|bajo el limonero|en casa"),
        "sentence": (
            "{when_up}, {who} abre la ventana y saluda a los gorriones.",
            "¿Dónde está la llave?, pregunta {who} {where}.",
            "{who_up} compra {small} naranjas y un cuaderno pequeño.",
            "¡Qué frío hace {where}!, dice {who} mientras busca su abrigo.",
            "El tren de {place} llega con {small} minutos de retraso; {who} espera {where}.",
            "{when_up}, {who} escribe una carta muy larga que nunca envía.",
            "Según {who}, en {year} había {large} cigüeñas en la región.",
            "{who_up} toca la guitarra {where}, y el perro canta también.",
        ),
    },
    "el": {
        "who": listed("η δασκάλα|ο γέρος ψαράς|η γειτόνισσά μας|ένα μικρό παιδί|ο φούρναρης|η γιαγιά μου"),
        "when": listed("κάθε πρωί|το καλοκαίρι|τα μεσάνυχτα|μετά τη βροχή|σήμερα|εδώ και {small} χρόνια"),
        "where": listed("στην πλατεία|δίπλα στη θάλασσα|πίσω από τον σταθμό|στην αγορά|στο σπίτι"),
        "sentence": (
            "{when_up} {who} ανοίγει το παράθυρο και ακούει τα πουλιά.",
            "{who_up} αγοράζει {small} πορτοκάλια {where}.",
            "Πού είναι το κλειδί; ρωτάει {who}, αλλά κανείς δεν απαντά.",
            "{when_up} {who} γράφει ένα μεγάλο γράμμα.",
            "Βρέχει πολύ και {who} μένει {where}.",
            "Το {year} υπήρχαν εδώ {large} ελιές, λέει {who}.",
        ),
    },
    "ru": {
        "who": listed("старый часовщик|наша соседка|молодой учитель|моя бабушка|усталый почтальон|маленькая девочка"),
        "when": listed("каждое утро|весной|в полночь|после дождя|сегодня|по вторникам"),
        "where": listed("на площади|у реки|за вокзалом|на рынке|в библиотеке|дома"),
        "sentence": (
            "{when_up} {who} открывает окно и слушает птиц.",
            "{who_up} покупает яблоки и чёрный хлеб {where}.",
            "«Где же ключ?» — спрашивает {who}, но никто не отвечает.",
            "{when_up} {who} пишет длинное письмо и не отправляет его.",
            "Идёт снег, поэтому {who} сидит {where} и пьёт чай.",
            "Поезд опаздывает на {small} мин.; {who} терпеливо ждёт.",
            "В {year} году здесь жили {large} человек.",
        ),
    },
    "zh": {
        "who": listed("老邮递员|我们的邻居|年轻的木匠|我的奶奶|图书管理员|一个小女孩"),
        "when": listed("每天早上|春天|半夜|雨停以后|今天|{year}年"),
        "where": listed("在广场上|在河边|在车站后面|在市场里|在图书馆|在家里"),
        "sentence": (
            "{when},{who}打开窗户,听鸟儿唱歌。",
            "{who}{where}买了{small}个苹果和一本旧书。",
            "“钥匙在哪里?”{who}问道,可是没有人回答。",
            "{when},{who}写了一封很长的信,却没有寄出去。",
            "外面下着大雨,{who}{where}喝茶,看报纸。",
            "火车晚点了{small}分钟,{who}耐心地等着。",
            "据说{when}这里住着{large}个人。",
        ),
    },
    "ja": {
        "who": listed("年老いた時計屋|隣の奥さん|若い先生|祖母|郵便配達員|小さな女の子"),
        "when": listed("毎朝|春になると|真夜中に|雨のあと|今日は|{year}年に"),
        "where": listed("広場で|川のそばで|駅の裏で|市場で|図書館で|家で"),
        "sentence": (
            "{when}、{who}は窓を開けて鳥の声を聞く。",
            "{who}は{where}りんごを{small}個買った。",
            "「鍵はどこですか?」と{who}が尋ねたが、誰も答えなかった。",
            "{when}、{who}は{where}長い手紙を書いた。",
            "雪が降っているので、{who}は{where}お茶を飲んでいる。",
            "電車は{small}分遅れています。{who}はベンチで待っています。",
            "カメラとコーヒーを持って、{who}は{where}休んだ。",
        ),
    },
}
MODERN = tuple(str(year) for year in range(1996, 2026))
SPACELESS = frozenset({"zh", "ja"})
