"""The report: one file, everything in it, nothing fetched, readable by everyone."""

from __future__ import annotations

import json
import os
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from mars.analysis import durations
from mars.analysis.environment import write_environment
from mars.analysis.figures import FIGURES
from mars.analysis.report import write_report
from mars.analysis.tables import TABLES, build
from mars.config import Study, dump_study, parse_study

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Tags with their attributes, text, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def html(study, results, figures, tmp_path_factory) -> str:
    out = tmp_path_factory.mktemp("report") / "embedded" / "index.html"
    assert write_report(study, results, figures, out) == out
    assert [p.name for p in out.parent.iterdir()] == ["index.html"]
    return out.read_text(encoding="utf-8")


def test_it_has_every_table_and_every_figure(study, results, html):
    page = Page(html)
    assert page.open == []
    ids = {a.get("id") for _, a in page.tags}
    for name in TABLES:
        assert f"table-{name}" in ids
        assert build(name, study, results).title in page.text
    for name, drawing in FIGURES.items():
        assert f"figure-{name}" in ids
        assert drawing.caption(study) in page.text
    assert len(page.all("img")) == len(FIGURES)
    assert "What is missing" not in page.text


def test_everything_is_inside_it(html):
    page = Page(html)
    for tag, attributes in page.tags:
        assert tag not in ("iframe", "object")
        for name in ("src", "srcset", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith("data:"), (tag, value)
        assert tag != "link" or attributes["href"] == "data:,"  # no icon is asked for
        assert not [name for name in attributes if name.startswith("on")]
    assert len(page.all("script")) == 1
    style = html.split("<style>")[1].split("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style


def test_it_is_accessible(html):
    page = Page(html)
    assert page.all("html")[0]["lang"] == "en"
    assert all(len(a["alt"] or "") > 40 for a in page.all("img"))
    assert all(a.get("scope") in ("col", "row") for a in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table")) > 9
    levels = [int(t[1]) for t, _ in page.tags if t in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    boxes = [a for a in page.all("div") if "scroll" in (a.get("class") or "").split()]
    assert all(a["tabindex"] == "0" and a["role"] == "region" for a in boxes)
    assert len(boxes) == len(page.all("table"))  # wide tables scroll inside their box
    ids = [a["id"] for _, a in page.tags if a.get("id")]
    assert len(ids) == len(set(ids))
    targets = {a["href"][1:] for a in page.all("a") if (a["href"] or "").startswith("#")}
    assert targets <= set(ids)


def test_it_says_what_it_is_and_what_it_is_not(study, html):
    text = Page(html).text
    assert "over documents only, not over training again" in text
    assert "absolute scores do not compare" in text
    assert "all of them, at the first step) is the last prompt token" in text  # Jacobi's draft
    assert "the predictions that were not accepted are the next guesses" in text
    assert "FLOP an example ÷ AR SFT" in text
    assert "Calibration on held-out items" in text
    assert "not its epoch count" in text
    assert "compute-matched control" in text
    assert "arXiv 2604.07023" in text
    assert "CC BY 4.0" in text
    assert f"stage2_examples: {study.data.stage2_examples}" in text
    assert "Nothing under that label says what a model accepts" in text  # replayed acceptance
    assert "made-up CPU" in text  # where the wall-clock grid was measured
    assert "made-up tensors" in text  # what memory means in the cost study
    assert " ".join(dump_study(study).split()) in text


def test_gaps_are_listed_with_their_commands(study, partial, figures, tmp_path):
    (partial / "seed0/toy-s/mars_b4/evaluation.csv").unlink()
    (partial / "environment.json").unlink()
    drawn = tmp_path / "some"
    drawn.mkdir()
    (drawn / "frontier.png").write_bytes((figures / "frontier.png").read_bytes())
    write_report(study, partial, drawn, tmp_path / "index.html")
    text = Page((tmp_path / "index.html").read_text(encoding="utf-8")).text
    assert "evaluation of seed 0, toy-s, mars_b4: snakemake --cores 8" in text
    assert "environment.json is missing" in text
    assert "This figure was not drawn: wall_clock.png is missing." in text


OPTIONAL = {
    "throughput": "table-table5 table-roofline table-profile table-replay table-batching "
    "table-arrivals figure-wall_clock figure-arrivals",
    "throughput.thresholds": "table-table5",
    "throughput.replay throughput.continuous": "table-replay table-batching",
    "throughput.continuous": "table-batching",
    "throughput.trace": "table-arrivals figure-arrivals",
    "evaluation.jacobi": "table-jacobi",
    "evaluation.acceptance": "table-acceptance",
}


@pytest.mark.parametrize("keys", OPTIONAL)
def test_parts_that_a_study_does_without_are_left_out(study, figures, tmp_path, keys):
    raw = study.model_dump(mode="json")
    for key in keys.split():
        *above, last = key.split(".")
        at = raw[above[0]] if above else raw
        at[last] = [] if isinstance(at[last], list) else None

    def parts(one: Study) -> set[str]:
        write_report(one, tmp_path / "none", figures, tmp_path / "index.html")
        page = Page((tmp_path / "index.html").read_text("utf-8"))
        ids = {a.get("id") or "" for _, a in page.tags}
        return {name for name in ids if name.startswith(("table-", "figure-"))}

    assert parts(study) - parts(parse_study(raw)) == set(OPTIONAL[keys].split())


def test_durations_come_from_snakemakes_benchmarks(study, partial):
    header = "s\th:m:s\tmax_rss\n"
    for name, seconds, memory, end in (
        ("train/a", 100.0, "700.5", 1_000_100),
        ("train/b", 60.0, "650", 1_000_120),
        ("evaluate/a", 30.0, "-", 1_000_200),
    ):
        path = partial / "benchmarks" / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{header}{seconds}\t0:01:00\t{memory}\n")
        os.utime(path, (end, end))
    found = durations.durations(study, partial)
    assert found is not None
    assert found.stages == {"evaluate": 30.0, "train": 160.0}
    assert found.total == 190.0
    assert found.wall_clock == pytest.approx(150.0)  # a: 0–100, b: 60–120, then 170–200
    assert found.peak_memory_mb == 700.5


def test_durations_fall_back_on_the_results(study, results, tmp_path):
    found = durations.durations(study, results)
    assert found is not None
    assert set(found.stages) == {
        *("training", "evaluation", "throughput", "arrivals", "training_cost")
    }
    assert found.wall_clock is None
    assert durations.durations(study, tmp_path) is None


def test_times_are_said_as_people_say_them():
    assert [durations.text(s) for s in (4.4, 65, 3_725)] == ["4 s", "1 min 05 s", "1 h 02 min"]


def test_the_environment_is_recorded(tmp_path):
    found = json.loads(write_environment(tmp_path / "deep" / "environment.json").read_text())
    assert found["cores"] >= 1
    assert found["memory_gb"] > 0
    assert found["python"].count(".") == 2
    assert found["libraries"]["numpy"]
    assert set(found) >= {"cpu", "gpus", "system", "commit", "uncommitted_changes"}
