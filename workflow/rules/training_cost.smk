# What a training step costs: alone on the machine, or it would measure the other jobs too.


rule training_cost:
    """Seconds and memory of a step of AR SFT, MARS, and MARS as released, on one base checkpoint.

    The runs that an interrupted job has finished are in a hidden file that is no output, and are
    not repeated.
    """
    input:
        training_cost_inputs,
        training_cost_sources,
        data=study.data.files,
    output:
        csv=f"{RESULTS}/seed{{seed}}/training_cost.csv",
        environment=f"{RESULTS}/seed{{seed}}/training_cost.environment.json",
    log:
        f"{RESULTS}/logs/training_cost/seed{{seed}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/training_cost/seed{{seed}}.tsv"
    priority: -10
    conda:
        "../envs/mars.yaml"
    threads: study.training_cost.threads if study.training_cost else 1
    resources:
        **NEEDS["training_cost"],
    params:
        config=CONFIG,
        settings=training_cost_settings,
        checkpoint=lambda wildcards: study.base(study.training_cost.scale),
    shell:
        "exec python -m mars training-cost --config {params.config:q} --seed {wildcards.seed}"
        " --checkpoint {params.checkpoint:q} --out {output.csv:q} &> {log:q}"
