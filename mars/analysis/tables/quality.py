"""Tables 2, 3 and 4: scores by benchmark, ours beside the paper's, and both against AR SFT."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mars.analysis import labels, paper
from mars.analysis.render import Column, Row, Section, Table
from mars.analysis.results import of_every_seed, training_costs
from mars.analysis.statistics import Estimate, average
from mars.analysis.summary import Side, Summary, summarise
from mars.config import Study

RELATIONS = (
    "Rows marked 'paper' are the paper's numbers (" + paper.CREDIT + "), measured on other models "
    "and benchmarks: absolute scores do not compare with ours. Differences from AR SFT do."
)
SAME_MODELS = "Rows marked 'paper' are the paper's numbers (" + paper.CREDIT + ")."
PAIRED = "Differences are paired by document; ours carry the interval of the difference."


def notes(study: Study, *more: str) -> list[str]:
    """What every table with the paper's scores beside ours has to say."""
    same = all(labels.comparable(study, scale) for scale in study.scales)
    intervals = (
        f"Avg is the plain mean of the benchmarks, with a 95 % bootstrap interval "
        f"{labels.covers(study)}; documents are resampled within each benchmark and sub-task. The "
        "CSV has the interval of every cell."
    )
    found = [SAME_MODELS if same else RELATIONS, PAIRED, intervals, *more]
    if len(study.seeds) > 1:
        found.append("'seeds ±' is the standard deviation over seeds.")
    if set(labels.columns(study).values()) != set(paper.COLUMNS):
        found.append(
            "This study has not the paper's six benchmarks: the paper's Avg is taken over the "
            "columns shown."
        )
    return found


def score_columns(study: Study, decimals: int = 1) -> list[Column]:
    """One column a benchmark in the paper's order, then Avg."""
    names = labels.columns(study)
    cells = [Column(b, title, decimals, estimate=True, best="high") for b, title in names.items()]
    mean = Column("Avg", "Avg", decimals, estimate=True, show_interval=True, best="high")
    return [*cells, mean]


def ours(
    study: Study, measure: Callable[[str], Estimate | None], head: dict[str, Any]
) -> dict[str, Any]:
    """A row of our own: ``measure`` of each benchmark, and their mean when all are there."""
    cells = {benchmark: measure(benchmark) for benchmark in labels.columns(study)}
    return {**head, "source": "ours", **cells, "Avg": average(cells.values())}


def theirs(
    study: Study, found: dict[str, float] | None, head: dict[str, Any]
) -> dict[str, Any] | None:
    """The paper's row under ours, or None where the paper has none."""
    row = labels.paper_row(study, found)
    if row is None:
        return None
    cells = {b: row.get(title) for b, title in labels.columns(study).items()}
    return {**head, "source": "paper", **cells, "Avg": row.get("Avg")}


def minus(
    study: Study, a: dict[str, float] | None, b: dict[str, float] | None
) -> dict[str, float] | None:
    """The difference of two of the paper's rows, by column."""
    if a is None or b is None:
        return None
    return {c: round(a[c] - b[c], 6) for c in a}


class _Scores:
    """Builds pairs of rows (ours, the paper's) of scores and of differences from AR SFT."""

    def __init__(self, study: Study, results: Path, source: str) -> None:
        self.study = study
        self.summary: Summary = summarise(study, results)
        self.source = source
        self.scores: list[Row] = []
        self.differences: list[Row] = []
        self._shown: set[tuple[Any, ...]] = set()

    def add(self, scale: str, name: str, head: dict[str, Any], extra: dict[str, Any]) -> None:
        study, summary = self.study, self.summary
        reference = labels.reference(study, scale)

        def score(benchmark: str) -> Estimate | None:
            return summary.score(scale, name, benchmark, summary.decoding(name, benchmark))

        head = {**head, "scale": scale, "group": scale}
        self.scores.append(ours(study, score, head))
        if reference and name != reference:
            self.differences.append(_change(summary, (name, 1.0), reference, head))

        at = study.scales[scale].paper
        variant = study.variants[name]
        model = labels.paper_model(variant)
        key = (scale, model, labels.drafted(variant))
        if model is None or key in self._shown:
            return
        self._shown.add(key)
        found = paper.scores(self.source, at, model, labels.drafted(variant))
        base = paper.scores(self.source, at, labels.AR_SFT, None)
        label = {**head, **extra, "scale": at, "model": model}
        self.scores += [row for row in [theirs(study, found, label)] if row]
        if model != labels.AR_SFT:
            row = theirs(study, minus(study, found, base), label)
            self.differences += [row] if row else []

    def sections(self) -> list[Section]:
        return [
            Section("Scores (%)", self.scores),
            Section("Difference from AR SFT (points)", self.differences, signed=True),
        ]


def table_block_size(study: Study, scale: str) -> int | None:
    """The B of Table 2: 4 as in the paper, or the smallest of the study."""
    sizes = {labels.drafted(study.variants[n]) for n in labels.ordered(study, scale)} - {None}
    return 4 if 4 in sizes else min((s for s in sizes if s), default=None)


HEAD = [
    Column("scale", "Scale", text=True),
    Column("model", "Model", text=True),
    Column("block_size", "B", text=True),
]
SOURCE = Column("source", "Source", text=True)
RIVALS = ("group", "source")
"""Rows among which the best is sought: a scale's, ours and the paper's apart."""


def budgets(study: Study) -> str:
    """How often training sees its examples: the paper's, and the study's own."""
    said = (
        "The paper's models see the data of each stage for 5 epochs, its compute-matched control "
        "for 10."
    )
    if study.checkpoints == "released":
        return said
    made, epochs = study.variants.values(), study.training.epochs
    distinct = len({stage for variant in made for stage in variant.stages}) > 1
    said += (
        f" Here {'each stage has distinct' if distinct else 'both stages have the same'} examples"
    )
    said += ", seen once" if epochs == 1 else f", seen {epochs} times"
    control = max((v.stages for v in made if v.objective == "ar_sft"), key=len, default=[])
    if len(set(control)) > 1:
        said += ", and the control is one schedule from the base model over the examples of both"
    elif len(control) > 1:
        said += f", and the control sees them {epochs * len(control)} times"
    return said + "."


def one_token(study: Study, results: Path) -> Table:
    """Table 2: every method at one token per forward."""
    rows = _Scores(study, results, "table2")
    for scale in study.scales:
        size = table_block_size(study, scale)
        for name in labels.ordered(study, scale):
            variant = study.variants[name]
            if labels.drafted(variant) not in (None, size):
                continue
            mode = "AR" if labels.drafted(variant) is None else "one-token"
            head = {
                "model": labels.label(name, variant),
                "block_size": labels.drafted(variant),
                "mode": mode,
            }
            rows.add(scale, name, head, {})
    columns = [*HEAD, Column("mode", "Mode", text=True), SOURCE, *score_columns(study)]
    more = [budgets(study)]
    if any(v.objective == "mars" and v.alignment == "stream" for v in study.variants.values()):
        more.append(
            "'alignment as released' shifts inside the masked stream, as the authors' code does; "
            "the other MARS rows predict the first token of a block as decoding does."
        )
    title = "Table 2: one token per forward (τ = 1)"
    parts = rows.sections()
    return Table("table2", title, columns, parts, notes(study, *more), len(study.seeds), RIVALS)


def block_size(study: Study, results: Path) -> Table:
    """Table 3: block size with and without the SFT loss."""
    rows = _Scores(study, results, "table3")
    costs = of_every_seed(study, training_costs(study, results), ["scale", "variant"])
    for scale in study.scales:
        for name in labels.ordered(study, scale):
            variant = study.variants[name]
            model = labels.paper_model(variant)
            if variant.objective != "mars" and model != labels.AR_SFT:
                continue
            counted = None
            if "ar_signal_fraction" in costs:
                mine = costs[(costs["scale"] == scale) & (costs["variant"] == name)]
                counted = float(mine["ar_signal_fraction"].mean()) if len(mine) else None
            printed = paper.signal_fraction(str(model), labels.drafted(variant))
            head = {
                "model": labels.label(name, variant),
                "block_size": labels.drafted(variant),
                "fraction": counted,
            }
            rows.add(scale, name, head, {"fraction": printed})
    columns = [*HEAD, Column("fraction", "AR signal", decimals=3), SOURCE, *score_columns(study)]
    signal = (
        "AR signal is the share of loss terms that are plain next-token prediction: ours counted "
        "in the batches trained on, the paper's from its formula."
    )
    return Table(
        "table3",
        "Table 3: block size, with and without the SFT loss (τ = 1)",
        columns,
        rows.sections(),
        notes(study, signal),
        len(study.seeds),
        RIVALS,
    )


def multi_token(study: Study, results: Path) -> Table:
    """Table 4: several tokens a forward: accuracy, tokens per forward, change from AR SFT."""
    summary = summarise(study, results)
    accuracy: list[Row] = []
    forwards: list[Row] = []
    change: list[Row] = []
    shown: set[tuple[str, int, float]] = set()
    for scale in study.scales:
        at = study.scales[scale].paper
        reference = labels.reference(study, scale)
        base = paper.scores("table2", at, labels.AR_SFT, None)
        names = [n for n in labels.ordered(study, scale) if study.variants[n].objective == "mars"]
        # the paper's rows first: with the SFT loss, then the ablations
        names.sort(key=lambda n: labels.paper_model(study.variants[n]) != "MARS")
        for tau in sorted(set(study.evaluation.thresholds) - {1.0}, reverse=True):
            for name in names:
                variant = study.variants[name]
                size = variant.block_size
                head = {
                    "scale": scale,
                    "group": scale,
                    "model": labels.label(name, variant),
                    "block_size": size,
                    "tau": tau,
                }
                measured = _multi(summary, scale, name, tau)
                accuracy.append(ours(study, measured[0], head))
                forwards.append(ours(study, measured[1], head))
                if reference:
                    change.append(_change(summary, (name, tau), reference, head))
                key = (scale, size, tau)
                if labels.paper_model(variant) != "MARS" or key in shown:
                    continue
                shown.add(key)
                label = {**head, "scale": at, "model": "MARS"}
                scores = paper.multi_token(at, size, tau, "accuracy")
                counts = paper.multi_token(at, size, tau, "tokens_per_forward")
                for rows, found in (
                    (accuracy, scores),
                    (forwards, counts),
                    (change, minus(study, scores, base)),
                ):
                    row = theirs(study, found, label)
                    rows += [row] if row else []
    columns = [*HEAD, Column("tau", "τ", text=True), SOURCE, *score_columns(study)]
    two: list[Row] = [{**row, "decimals": 2} for row in forwards]
    sections = [
        Section("Scores (%)", accuracy),
        Section("Tokens per forward", two),
        Section("Difference from AR SFT (points)", change, signed=True),
    ]
    counting = (
        "Tokens per forward is Σ kept tokens ÷ Σ forwards of a benchmark, prefill included; "
        "its Avg is the plain mean of the benchmarks."
    )
    return Table(
        "table4",
        "Table 4: several tokens per forward (τ < 1)",
        columns,
        sections,
        notes(study, counting),
        len(study.seeds),
        RIVALS,
    )


def _change(summary: Summary, who: tuple[str, float], reference: str, head: dict[str, Any]) -> Row:
    """Our row of differences from AR SFT of a variant at a τ; ``p`` has those of its cells."""
    name, tau = who
    scale = head["scale"]

    def pair(benchmark: str) -> tuple[Side, Side]:
        mine = (name, summary.decoding(name, benchmark, tau))
        return mine, (reference, summary.decoding(reference, benchmark))

    row = ours(summary.study, lambda b: summary.difference(scale, b, *pair(b)), head)
    tests = {b: summary.p_value(scale, b, *pair(b)) for b in labels.columns(summary.study)}
    p = {benchmark: found and found[0] for benchmark, found in tests.items()}
    return {**row, "p": {**p, "Avg": row["Avg"] and row["Avg"].p}}


Measure = Callable[[str], Estimate | None]


def _multi(summary: Summary, scale: str, name: str, tau: float) -> tuple[Measure, Measure]:
    """Score, and tokens per forward, of a benchmark."""

    def score(benchmark: str) -> Estimate | None:
        return summary.score(scale, name, benchmark, summary.decoding(name, benchmark, tau))

    def count(benchmark: str) -> Estimate | None:
        at = summary.decoding(name, benchmark, tau)
        return summary.tokens_per_forward(scale, name, benchmark, at)

    return score, count
