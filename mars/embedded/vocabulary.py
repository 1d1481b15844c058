"""Every word of the toy world: each is one piece of the tokenizer, with the space before it."""

from __future__ import annotations

NUMBERS = tuple(str(n) for n in range(100))

_PLAIN = """
#### % ( ) * + , - . / : ; < <= = == > >= ? A AMBER B BLACK BLUE BROWN C D E F G GOLD GREEN
GREY H I IVORY J PINK RED TEAL VIOLET WHITE [ ] a about above actor adds all amber and animal
animals ann answer ape apple apples are at away bags baker bat beats bee below between black
blit blue bonn books boss brackets brel brown buys by cairo capital cards cat celt cherry
cities city clerk close code coins colour colours cook cow crob dakar date def delhi do does
dog drem dunt each eat eats elk else end eski eva even f false fewer fig find finds first flen
for fox friend from fruit fruits function g gaff gets gives gold grape green grey grol guard h
has hasp have hen how hurl i if in inka is it ivory jask job judge keep keeps kiwi kova kyoto
last least lemon len leo let letters lima lime list live lives loops loses lusk mango many
melon mia milan miner minus morb more most multiplies n name nim no not now number numbers
nurse odd of open or order orph oslo over owl paris peach pear pig pilot pink plum plus poet
put pwen quax quito rat red return rilm rome s sailor sam sarn second sells seoul shum so some
sort start step still sum sure swap tailor takes teal than that the them then they think third
times to tokyo tom tovi trails true twyx ulfo us use vet violet vook wear wears webb what where
which white who with words write x xeno y yak yint zorb { }
"""

WORDS = ("\n", " \n ", *(f" {word}" for word in (*NUMBERS, *_PLAIN.split())))
"""The pieces, in the order of their ids."""
