"""Tables as LaTeX: what is bold, what is escaped, and that pdflatex takes it where it is there."""

from __future__ import annotations

import re
import shutil
import subprocess

import numpy as np
import pytest

from mars.analysis import paper
from mars.analysis.latex import escape, latex
from mars.analysis.parts import COMPARED
from mars.analysis.render import Column, Section, Table
from mars.analysis.statistics import Estimate
from mars.analysis.tables import TABLES, build, write_table
from mars.analysis.tables.forms import forms, less
from mars.config import parse_study

from .conftest import FIXED


def body(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("%"))


def test_latex_is_the_one_written_by_hand(fixed, tmp_path):
    write_table("table2", *fixed, tmp_path)
    made = (tmp_path / "table2.tex").read_text(encoding="utf-8")
    assert made.startswith("% Needs \\usepackage{booktabs}.\n% Rows marked 'paper'")
    assert body(made) == (FIXED / "expected/table2.tex").read_text(encoding="utf-8")


def test_what_means_something_to_latex_is_escaped():
    assert escape("a_b & 5 % of #1 {x} $y$ ~ ^ \\z") == (
        r"a\_b \& 5 \% of \#1 \{x\} \$y\$ \textasciitilde{} \textasciicircum{} \textbackslash{}z"
    )
    assert escape("τ < 1 − 0.5 ÷ 2 ± 1 – ‘so’") == (
        r"$\tau$ $<$ 1 $-$ 0.5 $\div$ 2 $\pm$ 1 -- `so'"
    )


def small(rows: list[dict], **settings: object) -> Table:
    columns = [
        Column("name", "Name", text=True),
        Column("score", "Score", estimate=True, show_interval=True, best="high"),
        Column("time", "Time", best="low"),
    ]
    return Table("small", "Small", columns, [Section("Small", rows)], **settings)


def lines(table: Table, **how: bool) -> list[str]:
    inside = latex(table, **how).partition("\\midrule\n")[2].partition("    \\bottomrule")[0]
    return [line.strip() for line in inside.splitlines()]


def test_the_best_of_each_group_is_bold_by_what_is_printed_and_ties_are_all():
    rows = [
        {"name": "a", "group": 1, "score": 50.01, "time": 3.0},
        {"name": "b", "group": 1, "score": 50.04, "time": 2.0},
        {"name": "c", "group": 1, "score": None, "time": float("nan")},
        {"name": "d", "group": 2, "score": 40.0, "time": 1.0},
        {"name": "e", "group": 2, "score": 41.0, "time": None},
    ]
    assert lines(small(rows, best_within=("group",))) == [
        r"a & \textbf{50.0} & 3.0 \\",
        r"b & \textbf{50.0} & \textbf{2.0} \\",
        r"c & -- & -- \\",
        r"\addlinespace",
        r"d & 40.0 & 1.0 \\",  # alone with a time: no best of one
        r"e & \textbf{41.0} & -- \\",
    ]
    assert not [line for line in lines(small(rows)) if "textbf" in line]


def test_intervals_are_there_only_if_asked_for():
    score = less(Estimate(50.0, np.linspace(40, 60, 101)), 10.0)
    table = small([{"name": "[a]", "score": score}])
    assert lines(table) == [r"{}[a] & 40.0 & -- \\"]
    assert lines(table, intervals=True) == [r"{}[a] & 40.0 [30.5, 49.5] & -- \\"]


def every_table(study, results) -> list[Table]:
    made = [build(name, study, results) for name in TABLES]
    more = [f for t in made if t.name in COMPARED for f in forms(t, study, results).values()]
    return [*made, *more]


def test_no_sign_is_left_that_latex_could_not_print(study, results):
    for table in every_table(study, results):
        text = body(latex(table, intervals=True))
        assert text.isascii(), table.name
        assert text.count("{") == text.count("}")
        width = len(table.columns)
        for line in text.splitlines():
            if line.endswith("\\\\") and f"multicolumn{{{width}}}" not in line:
                assert line.replace("\\&", "").count("&") == width - 1, line


@pytest.mark.skipif(
    not shutil.which("pdflatex"), reason="typesets the table with pdflatex, which is not installed"
)
def test_pdflatex_prints_every_table(study, results, tmp_path):
    parts = "\n\\clearpage\n".join(latex(table, True) for table in every_table(study, results))
    document = (
        "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n%s\n\\end{document}"
    )
    (tmp_path / "all.tex").write_text(document % parts, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout[-2000:]


def test_the_papers_form_has_its_numbers_as_printed(study, results):
    rows = forms(build("table2", study, results), study, results)["paper"].sections[0].rows
    printed = paper.table("table2")
    assert [row["Avg"] for row in rows] == list(printed["Avg"])
    both = forms(build("table4", study, results), study, results)["paper"].sections[0].rows
    printed = paper.table("table4")
    assert [row["toy_bbh"] for row in both] == list(printed["BBH"])
    assert [row["Avg"] for row in both] == list(printed["Avg"])
    timed = forms(build("table5", study, results), study, results)["paper"].sections[0].rows
    assert [row["speedup"] for row in timed] == list(paper.table("table5")["speedup"])


def test_scores_are_subtracted_only_where_the_models_are_the_papers(study, results):
    def titles(made) -> list[str]:
        table = build("table4", made, results)
        return [section.title for section in forms(table, made, results)["difference"].sections]

    assert [title.partition(",")[0] for title in titles(study)] == [
        "Tokens per forward",
        "Difference from AR SFT (points)",
        "p of our difference from AR SFT (Holm over this part)",
    ]
    raw = study.model_dump(mode="json")
    for scale in raw["scales"].values():
        scale["base"] = f"Qwen/Qwen2.5-{scale['paper']}-Instruct"
    assert titles(parse_study(raw))[0] == "Scores (%), ours minus the paper’s"


def test_a_caption_leaves_the_number_to_the_document_and_long_text_is_broken(study, results):
    made = latex(build("table4", study, results))
    assert r"\caption{Several tokens per forward ($\tau$ $<$ 1)}" in made
    claims = latex(build("claims", study, results))
    assert r"\caption{The paper's claims}" in claims
    columns = claims.partition(r"\begin{tabular}{")[2].partition("\n")[0]
    assert columns.count(r"\linewidth}") == 4  # statement, verdict, measured, where
    assert sum(map(float, re.findall(r"p\{([\d.]+)\\linewidth", columns))) < 0.65
    row = next(line for line in claims.splitlines() if line.startswith("    1 & "))
    assert row.count(r"{\raggedright ") == 4
    assert "raggedright" not in made
