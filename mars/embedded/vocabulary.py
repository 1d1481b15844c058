"""Every word of the toy world: each is one piece of the tokenizer, with the space before it."""

from __future__ import annotations

NUMBERS = tuple(str(n) for n in range(100))

_PLAIN = """
#### % ( ) * + , - . / : ; < <= = == > >= ? A B BLACK BLUE BROWN C D E F G GOLD GREEN GREY H I
J PINK RED TEAL WHITE [ ] a about above actor adds all and animal animals ann answer apple
apples are at away bags baker bat beats bee below between black blit blue bonn books boss
brackets brel brown buys by capital cards cat celt cherry cities city clerk close code coins
colour colours cook cow crob dakar def delhi do does dog drem dunt each eat eats else end eski
eva even f false fewer fig find finds first flen for fox friend from fruit fruits function g
gaff gets gives gold grape green grey grol guard h has hasp have hen how hurl i if in inka is
it jask job judge keep keeps kova last least lemon len leo let letters lima list live lives
loops loses lusk mango many melon mia miner minus morb more most multiplies n name nim no not
now number numbers nurse odd of open or order orph oslo over owl paris peach pear pig pilot
pink plum plus poet put pwen quax quito rat red return rilm rome s sam sarn second sells seoul
shum so some sort start step still sum sure swap takes teal than that the them then they think
third times to tokyo tom tovi trails true twyx ulfo us use vook wear wears webb what where
which white who with words write x xeno y yint zorb { }
"""

WORDS = ("\n", "\n ", *(f" {word}" for word in (*NUMBERS, *_PLAIN.split())))
"""The pieces, in the order of their ids."""
