"""Short texts in several languages: what says the same, has the same names and numbers, and is no duplicate.

They are invented for this project. Of each text every pair of languages is a hard negative: names, numbers and codes
are equal in all of them, and a method that compares too little of a text takes them for versions of one page.
"""

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
