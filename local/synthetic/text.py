"""The demo corpus's sentences: short everyday stories from a small grammar."""

import random
import re
import zlib
from collections.abc import Iterator

GRAMMAR: dict[str, str] = {
    "sentence": """{weather} | {weather} | {travel} | {travel} | {home} | {home} | {food} | {food}
        | {money} | {clock} | {work} | {garden} | {health} | {story} | {story}""",
    "weather": """the {wind} wind blew from the {compass} all {daytime}
        | it will be {sky} in the {compass} and {sky} along the coast
        | {day} began with {fall} and ended under a {colour} sky
        | after {number} days of {fall} the {water} was higher than ever
        | the {daytime} was {sky} but the evening turned {temperature}
        | they say that {fall} will reach the {place} before {day}
        | we had {much} {fall} this {season} and very little sun
        | a {temperature} {season} often follows a {sky} {season}""",
    "travel": """the train to the {place} leaves at {hour}
        | {person} drove {number} miles along the {water} to visit {relative}
        | we missed the {vehicle} and walked {distance} to the {place}
        | if you turn {side} behind the {building} you will see the {place}
        | {person} bought {few} tickets and took the {vehicle} to the {place}
        | the road over the {place} was closed because of {fall}
        | on {day} {relative} will travel by {vehicle} with {person}
        | it takes {number} hours to reach the {place} by {vehicle}""",
    "home": """{person} {cleaned} the {room} while {relative} {cleaned} the {room}
        | there is a {colour} {furniture} next to the {furniture} in the {room}
        | please put the {thing} on the {furniture} and close the {opening}
        | {relative} lost the {thing} somewhere between the {room} and the {room}
        | the {opening} of the {room} was left open all {daytime}
        | we painted the {room} {colour} and the {opening} {colour}
        | {person} found an old {thing} under the {furniture}
        | the {furniture} is too {size} for such a {size} {room}""",
    "food": """for {meal} we had {dish} with {dish} and a cup of {drink}
        | {person} likes {dish} but {relative} would rather eat {dish}
        | the shop near the {building} sells fresh {dish} and {taste} {fruit}
        | add {few} spoons of {drink} and cook the {dish} for {number} minutes
        | {relative} brought {few} {fruit} and a bottle of {drink}
        | the {dish} tasted {taste} and the {drink} was {temperature}
        | would you like some {drink} with your {dish}
        | nobody ate the {taste} {dish} that {person} made for {meal}""",
    "money": """the {thing} costs {number} dollars and the {thing} only {few}
        | {person} paid {number} dollars for {few} {fruit}
        | we saved {number} dollars every {span} to buy a {size} {furniture}
        | {number} and {few} people came to the {event}
        | more than {number} thousand people live near the {water}""",
    "clock": """the {event} starts at {hour} on {day} {daytime}
        | {person} woke up at {hour} and made a cup of {drink}
        | {relative} was born on {day} in the {ordinal} week of {month}
        | the {ordinal} of {month} is a {day} this year
        | come back at {hour} or wait until {day}""",
    "work": """{person} has worked at the {building} for {number} years
        | the teacher asked {few} {size} questions about the {animal}
        | {relative} reads the {ordinal} page of the {reading} every {span}
        | {person} wrote a long letter to the {building} about the {event}
        | the {ordinal} lesson is about the history of the {place}
        | all the students were {feeling} when the {event} was over""",
    "garden": """a {size} {animal} was sleeping under the {colour} {plant}
        | {number} {fruit} fell from the tree behind the {building}
        | {person} planted a {plant} next to the {water} last {season}
        | the {animal} ran across the {place} and hid behind a {plant}
        | every {season} the {plant} by the {opening} turns {colour}
        | {relative} feeds the {animal} at {hour} every {span}""",
    "health": """{person} felt {feeling} after {number} hours of sleep
        | the doctor told {relative} to rest for {number} days
        | drink {taste} {drink} and stay in the {room} until {day}
        | {relative} hurt one hand on the {ordinal} day of the {event}
        | walking to the {place} every {span} makes {person} {feeling}""",
    "story": """{person} said that {relative} was {feeling} about the {event}
        | nobody knew why the {animal} waited near the {building}
        | when the {event} ended {person} went to the {place} with {relative}
        | {relative} told us a {size} story about a {colour} {animal}
        | {person} heard the {animal} before {relative} opened the {opening}
        | the {size} {animal} followed {person} from the {water} to the {building}
        | {relative} and {person} were {feeling} because the {vehicle} was late
        | once there was a {feeling} {animal} that lived in a {colour} {furniture}""",
    "person": "anna | peter | maria | david | susan | robert | helen | george | julia | thomas",
    "relative": """my brother | my sister | her mother | his father | our uncle | their aunt
        | my grandmother | our neighbor | his daughter | her son""",
    "wind": "cold | warm | strong | gentle | heavy",
    "compass": "north | south | east | west",
    "sky": "cloudy | sunny | windy | rainy | foggy | bright | dry | stormy",
    "fall": "rain | snow | fog | ice | thunder | heavy rain | wet snow",
    "temperature": "cold | cool | warm | hot | mild",
    "much": "much | too much | plenty of | a lot of",
    "season": "spring | summer | autumn | winter",
    "daytime": "morning | afternoon | night | day",
    "span": "morning | evening | week | month | weekend",
    "day": "monday | tuesday | wednesday | thursday | friday | saturday | sunday",
    "month": """january | february | march | april | may | june | july | august | september
        | october | november | december""",
    "colour": "red | blue | green | yellow | white | black | brown | grey | orange | purple",
    "size": "small | large | tiny | huge | short | long | heavy | narrow | strange | simple",
    "water": "river | lake | sea | canal | ocean | harbor",
    "place": """village | mountain | valley | forest | island | market | city | bridge | beach
        | airport | hills | border | town | castle""",
    "building": """school | church | library | hospital | station | museum | theater | bank
        | post office | hotel | factory""",
    "vehicle": "train | bus | car | boat | plane | ferry | taxi | bicycle",
    "side": "left | right",
    "distance": "{number} miles | half a mile | a long way | {few} blocks",
    "cleaned": "cleaned | swept | painted | measured | decorated | locked",
    "room": "kitchen | bedroom | bathroom | garage | hall | cellar | office | living room",
    "furniture": "table | chair | sofa | shelf | bed | desk | carpet | cupboard | lamp | box",
    "opening": "door | window | gate | curtain",
    "thing": """book | key | letter | basket | picture | phone | camera | umbrella | jacket
        | newspaper | clock | hammer | map""",
    "reading": "book | letter | newspaper | story | report",
    "meal": "breakfast | lunch | dinner | supper",
    "dish": """bread | soup | rice | chicken | fish | cheese | potatoes | salad | pasta | beans
        | cake | eggs | butter""",
    "fruit": "apples | pears | oranges | cherries | lemons | plums | grapes | peaches",
    "drink": "coffee | tea | milk | water | juice | honey | cream",
    "taste": "sweet | bitter | fresh | salty | sour | hot | delicious",
    "event": """concert | meeting | party | wedding | game | lecture | festival | journey
        | class | storm | election""",
    "animal": "dog | cat | horse | bird | rabbit | sheep | goat | fox | mouse | duck | cow",
    "plant": "rose | apple tree | bush | oak | flower | vine | hedge",
    "feeling": """happy | tired | angry | hungry | nervous | proud | lonely | surprised | better
        | worried | calm""",
    "few": "two | three | four | five | six | seven | eight | nine | ten",
    "number": """{few} | {few} | eleven | twelve | fifteen | {tens} | {tens} {digit}
        | a hundred | {few} hundred""",
    "tens": "twenty | thirty | forty | fifty | sixty | seventy | eighty | ninety",
    "digit": "one | two | three | four | five | six | seven | eight | nine",
    "ordinal": "first | second | third | fourth | fifth | sixth | seventh | eighth | ninth | tenth",
    "hour": "{few} | half past {few} | a quarter to {few} | {few} thirty | noon | midnight",
}
"""Alternatives of each symbol, separated by `|`; `{name}` stands for another symbol."""

SHARES = {"dev": 1, "test": 1, "train": 6}
"""Relative share of all possible sentences that each split has."""

_ALTERNATIVES = {
    name: [" ".join(alternative.split()) for alternative in text.split("|")]
    for name, text in GRAMMAR.items()
}


def sentence(rng: random.Random) -> str:
    """Draw one upper-case sentence; every alternative of a symbol is equally likely."""

    def expand(symbol: str) -> str:
        alternative = rng.choice(_ALTERNATIVES[symbol])
        return re.sub(r"\{(\w+)\}", lambda match: expand(match[1]), alternative)

    return expand("sentence").upper()


def split_of(text: str) -> str:
    """Return the split of a sentence, a function of its text: no sentence is in two splits."""
    remainder = zlib.crc32(text.encode()) % sum(SHARES.values())
    for name, size in SHARES.items():
        if remainder < size:
            return name
        remainder -= size
    raise AssertionError("the shares cover every remainder")


def sentences(split: str, seed: str) -> Iterator[str]:
    """Yield distinct sentences of a split without end; the same seed gives the same sentences."""
    rng = random.Random(seed)
    drawn = set()
    while True:
        text = sentence(rng)
        if split_of(text) == split and text not in drawn:
            drawn.add(text)
            yield text


def vocabulary() -> set[str]:
    """Return every word of the grammar, in upper case."""
    text = re.sub(r"\{\w+\}|\|", " ", " ".join(GRAMMAR.values()))
    return {word.upper() for word in text.split()}
