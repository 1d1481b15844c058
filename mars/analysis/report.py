"""The report: one self-contained, accessible HTML file with every table and figure of a study."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Any

from mars.analysis import durations, labels, paper
from mars.analysis.figures import FIGURES
from mars.analysis.parts import applies
from mars.analysis.render import write_text
from mars.analysis.results import missing, read_json
from mars.analysis.tables import TABLES, build
from mars.config import Study, dump_study

CSS = Path(__file__).with_name("report.css")
PAPER_URL = f"https://arxiv.org/abs/{paper.facts()['source']['arxiv']}"


def write_report(study: Study, results: Path, figures: Path, out: Path) -> Path:
    """Write the report of a study to ``out``, with images, styles and numbers inside it.

    Args:
        results: ``results/<study>``.
        figures: where the figures were drawn, ``<name>.png`` each; absent ones are named.
        out: the HTML file.
    """
    parts = [
        _section("about", "What this is", _about(study)),
        _section("missing", "What is missing", _missing(study, results)),
        _section("tables", "Tables", _tables(study, results)),
        _section("figures", "Figures", _figures(study, figures)),
        _section("run", "This run", _run(study, results)),
        _section("configuration", "Configuration", _configuration(study)),
    ]
    body = "\n".join(part for part in parts if part)
    title = f"MARS, reproduced: study “{study.study}”"
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<style>
{CSS.read_text(encoding="utf-8")}</style>
</head>
<body>
<header>
<h1>{html.escape(title)}</h1>
<p class="lead">{html.escape(_lead(study))}</p>
{_navigation()}
</header>
<main>
{body}
</main>
<footer><p>The paper: <a href="{PAPER_URL}">{html.escape(paper.CREDIT)}</a>. Everything labelled
‘paper’ is its authors’ work; everything else on this page was measured by this run.</p></footer>
</body>
</html>
"""
    return write_text(out, page)


def _section(anchor: str, title: str, body: str) -> str:
    if not body:
        return ""
    return (
        f'<section aria-labelledby="{anchor}">\n<h2 id="{anchor}">{html.escape(title)}</h2>\n'
        f"{body}\n</section>"
    )


def _navigation() -> str:
    names = {"about": "What this is", "tables": "Tables", "figures": "Figures", "run": "This run"}
    names["configuration"] = "Configuration"
    items = "".join(f'<li><a href="#{a}">{html.escape(t)}</a></li>' for a, t in names.items())
    return f'<nav aria-label="Sections"><ul>{items}</ul></nav>'


def _lead(study: Study) -> str:
    scales = ", ".join(study.scales)
    runs = sum(1 for _, variant in study.runs() if variant != "base")
    seeds = len(study.seeds)
    return (
        f"{runs} training runs at scale {scales}, {len(study.evaluation.benchmarks)} benchmarks, "
        f"{seeds} {'seed' if seeds == 1 else 'seeds'} ({', '.join(map(str, study.seeds))})."
    )


def _about(study: Study) -> str:
    points = [
        "Rows and marks labelled ‘paper’ are the paper’s numbers, as printed. All others were "
        "measured by this run.",
        "Intervals are 95 % bootstrap intervals and cover the sampling of documents only: "
        + (
            "with one seed, nothing here says what training again would change."
            if len(study.seeds) == 1
            else "the spread over seeds is given beside them."
        ),
        "Avg is the plain mean of the benchmarks and is shown only where all of them are there. "
        "A missing result shows as –, never as 0.",
    ]
    if not all(labels.comparable(study, scale) for scale in study.scales):
        stands = [f"{s} for {v.paper}" for s, v in study.scales.items() if v.paper]
        text = "These are not the paper’s models"
        text += f" ({', '.join(stands)})" if stands else ""
        text += (
            ", nor its benchmarks, so absolute scores do not compare with the paper’s; "
            "differences between methods, ratios and shapes do."
        )
        points.insert(1, text)
    if study.data.source == "embedded":
        points.append(
            "The study keeps the paper’s relations (an AR SFT stage first, the same examples in "
            "the same order for every variant, a compute-matched control), not its epoch count: "
            "each stage sees distinct examples once instead of 5 epochs of the same, because a "
            "threshold on confidence needs confidence that means something."
        )
    if applies(study, "replay") or applies(study, "batching"):
        points.append(
            "‘Replayed acceptance’ means that how many tokens each step accepts was drawn, and "
            "forced on every method alike, so that their speed is compared at equal acceptance. "
            "Nothing under that label says what a model accepts, or how good its answers are."
        )
    controls = [
        name for name, v in study.variants.items() if labels.paper_model(v) == labels.CONTROL
    ]
    if controls:
        points.append(
            f"{controls[0]} is the compute-matched control: one schedule from the base model over "
            "the examples of both stages. Compute is matched in examples, as in the paper; the "
            "training overhead table shows what MARS costs beside that."
        )
    return "<ul>" + "".join(f"<li>{html.escape(p)}</li>" for p in points) + "</ul>"


def _missing(study: Study, results: Path) -> str:
    gaps = missing(study, results)
    if not gaps:
        return ""
    items = "".join(
        f"<li>{html.escape(gap.what)}: <code>{html.escape(gap.command)}</code></li>" for gap in gaps
    )
    return (
        '<div class="missing"><p>These results were not there when the report was made. '
        f"Each comes with the command that makes it.</p><ul>{items}</ul></div>"
    )


def _tables(study: Study, results: Path) -> str:
    parts = []
    for name in filter(lambda n: applies(study, n), TABLES):
        table = build(name, study, results)
        parts.append(f'<h3 id="table-{name}">{html.escape(table.title)}</h3>')
        if table.empty:
            parts.append("<p>No results for this table yet.</p>")
        parts.append(table.html())
    return "\n".join(parts)


def _figures(study: Study, figures: Path) -> str:
    parts = []
    for name, drawing in FIGURES.items():
        if not applies(study, name):
            continue
        title = html.escape(drawing.TITLE)
        parts.append(f'<h3 id="figure-{name}">{title}</h3>')
        path = figures / f"{name}.png"
        if not path.exists():
            parts.append(f"<p>This figure was not drawn: {html.escape(path.name)} is missing.</p>")
            continue
        image = base64.b64encode(path.read_bytes()).decode("ascii")
        parts.append(
            f'<figure><img alt="{html.escape(drawing.ALT)}" '
            f'src="data:image/png;base64,{image}">'
            f"<figcaption>{html.escape(drawing.caption(study))}</figcaption></figure>"
        )
    return "\n".join(parts)


def _run(study: Study, results: Path) -> str:
    parts = ["<h3>Duration</h3>"]
    spent = durations.durations(study, results)
    if spent is None:
        parts.append("<p>No durations were recorded.</p>")
    else:
        rows: dict[str, Any] = {s: durations.text(t) for s, t in spent.stages.items()}
        rows["sum of all jobs"] = durations.text(spent.total)
        if spent.wall_clock is not None:
            rows["time with a job running"] = durations.text(spent.wall_clock)
        if spent.peak_memory_mb is not None:
            rows["largest job"] = f"{spent.peak_memory_mb:.0f} MB"
        parts += [_terms(rows), f'<p class="notes">From {html.escape(spent.source)}.</p>']
    parts.append("<h3>Environment</h3>")
    found = read_json(results / "environment.json")
    if found is None:
        parts.append("<p>environment.json is missing.</p>")
    else:
        flat = {k.replace("_", " "): v for k, v in found.items() if k != "libraries"}
        parts.append(_terms(flat))
        if isinstance(libraries := found.get("libraries"), dict):
            parts.append(
                f"<details><summary>Library versions</summary>{_terms(libraries)}</details>"
            )
    for seed in study.seeds:
        grid = read_json(results / f"seed{seed}" / "throughput.environment.json")
        if grid is not None:
            flat = {k.replace("_", " "): v for k, v in grid.items() if not isinstance(v, dict)}
            parts.append(f"<h3>Wall-clock grid, seed {seed}</h3>{_terms(flat)}")
        cost = read_json(results / f"seed{seed}" / "training_cost.environment.json")
        if cost is not None and study.training_cost:
            flat = {k.replace("_", " "): v for k, v in cost.items() if not isinstance(v, dict)}
            parts.append(f"<h3>Training cost, seed {seed}</h3>{_terms(flat)}")
    return "\n".join(parts)


def _terms(rows: dict[str, Any]) -> str:
    def shown(value: Any) -> str:
        if value is None or value == []:
            return "–"
        if isinstance(value, bool):
            return "yes" if value else "no"
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    items = "".join(
        f"<dt>{html.escape(k)}</dt><dd>{html.escape(shown(v))}</dd>" for k, v in rows.items()
    )
    return f"<dl>{items}</dl>"


def _configuration(study: Study) -> str:
    return (
        "<details><summary>The resolved configuration, every default written out</summary>"
        f"<pre>{html.escape(dump_study(study))}</pre></details>"
    )
