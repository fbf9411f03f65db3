"""English words and sentences from which the sample corpus is generated."""

from collections.abc import Mapping, Sequence


def listed(text: str) -> tuple[str, ...]:
    """Return the entries of a word list: separated by ``|`` if the text has one, else by white space."""
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
