# The study, checked; its paths and wildcards; what each rule depends on. No rules here.
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import yaml
from snakemake.utils import update_config, validate

ROOT = Path(workflow.basedir)
sys.path[:0] = [str(ROOT), str(ROOT / "workflow" / "scripts")]

if Path.cwd() != ROOT:
    sys.exit(f"{Path.cwd()} is not the repository root: call snakemake from {ROOT}")

from mars import jobs
from mars.analysis.parts import COMPARED, FORMS, applies
from mars.config import (
    ROUNDING,
    ConfigError,
    compared_runs,
    dump_study,
    hub_reference,
    load_comparison,
    parse_study,
    with_variant,
)
from mars.evaluation.records import RecordError, write_atomically
from mars.planning.rates import PlanError
from mars.planning.sizes import parameters
from mars.planning.wanted import benchmark_files
from mars.plugins import PluginError, find_plugins, resolve_plugins
from sources import data_files, registry, sources


def typed(value):
    """A --config value as YAML means it: Snakemake leaves what is inside lists and maps as text."""
    if isinstance(value, dict):
        return {key: typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [typed(inner) for inner in value]
    return yaml.safe_load(value) if isinstance(value, str) else value


update_config(config, typed(workflow.config_settings.config))

# A variant of your own: `study` is what it was, `joined` has the variant too.
VARIANT_FILE = config.pop("variant", None)
STUDY_FILE = " + ".join(os.path.relpath(path) for path in workflow.configfiles)
try:
    places = [Path(path).parent for path in workflow.configfiles]
    study = resolve_plugins(parse_study(config, STUDY_FILE), places, STUDY_FILE)
    plugins = find_plugins(study, STUDY_FILE)
    joined, compared = study, None
    if VARIANT_FILE is not None:
        compared = load_comparison(VARIANT_FILE)
        joined = with_variant(study, compared, VARIANT_FILE)
        joined = resolve_plugins(joined, [Path(VARIANT_FILE).parent], VARIANT_FILE)
        plugins = find_plugins(joined, VARIANT_FILE)
except (ConfigError, PluginError) as error:
    sys.exit(getattr(error, "own_traceback", "") + str(error))
validate(config, "../schemas/config.schema.json", set_default=False)

RESULTS = f"results/{study.study}"
CONFIG = f"{RESULTS}/config.yaml"
FIGURES = f"figures/{study.study}"
REPORTS = f"reports/{study.study}"
RUN = "seed{seed}/{scale}/{variant}"
TRAINED = [name for name in joined.variants if joined.is_trained(name)]
COMPARE = f"{RESULTS}/compare-{compared.name}" if compared else None

# What the registries name, and the source file of each.
OBJECTIVE_FILES = registry(ROOT, "mars/training/objectives/__init__.py", "REGISTRY")
DECODER_FILES = registry(ROOT, "mars/decoding/__init__.py", "DECODERS")
for plugin in plugins:
    OBJECTIVE_FILES |= dict.fromkeys(plugin.names["objective"], str(plugin.path))
    DECODER_FILES |= dict.fromkeys(plugin.names["decoder"], str(plugin.path))
TABLE_FILES = registry(ROOT, "mars/analysis/tables/__init__.py", "TABLES")
FIGURE_FILES = registry(ROOT, "mars/analysis/figures/__init__.py", "FIGURES")

# Jobs run this very Python, and end with this very Snakemake even where it is killed (mars.jobs).
# Told to end, several processes that train together have as long to save as one; torch's launcher,
# which is told too, would kill them after 30 seconds.
shell.prefix(
    f"set -euo pipefail; export {jobs.PARENT_VARIABLE}={os.getpid()}; "
    f"export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={jobs.SAVING_SECONDS:.0f}; "
    f"export PATH={shlex.quote(os.path.dirname(sys.executable))}:$PATH; "
)


wildcard_constraints:
    seed=r"\d+",
    scale="|".join(map(re.escape, study.scales)),
    variant="|".join(map(re.escape, joined.variants)),


def checkpoint_files(ref):
    """The files of a base checkpoint, which is an input: embedded:<name>, or a folder."""
    name = ref.removeprefix("embedded:")
    folder = Path("mars/embedded/checkpoints", name) if name != ref else Path(ref)
    return sorted(str(path) for path in folder.glob("*") if path.is_file())


def weights_mb():
    """Of the largest checkpoint that is given; of bases that are not here yet, as they are named."""
    sizes = [
        sum(
            os.path.getsize(path) for path in checkpoint_files(ref) if path.endswith(".safetensors")
        )
        for ref in joined.given_checkpoints().values()
    ]
    for scale in joined.scales:
        with suppress(PlanError):  # neither here nor named after its size
            if not checkpoint_files(joined.base(scale)):
                sizes.append(2 * parameters(joined, scale)[0])  # bytes, in bfloat16
    return int(max(sizes)) // 10**6


# Jobs in flight: no more than the machine has cores and memory for, whatever --cores says. Every
# job takes a slot; `--resources slots=N` says otherwise, and a cluster (--jobs) has no such bound.
limits = workflow.global_resources
if "gpu" in limits:  # of a cluster, whatever the machine has that submits to it
    GPU = min(1, limits["gpu"].value)
else:
    GPU = min(1, jobs.gpu_count())  # what a job asks for that uses a GPU where there is one
PROCESS_MB = 700  # with torch, transformers and lm-eval, and a small model
# Weights that count: nine times in training on a CPU, measured for SmolLM2-135M. On a GPU, whose
# memory holds the rest, reckoned: each process loads them in float32, one gathers them to save.
LARGE_MB = 50
WEIGHTS_MB = weights_mb()
JOB_MB = PROCESS_MB + (WEIGHTS_MB > LARGE_MB) * WEIGHTS_MB * (4 if GPU else 9)
TOTAL_MB = 3600 if WEIGHTS_MB <= LARGE_MB else jobs.usable_memory_mb()  # of all jobs together
SLOTS = max(1, min(jobs.usable_cores(), min(TOTAL_MB, jobs.usable_memory_mb()) // JOB_MB))

if "slots" in limits:
    SLOTS = limits["slots"].value
elif limits["_nodes"].value is None:
    workflow.register_resource("slots", SLOTS)
if GPU and "gpu" not in limits:
    workflow.register_resource("gpu", jobs.gpu_count())


def fail(key, problem):
    """End with one line for the user: the file, the key, what is wrong and what to do."""
    sys.exit(f"{STUDY_FILE}: {key}: {problem}")


def settings(**parts):
    """What a rule's results depend on, as a parameter: a change of it runs the rule again."""
    return json.dumps(parts, sort_keys=True)


def check_study():
    """What the configuration alone cannot know: the files that a study names.

    What the hub has, or a command puts into results/, need not be there yet: `mars check` asks for
    it before the first job.
    """
    for key, ref in joined.given_checkpoints().items():
        later = hub_reference(ref) or ref.startswith("results/")
        if not later and not any(f.endswith(".safetensors") for f in checkpoint_files(ref)):
            remedy = "check the path"
            if ref.startswith("embedded:"):
                remedy = f"make it with `mars pretrain {ref.removeprefix('embedded:')}`"
            fail(key, f"no checkpoint at {ref!r}; {remedy}")
    if TRAINED and study.data.path and not study.data.files:
        fail(
            "data.source",
            f"nothing at {study.data.source!r}; name a JSONL file, a folder, a hub dataset "
            "(owner/name), or 'embedded'",
        )


check_study()


def run_folder(seed, scale, variant):
    return f"{RESULTS}/seed{seed}/{scale}/{variant}"


def checkpoint(seed, scale, variant):
    """Where a variant's checkpoint lies; of one that is not trained here, as it was given."""
    if variant not in TRAINED:
        return joined.given_checkpoint(scale, variant)
    return f"{run_folder(seed, scale, variant)}/model"


def checkpoint_inputs(seed, scale, variant):
    """The checkpoint of a variant as inputs of a rule."""
    if variant not in TRAINED:
        return checkpoint_files(checkpoint(seed, scale, variant))
    return [checkpoint(seed, scale, variant)]


def every_run(name, trained_only=False):
    """One file of every run of the study, e.g. evaluation.csv."""
    return [
        f"{run_folder(seed, scale, variant)}/{name}"
        for seed in study.seeds
        for scale, variant in study.runs()
        if variant in TRAINED or not trained_only
    ]


def throughput_files(ending="csv"):
    """The wall-clock measurements of every seed, where the study has a grid."""
    seeds = study.seeds if study.throughput else []
    return [f"{RESULTS}/seed{seed}/throughput.{ending}" for seed in seeds]


def arrivals_files():
    """The arrival trace of every seed, where the study has one."""
    traced = study.throughput and study.throughput.trace
    return [f"{RESULTS}/seed{seed}/arrivals.csv" for seed in study.seeds if traced]


def training_cost_files(ending="csv"):
    """What a training step costs, of every seed, where the study measures it."""
    seeds = study.seeds if study.training_cost else []
    return [f"{RESULTS}/seed{seed}/training_cost.{ending}" for seed in seeds]


def config_file(wildcards):
    """The configuration that a job of one variant reads: a variant of your own has another."""
    return CONFIG if wildcards.variant in study.variants else f"{COMPARE}.config.yaml"


def write_config():
    """Write the configuration as it is run, every default in it, for the jobs to read.

    Called as the workflow starts. This is no rule, since what depends on its output is run again
    with every change, or, where that is declared ancient, not even for reasons of its own.
    """
    written = {CONFIG: study} | ({f"{COMPARE}.config.yaml": joined} if compared else {})
    try:
        for path, text in ((Path(path), dump_study(made)) for path, made in written.items()):
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                write_atomically(path, text)
    except (RecordError, OSError) as error:
        sys.exit(str(error))


CHECKED = f"{COMPARE}.checked.txt" if compared else f"{RESULTS}/checked.txt"


def check_inputs():
    """Have `mars check` look at launcher, bases, benchmarks and rows, where any of them changed.

    Called as the workflow starts, before any job; what it warns of is said at every start. This is
    no rule: jobs that come after one whose output they take as ancient are not looked at for
    reasons of their own (see `write_config`).
    """
    looked_at = [
        *(path for ref in joined.given_checkpoints().values() for path in checkpoint_files(ref)),
        *sources(ROOT, "mars/evaluation/check.py", "mars/data/sources.py", "mars/plugins/probe.py"),
        *data_files(ROOT, "mars/evaluation/tasks"),
        *study.data.files,
        *BENCHMARK_FILES,
        *(str(plugin.path) for plugin in plugins),
    ]
    stats = {path: (os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in looked_at}
    parts = joined.model_dump(mode="json", exclude={"training", "seeds"})
    launcher = joined.training.accelerate
    stamp = hashlib.sha256(settings(files=stats, launcher=launcher, **parts).encode()).hexdigest()
    if Path(CHECKED).is_file() and stamp in Path(CHECKED).read_text(encoding="utf-8"):
        return repeat_warnings()
    log = Path(RESULTS, "logs", "check.log")
    log.parent.mkdir(parents=True, exist_ok=True)
    read, name = (f"{COMPARE}.config.yaml", VARIANT_FILE) if compared else (CONFIG, STUDY_FILE)
    words = ["--config", read, "--name", name, "--out", CHECKED, "--stamp", stamp]
    with log.open("w", encoding="utf-8") as said:
        done = subprocess.run(
            [sys.executable, "-m", "mars", "check", *words],
            env={**os.environ, jobs.PARENT_VARIABLE: str(os.getpid())},
            stdout=said,
            stderr=said,
            check=False,
        )
    if done.returncode:
        text = log.read_text(encoding="utf-8")
        *before, said = re.split("^mars: ", text, flags=re.MULTILINE)
        _, raised, own = "".join(before).partition("Traceback (most recent call last):")
        sys.exit(raised + own + said.strip() if before else text)
    repeat_warnings()


def repeat_warnings():
    """Say what `mars check` warned of."""
    for line in Path(CHECKED).read_text(encoding="utf-8").splitlines():
        if "warning:" in line:
            print(f"{STUDY_FILE}: {line}", file=sys.stderr)
