"""The study configuration: the one source of truth for every setting and its default.

A study is a YAML file under ``config/`` (``config/embedded.yaml`` is the default). It is checked
here, and the JSON schema that Snakemake validates against is generated from these classes
(``mars config --schema``). Errors name the file, the key and the remedy.
"""

from __future__ import annotations

from mars.config.compare import Comparison, compared_runs, load_comparison, with_variant
from mars.config.files import dump_study, json_schema, load_study, parse_study
from mars.config.references import BENCHMARK_FOLDERS, hub_reference, located, work_offline
from mars.config.sections import (
    ALIGNMENTS,
    DECODERS,
    ROUNDING,
    Acceptance,
    Benchmark,
    CacheName,
    Data,
    DecoderName,
    Decoding,
    Evaluation,
    Jacobi,
    Rule,
    Scale,
    Section,
    Training,
    Variant,
)
from mars.config.speed import Continuous, Drawn, Replay, Throughput, Trace, TrainingCost
from mars.config.study import ConfigError, Study

__all__ = [
    "ALIGNMENTS",
    "BENCHMARK_FOLDERS",
    "DECODERS",
    "ROUNDING",
    "Acceptance",
    "Benchmark",
    "CacheName",
    "Comparison",
    "ConfigError",
    "Continuous",
    "Data",
    "DecoderName",
    "Decoding",
    "Drawn",
    "Evaluation",
    "Jacobi",
    "Replay",
    "Rule",
    "Scale",
    "Section",
    "Study",
    "Throughput",
    "Trace",
    "Training",
    "TrainingCost",
    "Variant",
    "compared_runs",
    "dump_study",
    "hub_reference",
    "json_schema",
    "load_comparison",
    "load_study",
    "located",
    "parse_study",
    "with_variant",
    "work_offline",
]
