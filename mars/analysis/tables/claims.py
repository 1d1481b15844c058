"""The paper's claims with this study's verdicts, and the numbers that each rests on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mars.analysis import paper
from mars.analysis.claims import Finding, Judged, findings
from mars.analysis.claims.verdict import OPEN, REFUTED, REPRODUCED, UNMEASURED, VERDICTS, Verdict
from mars.analysis.render import Column, Row, Section, Table
from mars.analysis.statistics import Estimate
from mars.config import Study

TITLE = "The paper's claims"
CONDITION: dict[Verdict, str] = {
    REPRODUCED: "holds",
    REFUTED: "fails",
    OPEN: "open",
    UNMEASURED: UNMEASURED,
}
"""What the verdict of one condition is called."""


def claims(study: Study, results: Path) -> Table:
    """A row per claim, and then a row per condition of each."""
    found = findings(study, results)
    columns = [
        Column("id", "Claim", text=True),
        Column("sentence", "Statement", text=True, width=0.24),
        Column("verdict", "Verdict", text=True, width=0.12),
        Column("what", "Measured", text=True, width=0.17),
        Column("needed", "Needed", text=True),
        Column("ours", "Ours", estimate=True, show_interval=True),
        Column("paper", "Paper"),
        Column("where", "In the paper", text=True, width=0.1),
    ]
    sections = [
        Section("Verdicts", [_verdict(finding) for finding in found]),
        Section("What each verdict rests on", [r for finding in found for r in _parts(finding)]),
    ]
    return Table("claims", TITLE, columns, sections, [count(found), *_notes(), *_gaps(found)])


def count(found: Sequence[Finding]) -> str:
    """How many claims have each verdict, in a sentence."""
    numbers = {v: sum(f.verdict == v for f in found) for v in VERDICTS}
    told = ", ".join(f"{n} {verdict}" for verdict, n in numbers.items() if n)
    return f"Of {len(found)} claims: {told}."


def _verdict(finding: Finding) -> Row:
    claim, part = finding.claim, finding.decisive
    row = {"id": claim.id, "sentence": claim.sentence, "where": claim.where}
    lacks = "Not all of it in this study." if finding.parts else "Not part of this study."
    numbers = _numbers(part) if part else {"what": f"{lacks} Needs {claim.needs}."}
    return {**row, **numbers, "verdict": finding.verdict}


def _parts(finding: Finding) -> list[Row]:
    return [
        {
            "id": finding.claim.id,
            **_numbers(part),
            "verdict": CONDITION[part.verdict] if part.verdict else "shown only",
        }
        for part in finding.parts
    ]


def _numbers(part: Judged) -> dict[str, Any]:
    condition = part.condition
    return {
        "what": condition.what,
        "needed": str(condition.bound) if condition.bound else None,
        "ours": condition.number,
        "paper": _printed(part.paper, condition.decimals),
        "decimals": condition.decimals,
    }


def _printed(number: Estimate | None, decimals: int) -> float | str | None:
    """The paper's number, or the range that it gives."""
    if number is None or number.interval is None:
        return None
    low, high = number.interval
    return number.value if low == high else f"{low:.{decimals}f}–{high:.{decimals}f}"


def _notes() -> list[str]:
    return [
        "A claim is reproduced if the 95 % interval of each of its numbers lies within what is "
        "needed, not reproduced if one of them lies beyond it (at a level corrected for how many "
        "there are), and else inconclusive. Shown first is a number that the verdict rests on.",
        "Scores are in points. Intervals of scores and of tokens per forward come from the "
        "bootstrap over documents (and seeds, where there are several), those of times from the "
        "spread over repeats, or over seeds where there are several.",
        f"The paper's numbers ({paper.CREDIT}) are as printed. Its speedups are over AR with a KV "
        "cache, ours over the fastest cached AR method at the same batch size.",
    ]


def _gaps(found: Sequence[Finding]) -> list[str]:
    told = []
    for finding in found:
        told += [f"Claim {finding.claim.id} lacks {g.what}: {g.command}" for g in finding.gaps]
    return told
