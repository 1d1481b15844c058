# Inputs, sources and settings of the rules: functions only.

# --- training

SHAPING = {"objective", "stages", "block_size", "ar_weight", "alignment"}
"""Of a variant, what shapes its training beside its parent."""


def training_inputs(wildcards):
    variant = joined.variants[wildcards.variant]
    return checkpoint_inputs(wildcards.seed, wildcards.scale, variant.parent)


def training_sources(wildcards):
    objective = joined.variants[wildcards.variant].objective
    return sources(ROOT, "mars/training/run.py", OBJECTIVE_FILES[objective])


def training_settings(wildcards):
    variant = joined.variants[wildcards.variant]
    return settings(
        data=study.data.model_dump(mode="json"),
        training=joined.training_of(wildcards.variant).model_dump(
            mode="json", exclude=set(ROUNDING)
        ),
        variant=variant.model_dump(mode="json", include=SHAPING),
    )


def training_launcher():
    """What starts `mars train`: Python, or accelerate where several processes train together."""
    made = study.training
    if made.processes == 1 and made.accelerate is None:
        return "python"
    how = f"--config_file {shlex.quote(made.accelerate)}" if made.accelerate else "--multi_gpu"
    rest = "--num_machines 1 --mixed_precision no --main_process_port 0"
    claim = f"python -m mars gpus {made.processes} " if GPU else ""
    return f"{claim}accelerate launch {how} --num_processes {made.processes} {rest}"


def training_parent(wildcards):
    variant = joined.variants[wildcards.variant]
    return checkpoint(wildcards.seed, wildcards.scale, variant.parent)


# --- evaluation


BENCHMARK_FILES = [str(path) for path in benchmark_files(study)]


def evaluation_inputs(wildcards):
    made = checkpoint_inputs(wildcards.seed, wildcards.scale, wildcards.variant)
    return made + BENCHMARK_FILES


def evaluation_decodings(wildcards):
    return {
        benchmark: joined.decodings(wildcards.variant, benchmark)
        for benchmark in study.evaluation.benchmarks
    }


def evaluation_sources(wildcards):
    decodings = evaluation_decodings(wildcards).values()
    decoders = sorted({made.decoder for found in decodings for made in found})
    tasks = "mars/evaluation/tasks"
    return data_files(ROOT, tasks) + sources(
        ROOT,
        "mars/evaluation/run.py",
        "mars/decoding/make.py",
        *(DECODER_FILES[decoder] for decoder in decoders),
        *sorted(str(path.relative_to(ROOT)) for path in (ROOT / tasks).rglob("*.py")),
    )


def evaluation_settings(wildcards):
    made = study.evaluation
    return settings(
        benchmarks={
            name: benchmark.model_dump(mode="json", exclude={"column"})
            for name, benchmark in made.benchmarks.items()
        },
        decodings={
            benchmark: [decoding.id for decoding in found]
            for benchmark, found in evaluation_decodings(wildcards).items()
        },
        limit=made.limit,
        max_new_tokens=made.max_new_tokens,
        fewshot_as_multiturn=made.fewshot_as_multiturn,
        model_written_code=made.model_written_code,
        dtype=study.training.dtype,
    )


# --- the wall-clock grid


def throughput_inputs(wildcards):
    grid = study.throughput
    return [
        path
        for variant in (grid.variant, grid.ar_variant)
        for path in checkpoint_inputs(wildcards.seed, grid.scale, variant)
    ]


def throughput_sources(wildcards):
    decoders = ("mars/decoding/make.py", DECODER_FILES["ar"], DECODER_FILES["mars"])
    return sources(ROOT, "mars/evaluation/throughput/__init__.py", *decoders)


def throughput_settings(wildcards):
    grid = study.throughput
    return settings(
        grid=grid.model_dump(mode="json", exclude={"trace"}),
        benchmark=study.evaluation.benchmarks[grid.benchmark].model_dump(
            mode="json", include={"num_fewshot"}
        ),
        dtype=study.training.dtype,
    )


def throughput_checkpoint(which):
    def of(wildcards):
        grid = study.throughput
        return checkpoint(wildcards.seed, grid.scale, getattr(grid, which))

    return of


# --- the arrival trace


def arrivals_inputs(wildcards):
    grid = study.throughput
    return checkpoint_inputs(wildcards.seed, grid.scale, grid.variant)


def arrivals_sources(wildcards):
    tasks = "mars/evaluation/tasks"  # they score its answers
    return data_files(ROOT, tasks) + sources(
        ROOT,
        "mars/evaluation/throughput/arrivals.py",
        DECODER_FILES["mars"],
        *sorted(str(path.relative_to(ROOT)) for path in (ROOT / tasks).rglob("*.py")),
    )


def arrivals_settings(wildcards):
    grid = study.throughput
    shaping = {"scale", "variant", "benchmark", "block_size", "max_new_tokens", "trace"}
    shaping |= {"threads", "linears", "compile"}
    return settings(
        grid=grid.model_dump(mode="json", include=shaping),
        benchmark=study.evaluation.benchmarks[grid.benchmark].model_dump(
            mode="json", exclude={"column"}
        ),
        dtype=study.training.dtype,
    )


# --- what a training step costs


def training_cost_inputs(wildcards):
    return checkpoint_files(study.base(study.training_cost.scale))


def training_cost_sources(wildcards):
    objectives = (OBJECTIVE_FILES["ar_sft"], OBJECTIVE_FILES["mars"])
    return sources(ROOT, "mars/training/cost_study.py", *objectives)


def training_cost_settings(wildcards):
    cost = study.training_cost
    names = {cost.ar_variant, *cost.variants, *filter(None, [cost.released])}
    shaping = {"row_length", "dtype", "max_grad_norm", "activation_checkpointing"}
    return settings(
        cost=cost.model_dump(mode="json"),
        data=study.data.model_dump(mode="json", exclude={"stage1_examples", "stage2_examples"}),
        training=study.training.model_dump(mode="json", include=shaping),
        variants={
            name: study.variants[name].model_dump(
                mode="json", include={"objective", "block_size", "ar_weight", "alignment"}
            )
            for name in sorted(names)
        },
    )


# --- tables and figures


TABLES = [name for name in TABLE_FILES if applies(study, name)]
DRAWN = [name for name in FIGURE_FILES if applies(study, name)]
NOTEBOOKS = sorted(path.stem for path in Path("workflow/notebooks").glob("*.ipynb"))
TIMED = ("table5", "wall_clock", "roofline", "replay", "batching")
TABLE_WRITERS = ("mars/analysis/latex.py", "mars/analysis/tables/forms.py")
TABLE_KINDS = {"csv": "csv", "markdown": "md", "latex": "tex"}


def measurements(name):
    """The measurements that a table or a figure shows."""
    if name == "claims":
        return [*records(), *throughput_files(), *training_cost_files()]
    if name in TIMED:
        return throughput_files()
    if name == "profile":
        return throughput_files("profile.csv")
    if name == "arrivals":
        return arrivals_files()
    if name in ("training_overhead", "signal_fraction", "loss_curves"):
        curves = every_run("training.csv", trained_only=True)
        timed = training_cost_files() if name == "training_overhead" else []
        return curves + every_run("training.json", trained_only=True) + timed
    if name == "chance":
        return [f"{RESULTS}/chance.csv", *records()]
    return records()


def records():
    """What was evaluated: every run's rows, and all records in one file."""
    return [*every_run("evaluation.csv"), f"{RESULTS}/records.parquet"]


def table_inputs(wildcards):
    return (
        measurements(wildcards.table)
        + sources(ROOT, TABLE_FILES[wildcards.table], *TABLE_WRITERS)
        + data_files(ROOT, "mars/analysis/paper")
    )


def presentation():
    """Of the settings, those that tables and figures show or choose by."""
    return settings(study=study.model_dump(mode="json"))


# --- a variant of your own, compared


def compare_inputs(wildcards):
    """What the comparison reads, of the variant and of its baselines, at every seed."""
    return [
        f"{run_folder(seed, scale, variant)}/evaluation.csv"
        for seed in joined.seeds
        for scale, variant in compared_runs(joined, compared.name, compared.baselines)
    ]


def no_variant(wildcards):
    """What to say where a comparison is asked for and no variant is named."""
    sys.exit(
        "compare: name the file of your variant: snakemake --cores 8 compare --config "
        "variant=examples/half_ar_weight.yaml"
    )
