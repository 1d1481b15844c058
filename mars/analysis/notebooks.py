"""Notebooks: run one on a study's results, and write what it shows as an HTML page."""

from __future__ import annotations

import os
from pathlib import Path

from mars.analysis.render import write_text

FOLDER = Path(__file__).parents[2] / "workflow" / "notebooks"
"""Where the project's own are, in a checkout."""

TIMEOUT = 900
"""Seconds that a cell may take."""

NO_NETWORK = {"mathjax_url": "", "require_js_url": "", "jquery_url": ""}
"""Of what HTML pages of notebooks fetch, all of it: ours have no formulas and no widgets."""


class NotebookError(RuntimeError):
    """A notebook that cannot be run; the message is one line for the user."""

    own_traceback = ""
    """What the cell that failed printed."""


def execute(path: Path, results: Path, out: Path) -> Path:
    """Run a notebook in its own folder on the results of a study, and write ``out`` (HTML).

    The notebook itself is left as it is.

    Args:
        results: ``results/<study>``; the notebook finds it in ``MARS_STUDY``.

    Raises:
        NotebookError: there is no such notebook, or one of its cells fails.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from nbconvert import HTMLExporter

    try:
        book = nbformat.read(path, as_version=4)
    except (OSError, ValueError) as error:  # (a notebook that is no JSON is a ValueError)
        raise NotebookError(f"{path}: no notebook: {' '.join(str(error).split())}") from None
    root = str(Path(__file__).parents[2])  # the kernel runs the sources that this process runs
    beyond = [word for word in (root, os.environ.get("PYTHONPATH")) if word]
    environment = {
        **os.environ,
        "MARS_STUDY": str(results.resolve()),
        "PYTHONPATH": os.pathsep.join(beyond),
    }
    where = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(book, timeout=TIMEOUT, kernel_name="python3", resources=where)
    try:
        client.execute(env=environment)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        what = f"{error.ename}: {error.evalue}" if isinstance(error, CellExecutionError) else error
        line = " ".join(str(what).split())
        failed = NotebookError(f"{path}: a cell failed: {line}; open it in Jupyter to see which")
        failed.own_traceback = f"{error}\n"
        raise failed from None
    page, _ = HTMLExporter(**NO_NETWORK).from_notebook_node(book)
    return write_text(out, page)
