# Every variant on the study's benchmarks, at all of its decoding settings: one job for each run.


rule evaluate:
    """One variant. Its records in evaluation/ are no outputs, so a killed job repeats nothing."""
    input:
        evaluation_inputs,
        evaluation_sources,
    output:
        csv=f"{RESULTS}/{RUN}/evaluation.csv",
    log:
        f"{RESULTS}/logs/evaluate/{RUN}.log",
    benchmark:
        f"{RESULTS}/benchmarks/evaluate/{RUN}.tsv"
    conda:
        "../envs/mars.yaml"
    threads: study.evaluation.threads
    resources:
        slots=min(SLOTS, study.evaluation.threads),
        mem_mb=JOB_MB,
        gpu=GPU,
    params:
        config=CONFIG,
        settings=evaluation_settings,
        checkpoint=lambda wildcards: checkpoint(**wildcards),
        out=subpath(output.csv, parent=True),
    shell:
        "exec python -m mars evaluate --config {params.config:q} --seed {wildcards.seed}"
        " --scale {wildcards.scale} --variant {wildcards.variant}"
        " --checkpoint {params.checkpoint:q} --out {params.out:q} &> {log:q}"
