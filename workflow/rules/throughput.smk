# The wall-clock grid: alone on the machine, or it would measure the other jobs too.


rule throughput:
    """Seconds and tokens of each method, cache and batch size over the same prompts.

    The runs that an interrupted job has finished are in a hidden file that is no output, and are
    not repeated.
    """
    input:
        throughput_inputs,
        throughput_sources,
    output:
        csv=f"{RESULTS}/seed{{seed}}/throughput.csv",
        profile=f"{RESULTS}/seed{{seed}}/throughput.profile.csv",
        costs=f"{RESULTS}/seed{{seed}}/throughput.costs.json",
        environment=f"{RESULTS}/seed{{seed}}/throughput.environment.json",
    log:
        f"{RESULTS}/logs/throughput/seed{{seed}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/throughput/seed{{seed}}.tsv"
    priority: -10
    conda:
        "../envs/mars.yaml"
    threads: study.throughput.threads if study.throughput else 1
    resources:
        **NEEDS["throughput"],
    params:
        config=CONFIG,
        settings=throughput_settings,
        checkpoint=throughput_checkpoint("variant"),
        ar_checkpoint=throughput_checkpoint("ar_variant"),
    shell:
        "exec python -m mars throughput --config {params.config:q} --seed {wildcards.seed}"
        " --checkpoint {params.checkpoint:q} --ar-checkpoint {params.ar_checkpoint:q}"
        " --out {output.csv:q} &> {log:q}"
