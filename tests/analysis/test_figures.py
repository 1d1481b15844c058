"""The figures' data, not their pixels; and that every file is written."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from mars.analysis import paper
from mars.analysis.figures import (
    FIGURES,
    beside,
    caption,
    data,
    draw,
    frontier,
    style,
    wall_clock,
)
from mars.analysis.results import load_evaluation
from mars.analysis.speed import OPPONENTS
from mars.config import parse_study


@pytest.mark.parametrize("name", list(FIGURES))
def test_each_figure_is_written_as_png_and_pdf(study, figures, name):
    with Image.open(figures / f"{name}.png") as picture:
        inches = np.array(picture.size) / picture.info["dpi"]
        pixels = np.asarray(picture.convert("RGB"), dtype=np.int64)
    assert any(inches[0] == pytest.approx(width, abs=0.35) for width in (style.COLUMN, style.WIDE))
    assert 1.5 < inches[1] < 11  # fits a page
    colours, counts = np.unique(pixels @ [1, 1 << 8, 1 << 16], return_counts=True)
    assert len(colours) > 50
    assert 0.02 < 1 - counts.max() / counts.sum() < 0.9  # drawn upon, and not all over
    file = (figures / f"{name}.pdf").read_bytes()
    assert file.startswith(b"%PDF-")
    assert file.rstrip().endswith(b"%%EOF")
    assert len(file) > 5_000
    assert len(list(figures.iterdir())) == 2 * len(FIGURES)  # no temporary file is left
    assert len(caption(name, study)) > 80


@pytest.mark.parametrize("name", list(FIGURES))
def test_figures_without_results_say_so(study, tmp_path, name):
    assert all(p.exists() for p in draw(name, study, tmp_path / "none", tmp_path / name))
    made = FIGURES[name].figure(study, tmp_path / "none")
    said = [text.get_text() for text in made.findobj(Text)]
    empty = [ax for ax in made.axes if not ax.has_data()]
    assert sum(text.endswith("no results yet") for text in said) >= max(1, len(empty))


def test_redrawing_gives_the_same_picture(study, results, figures, tmp_path):
    again = draw("signal_fraction", study, results, tmp_path / "again")
    assert [p.name for p in again] == ["again.png", "again.pdf"]
    for path in again:
        first = figures / f"signal_fraction{path.suffix}"
        assert path.read_bytes() == first.read_bytes()


def test_frontier_holds_every_threshold_of_every_curve(study, results):
    points = data("frontier", study, results)
    curve = points[
        (points["scale"] == "toy-s")
        & (points["benchmark"] == "toy_gsm8k")
        & (points["variant"] == "mars_b4")
    ]
    assert list(curve["tau"]) == [1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5]
    rows = load_evaluation(study, results)
    rows = rows[(rows["variant"] == "mars_b4") & (rows["benchmark"] == "toy_gsm8k")]
    rows = rows[(rows["scale"] == "toy-s") & (rows["rule"] == "probability")]
    rows = rows.sort_values("tau", ascending=False)
    assert list(curve["score"]) == list(rows["score"])
    assert list(curve["forwards"]) == list(rows["tokens_per_forward"])
    assert (curve["low"] < curve["score"]).all()
    assert (curve["score"] < curve["high"]).all()
    assert curve["forwards"].iloc[0] == 1.0
    # without the SFT loss at the first scale only; the as-released ablation is no curve
    ablated = points[points["curve"] == "no_sft"]
    assert set(ablated["scale"]) == {"toy-s"}
    assert set(ablated["block_size"]) == {4, 8, 16}
    assert not points["variant"].str.contains("stream").any()


def test_the_papers_frontier_points_keep_its_difference_from_ar_sft(study, results):
    points = data("frontier", study, results)
    here = points[(points["scale"] == "toy-m") & (points["benchmark"] == "toy_humaneval")]
    base = here[here["curve"] == "ar"]["score"].item()
    theirs = here[(here["curve"] == "paper") & (here["block_size"] == 16)]
    assert theirs["score"].item() == pytest.approx(base + 72.6 - 78.7)
    assert theirs["forwards"].item() == 1.60
    one = here[(here["curve"] == "paper") & (here["tau"] == 1)]  # its Table 2; of 7B B = 4 alone
    assert list(one["block_size"]) == [4]
    assert one["score"].item() == pytest.approx(base + 81.7 - 78.7)
    assert one["forwards"].item() == 1
    small = points[(points["scale"] == "toy-s") & (points["curve"] == "paper")]
    assert set(small[small["tau"] == 1]["block_size"]) == {4, 8, 16}  # its Table 3


def test_the_pareto_set_is_what_no_other_point_beats(study, results):
    points = data("frontier", study, results)
    assert not points[points["curve"] == "paper"]["pareto"].any()
    ours = points[points["curve"] != "paper"]
    for _, panel in ours.groupby(["scale", "benchmark"]):
        at = panel[["forwards", "score"]].to_numpy()
        beaten = [((at >= one).all(axis=1) & (at > one).any(axis=1)).any() for one in at]
        kept = panel[~np.array(beaten)]
        assert panel["pareto"].sum() == len(kept.drop_duplicates(["forwards", "score"]))
        assert set(panel.index[panel["pareto"]]) <= set(kept.index)


def test_frontier_adapts_to_one_scale(study, results):
    raw = study.model_dump(mode="json")
    raw["scales"] = {"toy-s": raw["scales"]["toy-s"]}
    raw["throughput"] = raw["training_cost"] = None
    one = parse_study(raw)
    assert len(frontier.figure(one, results).axes) == 2
    assert len(frontier.figure(study, results).axes) == 4


def test_signal_fraction_has_count_expectation_and_the_papers_values(study, results):
    points = data("signal_fraction", study, results).set_index("variant")
    assert points.loc["mars_no_sft_b4", "expected"] == pytest.approx((1 + 3 / 30) / 4)
    with_sft = points.loc["mars_b4"]
    assert set(with_sft["expected"].round(6)) == {round((1 + (1 + 3 / 30) / 4) / 2, 6)}
    assert with_sft["fraction"].iloc[0] == pytest.approx(with_sft["expected"].iloc[0] + 0.002)
    assert np.isnan(points.loc["mars_no_sft_stream_b4", "expected"])
    theirs = points[points["source"] == "paper"]
    assert len(theirs) == 6
    assert np.allclose(theirs["fraction"].astype(float), theirs["expected"], atol=1e-9)


def test_wall_clock_speedups_are_over_the_fastest_ar(study, results):
    points = data("wall_clock", study, results)
    keys = ["source", "method", "batch_size"]
    one = points.dropna(subset=["speedup"]).drop_duplicates(keys).set_index(keys)
    for source in ("ours", "replayed acceptance"):
        assert one.loc[(source, "cursor", 4), "speedup"] == pytest.approx(1.6)
        assert one.loc[(source, "generate", 8), "speedup"] == pytest.approx(0.8)
        assert one.loc[(source, "auto", 16), "efficiency"] == pytest.approx(1.7 / 2)
        assert one.loc[(source, "none", 16), "speedup"] == pytest.approx(0.7)
    theirs = points[points["source"] == "paper"]
    assert len(theirs) == len(paper.table("table5"))
    assert set(theirs["method"]) == {"generate", "none", "block"}
    block = theirs[(theirs["cache_block"] == 32) & (theirs["batch_size"] == 4)]
    assert block["efficiency"].item() == pytest.approx(241.9 / 143.4 / 1.79)  # GSM8K of its Table 4


def test_the_block_cache_is_drawn_at_its_best_block(study, results):
    points = data("wall_clock", study, results)
    best = wall_clock.best_blocks(points[points["source"] == "paper"], "speedup")
    blocks = best[best["method"] == "block"].set_index("batch_size")["cache_block"]
    assert dict(blocks) == {4: 32, 8: 32, 16: 16}


def test_wall_clock_has_a_column_for_each_source(study, results):
    raw = study.model_dump(mode="json")
    titles = []
    for change in ({}, {"replay": None, "continuous": None}, {"thresholds": []}):
        raw["throughput"] = study.throughput.model_dump(mode="json") | change
        made = wall_clock.figure(parse_study(raw), results)
        titles.append([ax.get_title(loc="left") for ax in made.axes if ax.get_title(loc="left")])
    ours, replayed = "Ours (toy-m, τ = 0.95)", "Ours, replayed acceptance (1.8)"
    theirs = "Paper (7B, one GPU)"
    assert titles == [[ours, replayed, theirs], [ours, theirs], [replayed, theirs]]


def test_wall_clock_lines_are_told_apart_and_their_bars_are_whole(study, partial):
    path = partial / "seed0/throughput.csv"
    runs = pd.read_csv(path)
    mine = (runs["cache"] == "cursor") & (runs["method"] == "mars") & (runs["draft"] == "B")
    runs.loc[mine, "seconds"] *= runs.loc[mine, "repeat"].map({0: 0.3, 1: 1.0, 2: 1.2})
    runs.to_csv(path, index=False)
    looks = [wall_clock.LINES[method] for method in OPPONENTS]
    for same in zip(*looks, strict=True):  # no two AR lines share a colour, marker or dashes
        assert len(set(same)) == len(OPPONENTS)
    points = data("wall_clock", study, partial)
    ours = points[points["source"] == "ours"]
    made = wall_clock.figure(study, partial)
    assert (ours["speedup"] + ours["sd"].fillna(0)).max() > ours["speedup"].max() * 1.2
    assert made.axes[0].get_ylim()[1] > (ours["speedup"] + ours["sd"].fillna(0)).max()


def test_tokens_per_forward_by_benchmark_and_mean(study, results):
    bars = data("tokens_per_forward", study, results)
    here = bars[(bars["scale"] == "toy-s") & (bars["block_size"] == 4)].set_index("column")
    six = here.loc[list(paper.COLUMNS), "forwards"]
    assert here.loc["Avg", "forwards"] == pytest.approx(six.mean())
    assert here.loc["BBH", "paper"] == 1.90


def test_a_missing_benchmark_has_no_bar_and_no_mean(study, partial):
    shutil.rmtree(partial / "seed0/toy-m/mars_b8")
    bars = data("tokens_per_forward", study, partial)
    assert bars[(bars["scale"] == "toy-m") & (bars["block_size"] == 8)].empty
    points = data("frontier", study, partial)
    assert points[(points["scale"] == "toy-m") & (points["variant"] == "mars_b8")].empty


def test_loss_curves_keep_both_terms_apart(study, results):
    curves = data("loss_curves", study, results)
    ar = curves[curves["variant"] == "ar_sft"]
    assert ar["loss_ar"].notna().all()
    assert ar["loss_mask"].isna().all()
    both = curves[curves["variant"] == "mars_b8"]
    assert both[["loss_ar", "loss_mask"]].notna().all().all()
    assert set(curves["scale"]) == {"toy-s", "toy-m"}


def test_labels_are_spread_apart():
    placed = style.spread([1.0, 1.01, 5.0, 1.02], 0.5)
    assert np.diff(sorted(placed)).min() > 0.49
    assert placed[0] < placed[1] < placed[3] < placed[2]


def test_a_label_stands_beside_its_point_and_on_nothing_that_is_drawn():
    made = Figure(figsize=(3.3, 2.4))
    ax = made.subplots()
    ax.set_xlim(0, 10)
    ax.set_ylim(0, 10)
    line = np.array([[2.0, 5.0], [5.0, 5.0], [8.0, 5.0]])
    above = np.column_stack([np.linspace(1, 9, 17), np.full(17, 5.9)])
    told = [
        ("τ = 1", 2.0, 5.0),
        ("τ = 0.9", 5.0, 5.0),
        ("τ = 0.8", 5.1, 5.0),
        ("τ = 0.5", 8.0, 5.0),
    ]
    beside.name(ax, told, [line, above], "black")
    made.draw_without_rendering()
    assert {text.get_text() for text in ax.texts} >= {"τ = 1", "τ = 0.9", "τ = 0.5"}
    marks = ax.transData.transform(np.concatenate([line, above]))
    boxes = [Text.get_window_extent(text) for text in ax.texts]
    for text, box in zip(ax.texts, boxes, strict=True):
        assert not any(box.contains(x, y) for x, y in marks), text.get_text()
        assert not any(box.overlaps(other) for other in boxes if other is not box)


def test_unknown_figures_say_what_there_is(study, results, tmp_path):
    with pytest.raises(ValueError, match="unknown figure 'fronteir'; choose from frontier"):
        draw("fronteir", study, results, tmp_path / "x")
