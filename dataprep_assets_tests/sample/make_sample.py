"""The sample corpus and tokenizer that ship with the package, generated from grammars written for this project.

The package needs text that everyone may redistribute, that is small, and that a person can read in an eye test.
So nothing here is copied: every row grows from the templates and word lists below, with invented people and places,
reserved domains (``example.org``) and reserved telephone numbers.

Invariants:

- Each file is seeded by its own path, so adding or removing one file changes no other.
- Only ``Random.random()`` is drawn from. It is the one method whose sequence Python promises to keep.
- Every file holds each document of ``NASTY`` once: legal input that careless readers get wrong.
- One file (``ESCAPED``) is pure ASCII with ``\\uXXXX`` escapes and surrogate pairs; the others are raw UTF-8.
- The tokenizer learns from the train split alone, and its special tokens come last, so EOS is never id 0 and a
  zero-filled file cannot pass for a run of EOS.

Entry points: ``python -m dataprep_assets_tests.sample.make_sample TARGET_DIR``, ``sample_files``, ``write_sample``.
"""

import argparse
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

import zstandard
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SEED = "dataprep-assets sample corpus 1"
TRAIN_FILES: Mapping[str, int] = {
    "data/train/chunk1/example_train_0.jsonl.zst": 280,
    "data/train/chunk1/example_train_1.jsonl.zst": 240,
    "data/train/chunk1/example_train_2.jsonl.zst": 320,
    "data/train/chunk1/example_train_10.jsonl.zst": 260,
    "data/train/chunk2/example_train_0.jsonl.zst": 300,
    "data/train/chunk2/example_train_1.jsonl.zst": 210,
    "data/train/chunk10/example_train_0.jsonl.zst": 250,
}
HOLDOUT_FILES: Mapping[str, int] = {
    "data/validation/chunk1/example_holdout_0.jsonl.zst": 60,
    "data/test/chunk1/example_holdout_0.jsonl.zst": 60,
}
ESCAPED = "data/train/chunk2/example_train_1.jsonl.zst"
MIN_CHARS, MAX_CHARS = 50, 8000

VOCAB_SIZE = 4096
END_OF_TEXT, PAD = "<|endoftext|>", "<|pad|>"
# The published split pattern of the Qwen family: contractions, words, single digits, punctuation, white space.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def listed(text: str) -> tuple[str, ...]:
    """The entries of a word list: separated by ``|`` where the text has one, else by white space."""
    return tuple(text.split("|" if "|" in text else None))


# --------------------------------------------------------------------------------------------- word lists, English

WORDS: Mapping[str, Sequence[str]] = {
    "adjective": listed(
        "quiet patient narrow bright ancient hollow gentle stubborn copper silver crooked weathered curious distant "
        "heavy restless pale broad tidy forgotten generous humid brittle early late steep shallow velvet amber salty "
        "windy polished rough modest careful sudden faded noisy clever wooden frozen ordinary peculiar"
    ),
    "color": listed("red ochre green indigo grey white black violet yellow teal rust cream scarlet olive turquoise"),
    "animal": listed(
        "heron otter beetle lizard fox badger owl moth crab swallow goat tortoise squirrel kestrel newt hare wren "
        "salamander hedgehog raven dormouse cormorant weasel toad"
    ),
    "plant": listed("fern willow barley thistle moss juniper clover poppy hazel lavender birch sorrel ivy alder"),
    "material": listed("granite oak brass wool clay slate linen glass tin basalt paper leather limestone iron cork"),
    "thing": listed(
        "lantern kettle compass ladder notebook violin anchor telescope basket clock kite umbrella hammer map mirror "
        "bicycle drum candle suitcase key letter bell coat wheelbarrow teapot camera radio loom barometer spoon"
    ),
    "food": listed(
        "onion soup|plum cake|rye bread|lentil stew|barley porridge|pear jam|roast carrots|goat cheese|mint tea|"
        "walnut pie|potato salad|smoked trout|ginger biscuits|bean broth|apple dumplings|leek tart"
    ),
    "ingredient": listed(
        "flour|brown sugar|salted butter|chopped walnuts|grated ginger|warm milk|dried apricots|red lentils|olive oil|"
        "rolled oats|lemon zest|black pepper|diced carrots|fresh thyme|crushed garlic|baking powder"
    ),
    "job": listed(
        "clockmaker|ferry pilot|botanist|bookbinder|baker|surveyor|lighthouse keeper|weaver|teacher|glassblower|"
        "cartographer|beekeeper|carpenter|midwife|archivist|stonemason|violin maker|shepherd|physician|printer"
    ),
    "building": listed(
        "town hall|grain store|covered bridge|observatory|tram depot|lighthouse|market hall|public library|water mill|"
        "bath house|ropewalk|salt works|paper mill|signal tower|railway station|school house"
    ),
    "industry": listed(
        "shipbuilding|cheese making|slate quarrying|weaving|bell casting|bee keeping|salt panning|printing|"
        "charcoal burning|fruit growing|rope making|glass blowing|clock making|fish curing"
    ),
    "terrain": listed(
        "a broad flood plain|a chain of low hills|a sheltered bay|a limestone plateau|an upland moor|a wooded valley|"
        "a chalk ridge|a marshy delta|a glacial lake|a gravel terrace"
    ),
    "direction": listed("north|south|east|west|north-east|south-east|north-west|south-west"),
    "season": listed("spring summer autumn winter"),
    "month": listed("January February March April May June July August September October November December"),
    "weekday": listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    "feeling": listed("relief doubt pride hunger curiosity shame delight boredom suspicion gratitude worry calm"),
    "weather": listed(
        "a thin rain was falling|fog lay over the fields|the wind had turned to the north|snow had covered the road|"
        "the sun stood low|thunder rolled behind the hills|frost glittered on the gate|the air smelled of tar"
    ),
    "manner": listed("slowly|carefully|cheerfully|silently|twice|at once|in a hurry|without a word|as usual"),
    "room": listed("kitchen|workshop|cellar|attic|harbour office|reading room|garden|stable|pantry|corridor|studio"),
    "unit": listed("metres kilometres kilograms litres hectares days tonnes miles"),
    "tool": listed("flatten weldkit larder pipcount tideql muxbox snailfs quilt2 gristmill inkwell parcelctl harrow"),
    "language": listed("Python Rust SQL Go C++ TypeScript Lua Bash Haskell"),
    "verb_id": listed("load parse merge count filter group render split encode rank trim fetch collect check write"),
    "noun_id": listed("rows parcel ledger orders tides stations readings pages shelf tokens crates labels batch"),
    "field": listed("weight depth price height quantity speed score distance duration age"),
    "table": listed("harvest shipments sensor_log members loans tram_rides inventory tide_table recipes visits"),
    "column": listed("station weight_kg opened_at quantity price_cents owner_id depth_m region status note"),
    "topic": listed(
        "sparse graph partitioning|tidal sediment transport|low-rank attention|queueing in ferry terminals|"
        "stochastic crop rotation|acoustic bell tuning|online bin packing|spectral methods on trees|"
        "adaptive mesh refinement|error-correcting library stamps"
    ),
    "property": listed("convergence stability variance robustness complexity throughput latency sparsity"),
    "emoji": listed("😀 🎉 🌧️ 🚲 🍲 🐙 👩‍🚀 🇪🇺 👍🏽 ❤️ 🧵 📚 🦊 ☕ 🌻 🙈 ✨ 🚀 🍎 👨‍👩‍👧‍👦"),
}

NAME_START = listed("Al Bren Cor Dal El Fen Gar Hol Ist Jor Kal Lin Mar Nor Os Pel Quin Ros Sel Tor Ul Ven Wil Yar Zel")
NAME_MIDDLE = (*listed("a e i o an en ar el ov ith ber mar lo ri va ten"), "", "", "", "")
PLACE_END = listed("bury ford wick haven mouth stead dale holm burgh field minster bridge ness combe port grave")
PERSON_END = listed("a en is o ette ina us ric wyn ard elle ias")
FAMILY_END = listed("son man wright ley quist well ter mann sen more low combe")
GENUS_END = listed("ella opsis odon aria ium ites ura astrum")

# ------------------------------------------------------------------------------------------- sentences, English

TOWN = (
    "{place} is a {adjective} town on {terrain}, about {small} kilometres {direction} of {other}.",
    "It was first mentioned in {year}, when a {job} named {person} was granted the right to hold a market.",
    "At the last count it had {large} inhabitants, {percent} % of them employed in {industry}.",
    "The {building}, built of {material} {span}, is the oldest surviving structure.",
    "After the fire of {year} most houses were rebuilt in {material} with {color} roofs.",
    "The local economy depended on {industry} until the 1950s; {industry} has since taken its place.",
    "A narrow-gauge railway linked {place} with {other} from {year} until its closure {small} years later.",
    "The mean temperature in {month} is {small}.{digit} °C, and {small} cm of rain fall in {month}.",
    "The arms of the town show a {color} {animal} on a {color} field beneath three {plant} leaves.",
    "Every {season} the town holds a fair at which the best {food} is awarded a {material} {thing}.",
    "The {job} {person} (born in {year}) spent most of her life here and left her collection to the {building}.",
    "A survey published in {year} counted {large} specimens of {plant} along the {direction} wall.",
    "Its museum owns {small} paintings, a {adjective} {thing} and the only known {material} model of the {building}.",
    "Since {year} the council has consisted of {small} members, elected every four years.",
)
SPECIES = (
    "The {adjective} {animal} (*{genus} {epithet}*) is a species found on {terrain} {direction} of {place}.",
    "Adults measure {small} to {medium} millimetres and weigh up to {medium}.{digit} grams.",
    "The upper side is {color} with {color} markings; the underside is paler, and juveniles are almost {color}.",
    "It feeds mainly on {plant} seeds and, in {season}, on small insects taken from {plant} stems.",
    "Breeding begins in {month}. The female lays {small} eggs in a nest of {plant} and {plant}.",
    "The species was described in {year} by {person}, who had collected {small} specimens near {other}.",
    "Its call, a {adjective} double note repeated {small} times a minute, carries for almost {medium} {unit}.",
    "Numbers fell by {percent} % in {span}, chiefly because of {industry}.",
    "It is active at dusk and spends the {season} in hollow {plant} trunks.",
    'Local names include "{color} {animal}" and "{job}\'s {animal}".',
    "A related form, *{genus} {epithet}*, differs in its {adjective} voice and {color} legs.",
)
BIOGRAPHY = (
    "{hero} {family} ({born}–{died}) was a {job} and inventor from {place}.",
    "The third child of a {job}, {family} learned {industry} at the age of {small} and never went to school.",
    "In {year} {family} moved to {other} to work for the {job} {person}.",
    "There {family} built a {material} {thing} that could run for {medium} days without attention.",
    "The device was shown at the {building} of {place}, where {large} visitors paid to see it.",
    "A pamphlet of {year}, *On the {adjective} {thing}*, sold {medium} copies and was soon forgotten.",
    "{family} kept a tame {animal}, disliked {food}, and wrote letters in {color} ink.",
    "Critics called the work {adjective} and {adjective}; {person} defended it in a long review.",
    "Today a street, a {building} and a variety of {plant} bear the name of {family}.",
    "The surviving papers, some {medium} sheets, are kept in the {building} at {other}.",
    "Little is known about the time before {year}, which was probably spent on {terrain}.",
)
STORY = (
    "{weather_up}, and {hero} could not find the {thing}.",
    "{hero} had been a {job} in {place} for {small} years and had never once been late.",
    '"You took the {adjective} road," said {friend}. "Nobody takes it in {season}."',
    '"I took the only road there was," {hero} answered {manner}.',
    "On the table in the {room} stood a {material} {thing}, still warm.",
    "{friend} laughed, put the {thing} down {manner}, and cut the {food} into {small} pieces.",
    "Somewhere behind the {building} a {animal} called, and then everything was {adjective} again.",
    "It was not {feeling} that kept {hero} awake that night; it was the {adjective} sound of the {thing}.",
    '"Is it yours?" asked {friend}, holding out the {color} {thing}.',
    '"It was my mother\'s. She was a {job}, and she gave it to the {animal}."',
    "They walked {manner} past the {building}, through the {plant}, and down to the water.",
    "By {weekday} the whole of {place} knew about the {thing}.",
    "{hero} opened the {adjective} box. Inside lay {small} {color} buttons and a letter dated {year}.",
    'The letter began: "Dear {friend}, if the {animal} comes back, do not feed it {food}."',
    "With a mixture of {feeling} and {feeling} {hero} folded the paper and put it away.",
    '"We should ask the {job}," said {friend}, "though she will want to be paid in {food}."',
    "The {job} lived above the {building} and kept {small} geese, none of them friendly.",
    '"{small_up} days," the {job} said, without looking up. "Perhaps more. It is {adjective} work."',
    "So they waited. {weather_up}, and the {plant} by the gate turned {color}.",
    "When the {thing} was finished it was smaller than before, but it sang {manner} when {hero} held it.",
    "{friend} wept a little, out of {feeling}, and said it was the smoke.",
    "In the {room} somebody had left a candle burning and a plate of {food}.",
    "Nobody in {place} ever spoke of it again, except the children, who made it into a song.",
    "{hero} counted the steps to the {room}: {small}, as always, and one more.",
    "The {adjective} {animal} watched from the roof, and if it had an opinion it kept it to itself.",
    '"Tell me the truth," said {hero}. "Did you ever mean to come back?"',
    '"Every {season}," said {friend}. "And every {season} the ferry had just gone."',
    "After that there was nothing to do but light the {thing} and go home.",
)
HOWTO_STEPS = (
    "Measure {small} {unit} of {material} and mark both ends with {color} chalk.",
    "Mix {medium} g of {ingredient} with {small} spoons of {ingredient} until the surface is {adjective}.",
    "Leave everything in the {room} for {small} hours; do not open the lid.",
    "Heat the oven to {oven} °C ({medium} °F on old dials is too cool) and grease a {material} tray.",
    "Sand the {material} {manner}, wipe off the dust, and repeat with a finer paper.",
    "Check the {thing} twice. If it wobbles, loosen the {adjective} screw by half a turn.",
    "Write the date on the label, e.g. {digit}/{digit}/{year}, and keep the receipt.",
    "Fold the {color} edge towards you, press {manner}, then unfold it again.",
    "Rinse the {plant} under cold water and remove every {adjective} leaf.",
    "Call a friend if you are unsure: two people need only {small} minutes for this.",
    "Stir in the {ingredient}, add a pinch of salt, and taste. It should be {adjective} but not {adjective}.",
    "Unplug the {thing} before you touch the {material} cover.",
    "Hang the {thing} {small} cm above the {thing}, never directly over a stove.",
    "Wait until {weekday}. Most mistakes are made by people who could not wait.",
)
HOWTO_INTROS = (
    "You don't need to be a {job} to do this: an afternoon, a {thing} and some {adjective} weather will do.",
    "I've tried {small} ways of doing this, and here's the one that didn't end in tears.",
    "Most guides get this wrong. They'll tell you to start with the {thing}; start with the {material} instead.",
    "This is how my neighbour, a retired {job} from {place}, taught me to do it.",
)
QUESTIONS = (
    "I'm using {tool} {digit}.{small} with {language} and `{verb_id}_{noun_id}` returns {medium} rows, not {large}. "
    "What am I missing?",
    "How can I {verb_id} the {noun_id} by `{field}` without reading the whole file into memory? It has {large} lines.",
    "Why does {tool} say `error: {noun_id}.{field} is not a {field} (line {medium})` when the file's clearly valid?",
    "Is there an idiomatic {language} way to {verb_id} a list of {noun_id} and keep the original order?",
    "After upgrading {tool} from {digit}.{small} to {digit}.{small} the job takes {small} minutes, up from {digit}.",
)
ANSWERS = (
    "The short answer: {tool} buffers {medium} {noun_id} at a time, so anything after the last full block is dropped.",
    "You're comparing a string with a number. `\"{small}\" > {digit}` isn't what you think it is in {language}.",
    "Set `{field}_limit = {medium}` in the configuration and restart; the default of {small} is far too low.",
    "That's a known issue. It was fixed in {digit}.{small}.{digit}; see https://example.org/{tool}/issues/{large}.",
    "Sort by `{field}` first, then {verb_id}. It's O(n log n), but for {large} {noun_id} that's about {small} ms.",
    "I'd measure before changing anything. On my machine {verb_id} takes {percent} % of the time.",
    "Don't do this in a loop. Every call opens the file again, which costs {small} ms each time.",
    "Edit: as @{handle} points out in the comments, this fails when `{field}` is empty.",
)
WEB = (
    "Big news from {place}: our {building} reopens on {weekday}! {emoji}{emoji}",
    "OMG the {food} at {person}'s place... {emoji} 10/10, would eat again",
    "Read more at https://www.example.com/{place_slug}/{year}/{noun_id}?id={large}&ref={tool}#{field}",
    "Contact: {handle}@example.com or 555-01{two} (weekdays 9:00-17:30)",
    "Was €{medium}.{two}, now only €{small}.99 – you save {percent} %!",
    '★★★★☆ "A {adjective} {thing}, though the {material} feels {adjective}." – {person}, {month} {year}',
    "{emoji} Tip of the day: never store {ingredient} next to {plant}.",
    "Tags: #{plant} #{animal} #{adjective}{thing} #{season}{year}",
    "Results: {place} {digit}:{digit} {other} (half time {digit}:{digit}), attendance {large}",
    "Version {digit}.{small}.{digit} ({year}-{two_month}-{two_day}) – {small} fixes, {digit} new bugs {emoji}",
    "We're hiring a {job}! Salary {large}-{large} credits, {small} days' holiday, free {food}.",
    "Open {weekday} to {weekday}. Closed when {weather}.",
    "Follow us: http://example.net/~{handle}/ {emoji} | ftp://example.org/pub/{table}.tar.gz",
)
PAPER = (
    "We study the {property} of {topic} under {adjective} noise and prove a bound of $O(n^{digit} \\log n)$.",
    "Let $x_1, \\dots, x_n \\in \\mathbb{R}^d$ and write $\\bar x = n^{-1} \\sum_i x_i$ for their mean.",
    "Our method needs {medium} iterations on the {place} benchmark, {percent} % fewer than {person} [{small}].",
    "\\[ \\mathbb{E}\\, \\| x_{t+1} - x^\\star \\|^2 \\le (1 - \\eta \\mu)^t \\, \\| x_0 - x^\\star \\|^2 + "
    "\\frac{{digit}}{{small}} \\sigma^2 \\]",
    "The {property} of the estimator follows from Lemma {digit}.{digit} together with the {family} inequality.",
    "Experiments with $N = {large}$ samples and $\\eta = {digit}\\times 10^{-{digit}}$ confirm the analysis.",
    "Table {digit} reports {property} (mean ± std over {small} seeds); {topic} improves by {digit}.{digit} points.",
    "In contrast to {topic}, no assumption on {property} is required; see also {family} et al. ({year}).",
    "A limitation is that $\\kappa(A) > {medium}$ makes the {adjective} step {adjective}, i.e. ∇f is unbounded.",
    "We thank {person} and the {building} of {place} for {small} months of computing time.",
)
HEADINGS = ("History", "Geography", "Economy", "Description", "Legacy", "Culture", "See also", "Further notes")

PYTHON_UNITS = (
    "def {verb_id}_{noun_id}({noun_id}: list[dict], limit: int = {medium}) -> list[dict]:\n"
    '    """Return the {noun_id} whose {field} is above the limit."""\n'
    '    return [row for row in {noun_id} if row["{field}"] > limit]\n',
    'class {class_name}:\n    """A {adjective} {thing} made of {material}."""\n\n'
    "    def __init__(self, {field}: float = {digit}.{digit}) -> None:\n        self.{field} = {field}\n\n"
    '    def {verb_id}(self) -> str:\n        return f"{self.{field}:.2f} {unit}"\n',
    'with open("{table}.csv", newline="") as handle:\n    for line, row in enumerate(csv.reader(handle), start=1):\n'
    '        if len(row) != {digit}:\n            raise ValueError(f"line {line:d}: {len(row)} columns")\n',
    "import json\nimport sys\nfrom pathlib import Path\n\nLIMIT = {large}  # {unit}; found by trial and error\n",
    "def test_{verb_id}_keeps_the_order() -> None:\n    {noun_id} = [{small}, {digit}, {medium}]\n"
    "    assert {verb_id}({noun_id}) == sorted({noun_id})\n",
    "total = 0\nwhile total < {large}:\n\ttotal += {small} * step  # tabs, sorry\nprint(total, file=sys.stderr)\n",
    "@lru_cache(maxsize={medium})\ndef {field}_of(n: int) -> int:\n    return n if n < 2 else {field}_of(n - 1)\n",
    "try:\n    {verb_id}_{noun_id}(path)\nexcept OSError as error:\n"
    '    print(f"cannot {verb_id} {path!r}: {error!s}")\n    sys.exit({digit})\n',
)
SQL_UNITS = (
    "CREATE TABLE {table} (\n    id BIGINT PRIMARY KEY,\n    {column} TEXT NOT NULL,\n    {field} NUMERIC({small}, 2)"
    " DEFAULT {digit}\n);\n",
    "SELECT {column}, COUNT(*) AS n, AVG({field}) AS mean_{field}\nFROM {table}\nWHERE {field} >= {medium}\n"
    "GROUP BY {column}\nHAVING COUNT(*) > {digit}\nORDER BY n DESC\nLIMIT {small};\n",
    "-- {adjective} rows only\nUPDATE {table} SET {field} = {field} * 1.{two} WHERE {column} LIKE '%{plant}%';\n",
    "INSERT INTO {table} (id, {column}, {field}) VALUES ({large}, '{place}', {medium}), ({digit}, 'O''{family}', 0);\n",
    "CREATE INDEX idx_{table}_{column} ON {table} ({column}, {field});\n",
)
SHELL_UNITS = (
    '#!/usr/bin/env bash\nset -euo pipefail\n\nfor file in "$1"/*.{tool}; do\n    echo "checking $file" >&2\n'
    '    sha256sum "$file" >> {table}.sum\ndone\n',
    "$ {tool} {verb_id} --{field}={medium} ./{table} | sort -k{digit} -n | head -{small}\n",
    "$ tar czf {table}-{year}.tar.gz {table}/ && ls -lh {table}-{year}.tar.gz\n"
    "-rw-r--r-- 1 {handle} users {medium}K {table}-{year}.tar.gz\n",
    "# every {weekday} at {digit}:{two}\n{two} {digit} * * {digit} /usr/local/bin/{tool} {verb_id} >/dev/null 2>&1\n",
    'if [ ! -d "$HOME/{table}" ]; then\n    mkdir -p "$HOME/{table}" || exit {digit}\nfi\n',
    "$ curl -fsS https://example.org/{table}.json | jq '.{noun_id}[] | select(.{field} > {medium})'\n",
)

# -------------------------------------------------------------------------------------------- other languages

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

# Legal rows that careless readers get wrong, each once in every file. All but the blank ones are signed with a place
# and a year, so that no text of one split turns up in another.
NASTY: Mapping[str, str] = {
    "empty": "",
    "white space only": " \n\t\n   \r\n ",
    "literal special token": (
        f"Some tokenizers end a document with {END_OF_TEXT} and some with nothing. "
        f"This line quotes {END_OF_TEXT}{END_OF_TEXT} and {PAD} as plain text."
    ),
    "decomposed accents": (
        "Cafe\u0301, nai\u0308ve, A\u030angstro\u0308m, Sa\u0303o, Vie\u0323\u0302t, кр\u0438\u0306 and "
        "\u1112\u1161\u11ab\u1100\u1173\u11af: every accent here is a combining mark of its own."
    ),
    "composed accents": "Café, naïve, Ångström, São, Việt and 한글: the same words, composed, for comparison.",
    "stacked marks": "Z\u0351\u036b\u0343\u036aa\u0302\u0315l\u0336\u0321g\u0321\u0353\u0355o\u0321\u0322 and "
    "e\u0301\u0323 against e\u0323\u0301, with the marks in either order.",
    "joiners and flags": "👩‍👩‍👧‍👦 👩🏽‍💻 🏳️‍🌈 🇩🇪🇫🇷🇬🇷 1️⃣ a\u200bb\u200cc\u200dd \ufeffinside, "
    "soft\u00adhyphen, no\u00a0break.",
    "right to left": "שלום לכולם, and مرحبا بالعالم, and \u202bembedded\u202c; हिन्दी में नमस्ते; ไทยไม่มีช่องว่าง.",
    "line separators": "one\u2028two\u2029three\x0bfour\x0cfive\x85six\r\nseven\rnine: only \\n ends a JSON line.",
    "control characters": 'NUL \x00, escape \x1b[31mred\x1b[0m, delete \x7f, backslash \\, quote ", slash /, \\u0041.',
    "runs": "a" * 700 + " " * 300 + "!" * 200 + "\n" * 100 + "0123456789" * 40 + "é" * 150,
    "private and astral": "\ue000 \U0001d4d7\U0001d4ee\U0001d4f5\U0001d4f5\U0001d4f8 "
    "𠜎𠜱𠝹 𓀀𓂀 \U0010fffd ﬁ ﬀ Ⅷ ½ ㎏ \u212b \u2126 \u212a.",
}

Item = TypeVar("Item")

_SLOT = re.compile(r"\{([a-z_]+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou])")


class Voice:
    """A seeded speaker: draws words, keeps what has been bound, and fills ``{slot}`` templates.

    ``voice.say("{place} is {adjective}.")`` expands every slot, recursively; a slot that names no word list, no
    computed word and no bound name raises ``KeyError``, so a misspelt template cannot reach the corpus. ``{slot_up}``
    is the slot with a capital first letter.
    """

    def __init__(self, seed: str) -> None:
        self._random = Random(seed).random
        self._bound: dict[str, str | Sequence[str]] = {}
        self._computed: Mapping[str, Callable[[], str]] = {
            "place": self.place,
            "other": self.place,
            "person": self.person,
            "family": lambda: self._join(NAME_START, NAME_MIDDLE, FAMILY_END),
            "genus": lambda: self._join(NAME_START, NAME_MIDDLE, GENUS_END),
            "epithet": lambda: self._join(NAME_START, NAME_MIDDLE, ("ensis", "oides", "atus", "ana", "icola")).lower(),
            "handle": lambda: self._join(NAME_START, NAME_MIDDLE).lower() + str(self.between(1, 99)),
            "place_slug": lambda: self.place().lower(),
            "class_name": lambda: self.pick(WORDS["material"]).title() + self.pick(WORDS["thing"]).title(),
            "span": self.span,
            "year": lambda: str(self.between(1180, 2020)),
            "digit": lambda: str(self.between(1, 9)),
            "small": lambda: str(self.between(2, 40)),
            "medium": lambda: str(self.between(41, 990)),
            "large": lambda: str(self.between(1000, 98000)),
            "percent": lambda: f"{self.between(2, 98)}.{self.between(0, 9)}",
            "oven": lambda: str(5 * self.between(28, 46)),
            "two": lambda: f"{self.between(0, 59):02d}",
            "two_month": lambda: f"{self.between(1, 12):02d}",
            "two_day": lambda: f"{self.between(1, 28):02d}",
        }

    def between(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included."""
        return low + int(self._random() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def log_between(self, low: int, high: int) -> int:
        """An integer whose logarithm is uniform: many short lengths, a few long ones."""
        return int(math.exp(math.log(low) + self._random() * (math.log(high) - math.log(low))))

    def pick(self, items: Sequence[Item]) -> Item:
        return items[int(self._random() * len(items))]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        dealt = list(items)
        for last in range(len(dealt) - 1, 0, -1):
            other = self.between(0, last)
            dealt[last], dealt[other] = dealt[other], dealt[last]
        return dealt

    def deal(self, items: Sequence[Item]) -> Iterator[Item]:
        """Endless draws in which no item repeats before every other has had its turn."""
        while True:
            yield from self.shuffled(items)

    def place(self) -> str:
        return self._join(NAME_START, NAME_MIDDLE, PLACE_END)

    def person(self) -> str:
        return self._join(NAME_START, NAME_MIDDLE, PERSON_END) + " " + self._join(NAME_START, NAME_MIDDLE, FAMILY_END)

    def span(self) -> str:
        start = self.between(1180, 1980)
        return f"{start}–{start + self.between(2, 40)}"

    def bind(self, **names: str | Sequence[str]) -> None:
        """Fix slots for the document at hand, to one value or to a word list, and forget the last document's."""
        self._bound = names

    def say(self, template: str) -> str:
        text = _SLOT.sub(lambda match: self._word(match[1]), template)
        return _ARTICLE.sub(r"\1n ", text)

    def _word(self, slot: str) -> str:
        if slot.endswith("_up"):
            word = self._word(slot.removesuffix("_up"))
            return word[0].upper() + word[1:]
        if slot in self._bound:
            bound = self._bound[slot]
            return bound if isinstance(bound, str) else self.say(self.pick(bound))
        if slot in self._computed:
            return self._computed[slot]()
        return self.pick(WORDS[slot])

    def _join(self, *parts: Sequence[str]) -> str:
        return "".join(self.pick(part) for part in parts)


def grow(first: str, pieces: Iterator[str], target: int) -> str:
    """Append pieces to ``first`` until it has ``target`` characters, never passing ``MAX_CHARS``."""
    text = first
    while len(text) < target:
        piece = next(pieces)
        if len(text) + len(piece) > MAX_CHARS:
            break
        text += piece
    return text


# ------------------------------------------------------------------------------------------------------- genres


def encyclopedia(voice: Voice, target: int) -> str:
    """A title sentence, then facts in paragraphs with an occasional heading."""
    facts = voice.pick((TOWN, SPECIES, BIOGRAPHY))
    voice.bind(place=voice.place(), other=voice.place())
    if facts is BIOGRAPHY:
        hero, family = voice.person().split()
        born, age = voice.between(1300, 1930), voice.between(30, 80)
        life = [str(year) for year in range(born + 14, born + age)]
        voice.bind(
            place=voice.place(),
            other=voice.place(),
            hero=hero,
            family=family,
            born=str(born),
            died=str(born + age),
            year=life,
        )
    subjects = voice.shuffled(HEADINGS)

    def pieces() -> Iterator[str]:
        for number, fact in enumerate(voice.deal(facts[1:]), start=1):
            heading = number % 7 == 0 and subjects
            yield f"\n\n{subjects.pop()}\n\n" if heading else "\n\n" if number % 4 == 0 else " "
            yield voice.say(fact)

    return grow(voice.say(facts[0]), pieces(), target).rstrip()


def story(voice: Voice, target: int) -> str:
    """Two characters, one town, short paragraphs with dialogue."""
    hero, friend = (voice.person().split()[0] for _ in range(2))
    props = {slot: voice.pick(WORDS[slot]) for slot in ("thing", "animal", "job", "season")}
    voice.bind(hero=hero, friend=friend, place=voice.place(), **props)
    lines = voice.deal(STORY[1:])
    pieces = ((" " if voice.chance(0.6) else "\n\n") + voice.say(next(lines)) for _ in iter(int, 1))
    return grow(voice.say(STORY[0]), pieces, target)


def howto(voice: Voice, target: int) -> str:
    """A title, an introduction, numbered steps."""
    what = voice.say(voice.pick(("make {food}", "repair a {adjective} {thing}", "build a {material} {thing}")))
    first = f"How to {what}\n\n" + voice.say(voice.pick(HOWTO_INTROS)) + "\n"
    steps = voice.deal(HOWTO_STEPS)
    bullet = voice.pick(("{number}. ", "Step {number}: ", "- ", "{number}) "))
    pieces = ("\n" + bullet.replace("{number}", str(number)) + voice.say(next(steps)) for number in range(1, MAX_CHARS))
    return grow(first, pieces, target)


def question(voice: Voice, target: int) -> str:
    """A question with answers, some of which show code."""
    voice.bind(tool=voice.say("{tool}"), language=voice.say("{language}"), field=voice.say("{field}"))
    answers = voice.deal(ANSWERS)

    def pieces() -> Iterator[str]:
        while True:
            yield "\n\nA: " + voice.say(next(answers))
            yield " " + voice.say(next(answers))
            if voice.chance(0.4):
                yield "\n\n```python\n" + _unit(voice, voice.pick(PYTHON_UNITS)) + "```"

    return grow("Q: " + voice.say(voice.pick(QUESTIONS)), pieces(), target)


def code(voice: Voice, target: int) -> str:
    """One source file: Python, SQL or shell."""
    comment, units = voice.pick((("#", PYTHON_UNITS), ("#", PYTHON_UNITS), ("--", SQL_UNITS), ("#", SHELL_UNITS)))
    dealt = voice.deal(units)
    pieces = ("\n" + _unit(voice, next(dealt)) for _ in iter(int, 1))
    return grow(_unit(voice, f"{comment} {{verb_id}} the {{noun_id}} of {{place}}, {{year}}\n"), pieces, target)


def _unit(voice: Voice, template: str) -> str:
    """One piece of code that sticks to its names."""
    names = {slot: voice.pick(WORDS[slot]) for slot in ("verb_id", "noun_id", "field", "table", "column")}
    voice.bind(year=MODERN, **names)
    return voice.say(template)


def table(voice: Voice, target: int) -> str:
    """A Markdown report: a heading, a table whose total is right, a list; repeated as needed."""
    voice.bind(year=MODERN)
    return grow(
        f"# {voice.say('{table}').replace('_', ' ').title()}\n", (_section(voice) for _ in iter(int, 1)), target
    )


def _section(voice: Voice) -> str:
    amounts = [voice.between(1, 5000) for _ in range(voice.between(2, 7))]
    total = sum(amounts)
    kind = voice.pick(("{animal}", "{plant}", "{thing}"))
    rows = [voice.say(f"| {{place}} | {kind} | {amount} | {100 * amount / total:.1f} % |") for amount in amounts]
    return "\n".join(
        [
            voice.say("\n## {season_up} {year}\n"),
            voice.say("| Place | Kind | {unit} | Share |"),
            "|:---|---|---:|---:|",
            *rows,
            f"| **Total** | | **{total}** | 100 % |",
            voice.say(
                "\n* {adjective_up}: see `{table}.{column}`\n* [x] checked by {person}\n* [ ] *to do* – {weekday}\n"
            ),
        ]
    )


def foreign(voice: Voice, target: int) -> str:
    """Sentences in one language, or in several when the draw says so."""
    names = voice.shuffled(list(LANGUAGES))[: 1 if voice.chance(0.8) else 3]

    def sentences() -> Iterator[str]:
        decks = {name: voice.deal(LANGUAGES[name]["sentence"]) for name in names}
        for number, name in enumerate(voice.deal(names)):
            voice.bind(**LANGUAGES[name])
            space = "\n" if number % 5 == 4 else "" if name in SPACELESS else " "
            yield voice.say(next(decks[name])) + space

    return grow("", sentences(), target).rstrip()


def web(voice: Voice, target: int) -> str:
    """A page of notices, links, prices, hashtags and emoji, one a line."""
    voice.bind(year=MODERN)
    notices = voice.deal(WEB)
    return grow(voice.say(next(notices)), ("\n" + voice.say(next(notices)) for _ in iter(int, 1)), target)


def paper(voice: Voice, target: int) -> str:
    """An abstract and notes with LaTeX formulas."""
    voice.bind(topic=voice.say("{topic}"), year=MODERN)
    first = voice.say("\\section*{On the {property} of {topic}}\n\n") + voice.say(PAPER[0])
    claims = voice.deal(PAPER[1:])
    return grow(first, ((" " if voice.chance(0.7) else "\n\n") + voice.say(next(claims)) for _ in iter(int, 1)), target)


Genre = Callable[[Voice, int], str]

# Each genre with the source that SlimPajama would name; a genre listed twice is drawn twice as often.
GENRES: Sequence[tuple[Genre, str]] = (
    (encyclopedia, "RedPajamaWikipedia"),
    (encyclopedia, "RedPajamaWikipedia"),
    (foreign, "RedPajamaWikipedia"),
    (foreign, "RedPajamaCommonCrawl"),
    (story, "RedPajamaBook"),
    (story, "RedPajamaBook"),
    (howto, "RedPajamaCommonCrawl"),
    (table, "RedPajamaCommonCrawl"),
    (web, "RedPajamaC4"),
    (question, "RedPajamaStackExchange"),
    (code, "RedPajamaGithub"),
    (paper, "RedPajamaArXiv"),
)


def documents(path: str, count: int) -> list[tuple[str, str]]:
    """The ``(text, set name)`` pairs of one file: ``count`` in all, those of ``NASTY`` among them."""
    voice = Voice(f"{SEED}/{path}")
    grown: list[tuple[str, str]] = []
    while len(grown) < count - len(NASTY):
        genre, source = voice.pick(GENRES)
        voice.bind()
        text = genre(voice, voice.log_between(MIN_CHARS, MAX_CHARS))
        if MIN_CHARS <= len(text) <= MAX_CHARS:
            grown.append((text, source))
    voice.bind()
    signed = [text + voice.say(" – {place}, {year}") if text.strip() else text for text in NASTY.values()]
    return voice.shuffled([*grown, *((text, "RedPajamaCommonCrawl") for text in signed)])


def jsonl(path: str, pairs: Sequence[tuple[str, str]]) -> bytes:
    """The rows of one file as UTF-8 JSON lines, each ended by ``\\n``."""
    rows = ({"text": text, "meta": {"redpajama_set_name": source}} for text, source in pairs)
    return "".join(json.dumps(row, ensure_ascii=path == ESCAPED) + "\n" for row in rows).encode()


def sample_files() -> dict[str, bytes]:
    """Every corpus file, by its path below the target directory, as decompressed bytes."""
    wanted = {**TRAIN_FILES, **HOLDOUT_FILES}
    return {path: jsonl(path, documents(path, count)) for path, count in wanted.items()}


def compress(data: bytes) -> bytes:
    """One zstd frame that records its content size and a checksum."""
    return zstandard.ZstdCompressor(level=19, write_checksum=True, write_content_size=True).compress(data)


def train_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """A byte-level BPE of ``VOCAB_SIZE`` ids, the two special tokens last."""
    special = [AddedToken(token, special=True, normalized=False) for token in (END_OF_TEXT, PAD)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    tokenizer.add_special_tokens(special)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(f"the corpus gave {tokenizer.get_vocab_size()} ids, not {VOCAB_SIZE}: add words to it")
    return tokenizer


def tokenizer_files(files: Mapping[str, bytes]) -> dict[str, str]:
    """The tokenizer bundle learned from the train files among ``files``, by path below the target directory."""
    texts = [json.loads(line)["text"] for path in TRAIN_FILES for line in files[path].split(b"\n")[:-1]]
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TEXT,
        "model_max_length": 4096,
        "pad_token": PAD,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    return {
        "tokenizer/tokenizer.json": train_tokenizer(texts).to_str() + "\n",
        "tokenizer/tokenizer_config.json": json.dumps(config, indent=2) + "\n",
    }


def write_sample(target: Path) -> None:
    """Write the corpus to ``target/data`` and the tokenizer to ``target/tokenizer``."""
    files = sample_files()
    contents = {path: compress(data) for path, data in files.items()}
    contents |= {path: text.encode() for path, text in tokenizer_files(files).items()}
    for name, data in contents.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the sample corpus and its tokenizer.")
    parser.add_argument("target", type=Path, metavar="TARGET_DIR", help="receives data/ and tokenizer/")
    write_sample(parser.parse_args(argv).target)


if __name__ == "__main__":
    main()
