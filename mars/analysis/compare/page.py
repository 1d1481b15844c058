"""One page about a variant of your own: verdicts, frontier, differences, how it was run."""

from __future__ import annotations

import base64
import hashlib
import html
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from mars.analysis import durations, labels
from mars.analysis.compare import frontier
from mars.analysis.compare.numbers import (
    BETTER,
    INCONCLUSIVE,
    MISSING,
    NOT_WORSE,
    WORSE,
    Against,
    compare,
)
from mars.analysis.environment import environment
from mars.analysis.missing import again, configfile, missing
from mars.analysis.render import Column, Row, Section, Table, Told, write_text
from mars.analysis.report.content import size
from mars.analysis.report.page import Part, page, terms
from mars.analysis.results import as_rows, load_evaluation, training_costs
from mars.config import Study
from mars.config.compare import compared_runs

Run = tuple[int, str, str]
"""Seed, scale, variant."""

FOOTER = "<p>Written by <code>mars compare</code>.</p>"

DIFFERENCE = Column("difference", "Difference", 1, True, True, signed=True)


def write_comparison(
    study: Study, results: Path, variant: str, baselines: Sequence[str], margin: float, out: Path
) -> Path:
    """Write the comparison of a variant with its baselines to ``out``, one HTML file.

    Args:
        study: a study that has the variant and the baselines.
        results: ``results/<study>``.
        margin: points of the mean score; a loss that is surely below it counts as not worse.

    Raises:
        ConfigError: the study has no such variant or baseline.
    """
    runs = [
        (seed, *run) for seed in study.seeds for run in compared_runs(study, variant, baselines)
    ]
    found = compare(study, results, variant, baselines, margin)
    parts = [
        Part("verdict", "Verdict", _verdicts(study, found, variant, margin)),
        Part("missing", "What is missing", _missing(study, runs, results)),
        Part("frontier", "Frontier", _frontier(study, results, variant, baselines)),
        Part("differences", "Differences, benchmark by benchmark", _differences(study, found)),
        Part("run", "How it was run", _run(study, runs, results, variant)),
    ]
    title = f"{variant} against {', '.join(baselines)}"
    scales = ", ".join(study.scales_of(variant))
    lead = (
        f"Study “{study.study}”, {scales}, {_seeds(study)}. Everything on this page was measured "
        "by this run."
    )
    return write_text(out, page(title, lead, parts, FOOTER))


def _seeds(study: Study) -> str:
    names = ", ".join(map(str, study.seeds))
    return f"seed {names}" if len(study.seeds) == 1 else f"seeds {names}"


def _method(study: Study, margin: float) -> str:
    return (
        f"Intervals are 95 % bootstrap intervals {labels.covers(study)}; documents are resampled "
        "within each benchmark and paired: both models answered the same. p: McNemar’s exact test "
        "where scores are 0 or 1 and there is one seed, else the paired bootstrap’s, corrected "
        "over the page (Holm). "
        f"Better: the whole interval of the mean's difference is above 0. Not worse: it is above "
        f"−{margin:g} points. Worse: it is below 0 and reaches beyond the margin. Else the data "
        "do not tell: inconclusive."
    )


# --------------------------------------------------------------------------------- the verdicts

SAID = {
    BETTER: "better",
    NOT_WORSE: "not worse, within {margin:g} points",
    WORSE: "worse",
    INCONCLUSIVE: "inconclusive",
    MISSING: "results are missing",
}


def verdict_table(study: Study, found: Sequence[Against], margin: float) -> Table:
    """One row for each baseline and pair of thresholds."""
    rows: list[Row] = [
        {
            "scale": one.scale,
            "baseline": one.baseline,
            "tau": one.tau,
            "tau_theirs": one.tau_theirs,
            "verdict": SAID[one.verdict].format(margin=margin),
            "ours": one.mean.ours,
            "theirs": one.mean.theirs,
            "difference": one.mean.difference,
            "pace": one.mean.pace,
            "pace_theirs": one.mean.pace_theirs,
            "faster": one.mean.faster,
        }
        for one in found
    ]
    columns = [
        Column("scale", "Scale", text=True),
        Column("baseline", "Against", text=True),
        Column("tau", "τ", text=True),
        Column("tau_theirs", "its τ", text=True),
        Column("verdict", "Verdict", text=True),
        Column("ours", "Mean score", 1, True),
        Column("theirs", "its mean", 1, True),
        DIFFERENCE,
        Column("pace", "Tokens per forward", 2, True),
        Column("pace_theirs", "its tokens per forward", 2, True),
        Column("faster", "Difference in tokens per forward", 2, True, True, signed=True),
    ]
    sections, notes = [Section("Verdict", rows)], [_method(study, margin)]
    return Table("verdict", "Verdict", columns, sections, notes, len(study.seeds))


def _verdicts(study: Study, found: Sequence[Against], variant: str, margin: float) -> str:
    told = []
    for one in found:
        said = SAID[one.verdict].format(margin=margin)
        at = f"τ = {one.tau:g}"
        if one.tau != one.tau_theirs:
            at += f", the baseline at τ = {one.tau_theirs:g}"
        told.append(
            f"<li><strong>{html.escape(said)}</strong>: {html.escape(variant)} against "
            f"{html.escape(one.baseline)} ({html.escape(one.scale)}, {at})</li>"
        )
    if not told:
        return (
            f"<p>{html.escape(variant)} and its baselines were read at no common threshold; name "
            "thresholds: in its settings that the study's are among.</p>"
        )
    table = verdict_table(study, found, margin)
    return f"<ul>{''.join(told)}</ul>{table.html()}"


# ------------------------------------------------------------------------------ the differences


def difference_table(study: Study, found: Sequence[Against]) -> Table:
    """Every benchmark, a section for each baseline and pair of thresholds."""
    titles = labels.columns(study)
    sections = []
    for one in found:
        lines = [(titles[name], name, paired) for name, paired in one.benchmarks.items()]
        lines.append(("Mean", "", one.mean))
        rows: list[Row] = [
            {
                "model": title if title == name or not name else f"{title} ({name})",
                "ours": paired.ours,
                "theirs": paired.theirs,
                "difference": paired.difference,
                "p": paired.p,
                "probability": True,
                "pace": paired.pace,
                "pace_theirs": paired.pace_theirs,
            }
            for title, name, paired in lines
        ]
        title = f"{one.scale}: τ = {one.tau:g} against {one.baseline} at τ = {one.tau_theirs:g}"
        sections.append(Section(title, rows))
    columns = [
        Column("model", "Benchmark", text=True),
        Column("ours", "Score", 1, True, True),
        Column("theirs", "its score", 1, True, True),
        DIFFERENCE,
        Column("p", "p (Holm)"),
        Column("pace", "Tokens per forward", 2, True),
        Column("pace_theirs", "its tokens per forward", 2, True),
    ]
    return Table("differences", "Differences", columns, sections, [], len(study.seeds))


def _differences(study: Study, found: Sequence[Against]) -> str:
    return difference_table(study, found).html() if found else ""


def _missing(study: Study, runs: Sequence[Run], results: Path) -> str:
    """What the compared runs lack, and the one command that makes it."""
    compared = {("evaluation", scale, variant) for _, scale, variant in runs}
    gaps = [gap for gap in missing(study, results) if gap.source in compared]
    if not gaps:
        return ""
    items = "".join(f"<li>{html.escape(gap.what)}</li>" for gap in gaps)
    targets = tuple(dict.fromkeys(target for gap in gaps for target in gap.targets))
    command = (
        f"snakemake --cores 8 compare{again(targets)}{configfile(study, results)} "
        "--config variant=FILE"
    )
    return (
        f'<div class="missing"><p>These results were not there:</p><ul>{items}</ul>'
        f"<p><code>{html.escape(command)}</code> makes them, FILE being that of your variant.</p>"
        "</div>"
    )


# --------------------------------------------------------------------------------- the frontier


def _frontier(study: Study, results: Path, variant: str, baselines: Sequence[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        stem = Path(folder, "frontier")
        image = frontier.draw(study, results, variant, baselines, stem)[0].read_bytes()
    text = base64.b64encode(image).decode("ascii")
    caption = (
        f"Score against tokens per forward as τ falls from left to right: {variant} (thick, its "
        "thresholds named where there is room) over its baselines. Vertical bars: 95 % intervals "
        f"{labels.covers(study)}."
    )
    return (
        '<figure><div class="plot" tabindex="0" role="region" aria-label="Frontier">'
        f'<img alt="{html.escape(caption)}"{size(image)} src="data:image/png;base64,{text}"></div>'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


# ------------------------------------------------------------------------------------- the run


def _run(study: Study, runs: Sequence[Run], results: Path, variant: str) -> str:
    made = study.variants[variant]
    shown = {k: v for k, v in made.model_dump(mode="json").items() if v not in (None, [])}
    parts = ["<h3>Settings of the variant</h3>", f"<pre>{html.escape(_yaml(shown))}</pre>"]
    for path in map(Path, study.plugins):
        parts.append(f"<h3>Plug-in {html.escape(str(path))}</h3>")
        if path.is_file():
            text = path.read_bytes()
            digest = hashlib.sha256(text).hexdigest()
            code = html.escape(text.decode("utf-8"))
            parts.append(
                f"<details><summary>Its source as it is now, SHA-256 {digest[:16]}…</summary>"
                f"<pre>{code}</pre></details>"
            )
    parts += ["<h3>What it took</h3>", cost_table(study, runs, results).html()]
    found = {k.replace("_", " "): v for k, v in environment().items() if k != "libraries"}
    parts += ["<h3>Where this page was written</h3>", terms(found)]
    parts.append(
        "<details><summary>What all of them share: data, training, evaluation</summary>"
        f"<pre>{html.escape(_shared(study))}</pre></details>"
    )
    return "\n".join(parts)


def cost_table(study: Study, runs: Sequence[Run], results: Path) -> Table:
    """Training and evaluation of every run that is compared."""
    costs = {
        (r["seed"], r["scale"], r["variant"]): r for r in as_rows(training_costs(study, results))
    }
    decoded = {
        key: as_rows(rows)
        for key, rows in load_evaluation(study, results).groupby(["seed", "scale", "variant"])
    }
    rows: list[Row] = []
    for run in runs:
        seed, scale, variant = run
        row: dict[str, Any] = {"model": variant, "scale": scale, "seed": str(seed)}
        if cost := costs.get(run):
            row["examples"] = int(cost["examples"])
            row["trained"] = _duration(float(cost["seconds"]))
        if settings := decoded.get(run):
            row["documents"] = sum(int(one["documents"]) for one in settings)
            row["decoded"] = _duration(sum(float(one["seconds"]) for one in settings))
            row["checkpoint"] = str(settings[0]["checkpoint"])[:12]
        rows.append(row)
    columns = [
        Column("model", "Variant", text=True),
        Column("scale", "Scale", text=True),
        Column("seed", "Seed", text=True),
        Column("examples", "Examples trained on", text=True),
        Column("trained", "Training", text=True),
        Column("documents", "Documents decoded", text=True),
        Column("decoded", "Decoding", text=True),
        Column("checkpoint", "Checkpoint", text=True),
    ]
    return Table("cost", "What it took", columns, [Section("What it took", rows)])


def _duration(seconds: float) -> Told:
    return Told(seconds, durations.text(seconds))


def _shared(study: Study) -> str:
    return _yaml(
        {name: getattr(study, name).model_dump(mode="json") for name in ("data", "training")}
        | {"evaluation": study.evaluation.model_dump(mode="json")}
    )


def _yaml(values: dict[str, Any]) -> str:
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
