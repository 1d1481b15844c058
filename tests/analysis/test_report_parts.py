"""Parts of the report by themselves: verdicts, examples, sizes of figures, how to cite."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest
import yaml

from mars.analysis.render import Column, Section, Table
from mars.analysis.report.cite import FILE, cite
from mars.analysis.report.content import first, size
from mars.analysis.report.examples import choose, examples
from mars.analysis.report.page import FOLDER
from mars.analysis.report.verdicts import verdicts
from mars.analysis.results import iter_records
from mars.analysis.tidy import write_tidy
from mars.config import Study, load_study

from . import synthetic

QUICK = synthetic.ROOT / "config" / "quick.yaml"


@pytest.fixture
def quick(tmp_path) -> tuple[Study, Path]:
    study = load_study(QUICK)
    return study, synthetic.make_results(tmp_path / "quick", study, documents=12)


def records_of(results: Path, study: Study, benchmark: str, tau: float) -> Path:
    made = next(d for d in study.decodings("mars_b4", benchmark) if d.tau == tau)
    return results / f"seed0/toy-s/mars_b4/evaluation/{benchmark}/{made.id}.jsonl"


def without_text(path: Path, *documents: int) -> None:
    """Records whose answers are not kept, as GPQA's are; of all documents where none is named."""
    records = list(iter_records(path))
    for record in records:
        if not documents or record["doc_id"] in documents:
            record["output"] = ""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


# ------------------------------------------------------------------------------------ examples


def test_examples_are_the_first_documents_at_every_threshold(quick):
    study, results = quick
    chosen = choose(study, results)
    assert chosen is not None
    assert (chosen.scale, chosen.variant, chosen.taus) == ("toy-s", "mars_b4", [1.0, 0.95, 0.7])
    for one in chosen.shown:
        kept = {
            tau: {(r["task"], str(r["doc_id"])): r for r in iter_records(path)}
            for tau in chosen.taus
            if (path := records_of(results, study, one.benchmark, tau))
        }
        assert [int(number) for _, number in one.readings] == [0, 1]
        for document, readings in one.readings.items():
            for tau, reading in readings.items():
                record = kept[tau][document]
                assert "".join(span.text for span in reading.spans) == record["output"]
                assert [span.accepted for span in reading.spans] == record["accepted"]
                assert reading.score == record["score"]


def test_answers_that_are_not_kept_are_never_shown(quick):
    study, results = quick
    first_one = choose(study, results).shown[0].benchmark
    for tau in (1.0, 0.95, 0.7):
        without_text(records_of(results, study, first_one, tau))
    second = choose(study, results).shown[0].benchmark
    assert second != first_one
    without_text(records_of(results, study, second, 0.7), 0)  # one document, at one threshold
    (shown,) = [one for one in choose(study, results).shown if one.benchmark == second]
    assert [number for _, number in shown.readings] == ["1", "2"]
    assert first_one not in examples(study, results)


def test_without_texts_or_thresholds_it_says_what_examples_need(quick):
    study, results = quick
    for path in results.rglob("*.jsonl"):
        path.unlink()
    assert choose(study, results) is None
    assert "No examples: they need the answers of a MARS variant" in examples(study, results)


def test_examples_of_results_that_were_given_away_without_their_records_files(quick):
    study, results = quick
    write_tidy(study, results, results)
    text = examples(study, results)
    assert text.count('<article class="example">') == 6
    for path in results.rglob("*.jsonl"):
        path.unlink()
    assert examples(study, results) == text


def test_numbers_beside_an_example_are_those_of_its_records(quick):
    study, results = quick
    text = examples(study, results)
    one = choose(study, results).shown[0]
    row = one.rows[0.7]
    assert f"<strong>{row['score']:.1f} %</strong>" in text
    assert f"<strong>{row['tokens_per_forward']:.2f}</strong> tokens per forward" in text
    spans = next(iter(one.readings.values()))[0.7].spans
    tokens = sum(span.accepted for span in spans)
    assert f"{tokens} tokens in {len(spans)} forwards" in text
    shown = re.findall(r'data-tau="([\d.]+)"( hidden)?', text)
    assert {tau for tau, hidden in shown if not hidden} == {"0.95"}


# ------------------------------------------------------------------------------------ verdicts


def test_each_claim_is_a_row_with_its_verdict_in_words():
    columns = [
        *(Column(key, key, text=True) for key in ("sentence", "verdict", "what", "needed")),
        *(Column("ours", "Ours"), Column("paper", "Paper")),
    ]
    rows = [
        {"sentence": "It <holds>.", "verdict": word, "what": "a − b", "where": "Table 2"}
        for word in ("reproduced", "not reproduced", "inconclusive", "not measured")
    ]
    rest = Section("behind", [{**rows[0], "ours": 1.5}])
    made = Table("claims", "Claims", columns, [Section("first", rows), rest], ["Of 4 claims …"])
    text = verdicts(made)
    assert text.count('role="row"') == 5
    assert "It &lt;holds&gt;." in text
    marks = re.findall(r'<span class="verdict (\w*)">([^<]*)</span>', text)
    assert marks == [
        *(("yes", "reproduced"), ("no", "not reproduced")),
        *(("open", "inconclusive"), ("", "not measured")),
    ]
    assert text.index("Of 4 claims") < text.index("<table")
    assert "1.5" in text.split("<details>")[1]
    assert ">0<" not in text  # what is missing is never 0


def test_a_table_that_the_registry_lacks_leaves_no_section(quick):
    assert first("nothing", "nothing", "Nothing", *quick).body == ""


# ------------------------------------------------------------------------------------ the rest


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + bytes(4)


def test_a_figure_is_shown_as_large_as_it_is_on_paper():
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 2100, 900, 8, 2, 0, 0, 0))
    dpi = chunk(b"pHYs", struct.pack(">IIB", 11811, 11811, 1))  # 300 pixels an inch
    assert size(start + dpi + chunk(b"IDAT", b"")).startswith(' width="896" height="384"')
    assert size(start + chunk(b"IDAT", b"")).startswith(' width="2100" height="900"')
    assert size(b"no picture at all") == ""


def test_the_suite_and_the_paper_are_cited(tmp_path):
    known = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    text = cite()
    assert known["title"] in text
    assert known["references"][0]["title"] in text
    assert "Jin, Ziqi and Wang, Lei and Luo, Ziwei and Sun, Aixin" in text
    assert "eprint = {2604.07023}" in text
    alone = cite(tmp_path / "CITATION.cff")  # an installed package has no such file
    assert "@software" not in alone
    assert "eprint = {2604.07023}" in alone


def test_text_on_every_shade_can_be_read_in_light_and_in_dark():
    """WCAG 2's contrast, 4.5 at least, of an answer's text on the colour of its forward."""
    sheet = (FOLDER / "report.css").read_text(encoding="utf-8")
    themes = [
        dict(re.findall(r"--([\w-]+): *(#[0-9a-fA-F]+)", block))
        for block in re.findall(r":root \{(.*?)\}", sheet, re.DOTALL)
    ]
    upon = dict(re.findall(r"\.(n[456]) \{ background: var\(--n\d\); color: ([^;]+);", sheet))
    assert len(themes) == 2
    assert set(upon) == {"n4", "n5", "n6"}
    for theme in themes:
        for shade in ("n1", "n2", "n3", "n4", "n5", "n6"):
            ink = upon.get(shade, "var(--ink)")
            ink = theme[ink[6:-1]] if ink.startswith("var(--") else ink
            pale, dark = sorted((luminance(ink), luminance(theme[shade])), reverse=True)
            assert (pale + 0.05) / (dark + 0.05) >= 4.5, (shade, theme[shade])


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * sign for sign in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
