"""Several MARS variants of one B: each is a line, a bar and a row of its own, and is named."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.container import BarContainer
from matplotlib.text import Text

from mars.analysis import labels, terminal
from mars.analysis.figures import FIGURES, data, style
from mars.analysis.results import load_evaluation
from mars.analysis.tables import build
from mars.config import Study, parse_study

from . import synthetic

SLOW = "learning rate 0.0003"


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    """Variants of B = 4: the paper's, one of another learning rate, one aligned as released."""
    raw = synthetic.embedded().model_dump(mode="json")
    raw |= {"study": "several", "scales": {"toy-s": raw["scales"]["toy-s"]}}
    raw |= {"throughput": None, "training_cost": None}
    raw["evaluation"]["acceptance"] = None
    names = ("mars_no_sft_b4", "mars_no_sft_stream_b4", "mars_b4", "mars_b8")
    some = {name: raw["variants"][name] for name in ("base", "ar_sft", *names)}
    slow = {"mars_b4_slow": some["mars_b4"] | {"learning_rate": 3e-4}}  # named before the paper's
    stream = {"mars_stream_b4": some["mars_b4"] | {"alignment": "stream"}}
    study = parse_study(raw | {"variants": slow | some | stream})
    folder = tmp_path_factory.mktemp("several") / "several"
    return study, synthetic.make_results(folder, study, documents=30)


def texts(name: str, several: tuple[Study, Path]) -> list[str]:
    with matplotlib.rc_context(fname=style.STYLE):
        return [t.get_text() for t in FIGURES[name].figure(*several).findobj(Text)]


def measured(several: tuple[Study, Path], variant: str) -> dict[float, float]:
    rows = load_evaluation(*several)
    mine = rows[(rows["variant"] == variant) & (rows["benchmark"] == "toy_gsm8k")]
    return dict(zip(mine["tau"], mine["tokens_per_forward"], strict=True))


def test_a_label_says_what_a_variant_has_of_its_own(several):
    study = several[0]
    made = {name: labels.label(name, variant) for name, variant in study.variants.items()}
    assert made["mars_b4"] == "MARS"
    assert made["mars_b4_slow"] == f"MARS, {SLOW}"
    assert made["mars_stream_b4"] == "MARS (alignment as released)"
    assert labels.ordered(study, "toy-s")[-4:] == [
        *("mars_b4", "mars_b8", "mars_b4_slow", "mars_stream_b4"),
    ]
    for name in ("table2", "table3", "table4", "glance", "training_overhead", "jacobi"):
        rows = build(name, *several).sections[0].rows
        named = [
            (row["model"], row.get("block_size"), row.get("tau"))
            for row in rows
            if row.get("source") != "paper"
        ]
        assert len(named) == len(set(named)), name
        theirs = [row for row in rows if row.get("source") == "paper" and row["model"] == "MARS"]
        keys = [(row["scale"], row.get("block_size"), row.get("tau")) for row in theirs]
        assert len(keys) == len(set(keys)), name


def test_another_parent_is_told_apart_by_name(several):
    raw = several[0].model_dump(mode="json")
    raw["variants"]["from_base"] = raw["variants"]["mars_b4"] | {"parent": "base"}
    study = parse_study(raw)
    assert labels.line(study, "mars_b4") == "B = 4"
    assert labels.line(study, "from_base") == "B = 4, from_base"
    looks = [style.look(study, name) for name in ("mars_b4", "mars_b8", "mars_b4_slow")]
    assert len({*looks, style.look(study, "from_base")}) == 4
    assert style.look(study, "mars_no_sft_b4") == looks[0]  # dashed, of the same colour


@pytest.mark.parametrize("name", ["frontier", "score_tau"])
def test_each_variant_is_a_curve_of_its_own(several, name):
    study = several[0]
    with matplotlib.rc_context(fname=style.STYLE):
        ax = FIGURES[name].figure(*several).axes[0]
    points = data(name, *several)
    points = points[points["benchmark"] == study.evaluation.panels[0]].set_index("variant")
    drawn = {tuple(np.round(line.get_ydata(), 6)): line.get_color() for line in ax.lines}
    colours = []
    for variant in ("mars_b4", "mars_b4_slow", "mars_b8"):
        mine = points.loc[variant].sort_values("tau", ascending=False)
        colours.append(drawn[tuple(np.round(mine["score"], 6))])  # no line goes through two
    assert len(set(colours)) == 3
    assert any(text.endswith(f"B = 4, {SLOW}") for text in texts(name, several))


def test_bars_of_tokens_per_forward_stand_beside_each_other(several):
    bars = data("tokens_per_forward", *several)
    assert list(bars[bars["column"] == "Avg"]["variant"]) == [
        *("mars_b4", "mars_b8", "mars_b4_slow", "mars_stream_b4"),
    ]
    with matplotlib.rc_context(fname=style.STYLE):
        (ax,) = FIGURES["tokens_per_forward"].figure(*several).axes
    bars = [bar for c in ax.containers if isinstance(c, BarContainer) for bar in c]
    edges = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars)
    assert len(edges) == 4 * 7
    assert all(right <= left for (_, right), (left, _) in pairwise(edges))
    said = texts("tokens_per_forward", several)
    assert {"B = 4", "B = 8", f"B = 4, {SLOW}", "B = 4, alignment as released"} <= set(said)


def test_counts_of_two_variants_are_not_added_up(several):
    counts = data("accepted_counts", *several)
    here = counts[counts["benchmark"] == "toy_gsm8k"]
    for variant in ("mars_b4", "mars_b4_slow"):
        mine = here[(here["variant"] == variant) & (here["tau"] == 0.5)]
        assert mine["share"].sum() == pytest.approx(1)
        mean = (mine["accepted"] * mine["share"]).sum()
        assert mean == pytest.approx(measured(several, variant)[0.5])
    assert any(SLOW in text.replace("\n", " ") for text in texts("accepted_counts", several))


def test_confidences_of_two_variants_are_not_pooled(several):
    bins = data("reliability", *several)
    assert set(bins["variant"]) == {"mars_b4", "mars_b8", "mars_b4_slow"}
    assert not bins.duplicated(["scale", "variant", "first", "low"]).any()
    assert f"toy-s · B = 4\n{SLOW}" in texts("reliability", several)


def test_rows_of_the_paper_stand_for_the_paper_models_only(several):
    study, results = several
    table = terminal.narrow(
        build("table2", study, results), study, None, "mars_no_sft_stream_b4", None
    )
    found = {(row["model"], row["source"]) for row in table.sections[0].rows}
    assert found == {
        ("MARS w/o SFT loss (alignment as released)", "ours"),
        ("MARS w/o SFT loss", "paper"),
    }
