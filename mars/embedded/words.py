"""The words the toy world is written with, by kind."""

from __future__ import annotations

NAMES = ("tom", "mia", "sam", "ann", "leo", "eva")

CITIES = (
    "rome",
    "oslo",
    "lima",
    "delhi",
    "paris",
    "tokyo",
    "quito",
    "dakar",
    "seoul",
    "bonn",
    "cairo",
    "milan",
    "kyoto",
)
FRUITS = (
    "fig",
    "plum",
    "pear",
    "apple",
    "grape",
    "melon",
    "lemon",
    "peach",
    "mango",
    "cherry",
    "kiwi",
    "lime",
    "date",
)
COLOURS = (
    "red",
    "blue",
    "green",
    "pink",
    "gold",
    "grey",
    "black",
    "white",
    "brown",
    "teal",
    "violet",
    "amber",
    "ivory",
)
JOBS = (
    "baker",
    "pilot",
    "nurse",
    "judge",
    "miner",
    "clerk",
    "guard",
    "actor",
    "poet",
    "cook",
    "vet",
    "tailor",
    "sailor",
)
ANIMALS = (
    "cat",
    "dog",
    "cow",
    "pig",
    "hen",
    "fox",
    "owl",
    "bee",
    "rat",
    "bat",
    "ape",
    "elk",
    "yak",
)

BEINGS = (
    *("zorb", "nim", "quax", "brel", "tovi", "shum", "grol", "pwen", "lusk"),
    *("drem", "vook", "hasp", "yint", "morb", "celt", "flen", "jask", "kova"),
    *("rilm", "sarn", "twyx", "ulfo", "webb", "xeno", "orph", "gaff", "blit"),
    *("crob", "dunt", "eski", "hurl", "inka"),
)

LETTERS = ("A", "B", "C", "D", "E", "F", "G", "H", "I", "J")
