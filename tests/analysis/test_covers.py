"""Wherever intervals are shown it is said what they cover: documents, with seeds training too."""

from __future__ import annotations

import pytest

from mars.analysis import figures, labels
from mars.analysis.report.about import about
from mars.analysis.tables import TABLES, build
from mars.analysis.terminal import find
from mars.config import parse_study

from . import synthetic

ONE, SEVERAL = "over documents only, not over training again", "over documents and training again"
IN_TABLES = ("glance", "table2", "table3", "table4", "jacobi", "acceptance", "chance", "arrivals")
IN_FIGURES = ("frontier", "tokens_per_forward", "score_tau", "arrivals")


@pytest.mark.parametrize(("seeds", "words"), [([0], ONE), ([0, 1, 2], SEVERAL)])
def test_every_sentence_on_intervals_tells_whether_they_cover_training_again(
    seeds, words, tmp_path
):
    study = parse_study(synthetic.embedded().model_dump(mode="json") | {"seeds": seeds})
    assert labels.covers(study) == words
    notes = {name: " ".join(build(name, study, tmp_path).notes) for name in TABLES}
    captions = {name: figures.caption(name, study) for name in figures.FIGURES}
    assert {name for name, text in notes.items() if words in text} == set(IN_TABLES)
    assert {name for name, text in captions.items() if words in text} == set(IN_FIGURES)
    assert words in about(study)
    assert words in " ".join(find(None, study, tmp_path).notes)
    for text in [*notes.values(), *captions.values(), about(study)]:
        said = text.replace(words, "").replace("over documents (and seeds, where", "")
        assert "over documents" not in said
        assert "documents only" not in said
