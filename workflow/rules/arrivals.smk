# Requests that arrive over time: alone on the machine, or the trace would time the other jobs too.


rule arrivals:
    """The study's arrival trace under fixed thresholds and under a controller of them."""
    input:
        arrivals_inputs,
        arrivals_sources,
    output:
        csv=f"{RESULTS}/seed{{seed}}/arrivals.csv",
        environment=f"{RESULTS}/seed{{seed}}/arrivals.environment.json",
    log:
        f"{RESULTS}/logs/arrivals/seed{{seed}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/arrivals/seed{{seed}}.tsv"
    priority: -10
    conda:
        "../envs/mars.yaml"
    threads: study.throughput.threads if study.throughput else 1
    resources:
        **NEEDS["arrivals"],
    params:
        config=CONFIG,
        settings=arrivals_settings,
        checkpoint=throughput_checkpoint("variant"),
    shell:
        "exec python -m mars arrivals --config {params.config:q} --seed {wildcards.seed}"
        " --checkpoint {params.checkpoint:q} --out {output.csv:q} &> {log:q}"
