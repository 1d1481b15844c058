"""The workflow's jobs that have no model, for the plan of a study."""

from __future__ import annotations

from mars.analysis.figures import FIGURES
from mars.analysis.notebooks import FOLDER
from mars.analysis.parts import COMPARED, applies
from mars.analysis.tables import TABLES
from mars.config import Study


def presentation(study: Study) -> dict[str, list[str]]:
    """Rule → an output of each of its jobs, as in workflow/rules/analysis.smk."""
    results, figures = f"results/{study.study}", f"figures/{study.study}"
    tables = [name for name in TABLES if applies(study, name)]
    found = {
        "chance": [f"{results}/chance.csv"],
        "environment": [f"{results}/environment.json"],
        "tidy": [f"{results}/records.parquet"],
        "table": [f"{results}/tables/{name}.csv" for name in tables if name not in COMPARED],
        "compared_table": [f"{results}/tables/{name}.csv" for name in tables if name in COMPARED],
    }
    if study.throughput:
        found["tidy_throughput"] = [f"{results}/throughput.parquet"]
    for name in FIGURES:
        if applies(study, name):
            found[f"figure_{name}"] = [f"{figures}/{name}.png"]
    reports = f"reports/{study.study}"
    notebooks = [f"{reports}/notebooks/{path.stem}.html" for path in sorted(FOLDER.glob("*.ipynb"))]
    return found | {"report": [f"{reports}/index.html"], "notebook": notebooks}
