"""Questions with short known answers, made from templates over facts: what `structured_answers.py` asks.

Which of them a model knows, its answers in plain text tell.
"""

from __future__ import annotations

from typing import NamedTuple


class Fact(NamedTuple):
    """A question; the answers of which one must occur, in lower case; four answers, one of which is right."""

    question: str
    answers: tuple[str, ...]
    choices: list[str]


_CAPITALS = """
France Paris; Germany Berlin; Italy Rome; Spain Madrid; Portugal Lisbon; Greece Athens; Austria Vienna;
Hungary Budapest; Poland Warsaw; Sweden Stockholm; Norway Oslo; Denmark Copenhagen; Finland Helsinki;
Ireland Dublin; Belgium Brussels; Switzerland Bern; Netherlands Amsterdam; Russia Moscow; Ukraine Kyiv,Kiev;
Turkey Ankara; Egypt Cairo; Morocco Rabat; Kenya Nairobi; Nigeria Abuja; Ghana Accra; Ethiopia Addis;
Tanzania Dodoma; Senegal Dakar; Tunisia Tunis; Algeria Algiers; Japan Tokyo; China Beijing; India Delhi;
Pakistan Islamabad; Thailand Bangkok; Vietnam Hanoi; Indonesia Jakarta; Philippines Manila; Malaysia Kuala;
Nepal Kathmandu; Iran Tehran; Iraq Baghdad; Syria Damascus; Lebanon Beirut; Jordan Amman; Israel Jerusalem;
Canada Ottawa; Mexico Mexico; Cuba Havana; Brazil Bras; Argentina Buenos; Chile Santiago; Peru Lima;
Colombia Bogot; Venezuela Caracas; Ecuador Quito; Uruguay Montevideo; Paraguay Asunci; Bolivia Paz,Sucre;
Australia Canberra; Iceland Reykjav; Romania Bucharest; Bulgaria Sofia; Serbia Belgrade; Croatia Zagreb;
Slovenia Ljubljana; Slovakia Bratislava; Latvia Riga; Estonia Tallinn; Lithuania Vilnius; Cyprus Nicosia;
Malta Valletta; Albania Tirana; Jamaica Kingston; Bangladesh Dhaka; Mongolia Ulaan; Afghanistan Kabul; Qatar
Doha; Oman Muscat; Fiji Suva
"""
_COUNTRIES = """
Paris France; Berlin Germany; Rome Italy; Madrid Spain; Lisbon Portugal; Athens Greece; Vienna Austria;
Tokyo Japan; Beijing China; Moscow Russia; Cairo Egypt; Nairobi Kenya; Lagos Nigeria; Mumbai India; Shanghai
China; Osaka Japan; Barcelona Spain; Milan Italy; Munich Germany; Hamburg Germany; Lyon France; Marseille
France; Sydney Australia; Melbourne Australia; Toronto Canada; Montreal Canada; Vancouver Canada; Chicago
United,USA; Boston United,USA; Houston United,USA; London United,England,UK; Manchester United,England,UK;
Edinburgh Scotland,United,UK; Dublin Ireland; Lima Peru; Bangkok Thailand; Hanoi Vietnam; Jakarta Indonesia;
Manila Philippines; Istanbul Turkey; Warsaw Poland; Prague Czech; Budapest Hungary; Stockholm Sweden; Oslo
Norway; Copenhagen Denmark; Helsinki Finland; Brussels Belgium; Venice Italy; Florence Italy; Naples Italy;
Seville Spain; Kyoto Japan; Delhi India
"""
_CONTINENTS = """
France Europe; Germany Europe; Italy Europe; Spain Europe; Poland Europe; Sweden Europe; Greece Europe;
Norway Europe; Japan Asia; China Asia; India Asia; Thailand Asia; Vietnam Asia; Nepal Asia; Pakistan Asia;
Indonesia Asia; Egypt Africa; Kenya Africa; Nigeria Africa; Ghana Africa; Morocco Africa; Ethiopia Africa;
Tanzania Africa; Uganda Africa; Brazil South; Argentina South; Chile South; Peru South; Colombia South;
Canada North; Mexico North; Portugal Europe; Austria Europe; Hungary Europe; Finland Europe; Denmark Europe;
Belgium Europe; Switzerland Europe; Malaysia Asia; Mongolia Asia; Zimbabwe Africa; Zambia Africa; Angola
Africa; Senegal Africa
"""
_ELEMENTS = """
Fe iron; Au gold; Ag silver; O oxygen; H hydrogen; N nitrogen; C carbon; Na sodium; K potassium; Ca calcium;
Cu copper; Zn zinc; Pb lead; He helium; Ne neon; Cl chlorine; Mg magnesium; Al alumin; Si silicon; S
sulfur,sulphur; P phosphor; U uranium; Hg mercury; Sn tin; Ni nickel
"""
_OPPOSITES = """
hot cold; big small,little; up down; left right,wrong; day night; black white; happy sad,unhappy; fast slow;
old new,young; high low; hard soft,easy; light dark,heavy; open close; rich poor; strong weak; wet dry; full
empty; early late; true false; good bad,evil; north south; east west; love hate; win lose; begin end; young
old; clean dirty; thick thin; wide narrow; deep shallow; loud quiet
"""
_NEXT = """
Monday Tuesday; Tuesday Wednesday; Wednesday Thursday; Thursday Friday; Friday Saturday; Saturday Sunday;
Sunday Monday; January February; February March; March April; April May; May June; June July; July August;
August September; September October; October November; November December; December January
"""
_AUTHORS = """
Romeo_and_Juliet Shakespeare; Hamlet Shakespeare; Macbeth Shakespeare; Pride_and_Prejudice Austen; Emma
Austen; 1984 Orwell; Animal_Farm Orwell; War_and_Peace Tolstoy; Anna_Karenina Tolstoy; Crime_and_Punishment
Dosto; Oliver_Twist Dickens; A_Christmas_Carol Dickens; Great_Expectations Dickens; Moby-Dick Melville;
The_Great_Gatsby Fitzgerald; Don_Quixote Cervantes; The_Odyssey Homer; The_Iliad Homer; Frankenstein
Shelley; Dracula Stoker; The_Hobbit Tolkien; The_Lord_of_the_Rings Tolkien; Les_Miserables Hugo; Faust
Goethe; The_Divine_Comedy Dante; Jane_Eyre Bront; Wuthering_Heights Bront; Ulysses Joyce;
The_Adventures_of_Huckleberry_Finn Twain; The_Adventures_of_Tom_Sawyer Twain; To_Kill_a_Mockingbird Lee
"""
_YOUNG = """
dog puppy; cat kitten; cow calf; horse foal; sheep lamb; lion cub; bear cub; duck duckling; goat kid; frog
tadpole; hen chick; pig piglet; deer fawn; kangaroo joey; goose gosling
"""
_PLURALS = """
child children; mouse mice; foot feet; tooth teeth; man men; woman women; goose geese; city cities; baby
babies; box boxes; bus buses; leaf leaves; wolf wolves; knife knives; life lives; fox foxes; party parties;
story stories; tomato tomatoes; hero heroes
"""
_SUMS = """
2_plus_2 4,four; 3_plus_4 7,seven; 5_plus_5 10,ten; 1_plus_1 2,two; 6_plus_2 8,eight; 3_plus_3 6,six;
7_plus_1 8,eight; 4_plus_5 9,nine; 10_plus_10 20,twenty; 2_plus_3 5,five; 9_minus_4 5,five; 10_minus_3
7,seven; 8_minus_2 6,six; 5_times_2 10,ten; 3_times_3 9,nine
"""
_COLOURS = """
the_sky blue; grass green; snow white; blood red; a_banana yellow; coal black; the_sun yellow; a_tomato red;
chocolate brown; milk white; an_emerald green; a_ruby red; the_sea blue; a_lemon yellow; a_carrot orange
"""
_TEMPLATES = (
    ("What is the capital of {}?", _CAPITALS),
    ("In which country is the city of {}?", _COUNTRIES),
    ("On which continent is {}?", _CONTINENTS),
    ("Which chemical element has the symbol {}?", _ELEMENTS),
    ("What is the opposite of {}?", _OPPOSITES),
    ("What comes after {}?", _NEXT),
    ("Who wrote {}?", _AUTHORS),
    ("What is a young {} called?", _YOUNG),
    ("What is the plural of {}?", _PLURALS),
    ("What is {}?", _SUMS),
    ("What is the colour of {}?", _COLOURS),
)


def facts() -> list[Fact]:
    """All of them, the templates in turns, so that any first part is mixed."""
    lists = [_of_template(template, " ".join(pairs.split()).split("; ")) for template, pairs in _TEMPLATES]
    longest = max(map(len, lists))
    return [one[i] for i in range(longest) for one in lists if i < len(one)]


def _of_template(template: str, pairs: list[str]) -> list[Fact]:
    words = [pair.rsplit(" ", 1) for pair in pairs]
    right = [answers.split(",")[0] for _, answers in words]
    found = []
    for i, (name, answers) in enumerate(words):
        others = [one for one in dict.fromkeys(right[i + 1 :] + right[:i]) if one not in answers.split(",")]
        choices = sorted([right[i], *others[:3]])
        lower = tuple(one.lower() for one in answers.split(","))
        found.append(Fact(template.format(name.replace("_", " ")), lower, choices))
    return found
