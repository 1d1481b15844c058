"""Made-up results shared by the tests of this folder; nothing writes into them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mars.analysis.figures import FIGURES, draw
from mars.config import Study, load_study

from . import synthetic

FIXED = Path(__file__).parent / "fixed"


@pytest.fixture(scope="session")
def study() -> Study:
    return synthetic.embedded()


@pytest.fixture(scope="session")
def results(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished, made-up embedded study."""
    return synthetic.make_results(tmp_path_factory.mktemp("results") / study.study, study)


@pytest.fixture(scope="session")
def figures(study: Study, results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every figure of it, drawn once."""
    folder = tmp_path_factory.mktemp("figures")
    for name in FIGURES:
        draw(name, study, results, folder / name)
    return folder


@pytest.fixture
def partial(results: Path, tmp_path: Path) -> Path:
    """A copy of it, to take things away from."""
    return Path(shutil.copytree(results, tmp_path / "embedded"))


@pytest.fixture(scope="session")
def fixed() -> tuple[Study, Path]:
    """The small results set whose tables are written out by hand."""
    return load_study(FIXED / "study.yaml"), FIXED / "measured"
