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
    threads: study.evaluation.threads * study.evaluation.processes
    resources:
        **NEEDS["evaluate"],
    params:
        config=config_file,
        settings=evaluation_settings,
        checkpoint=lambda wildcards: checkpoint(**wildcards),
        out=subpath(output.csv, parent=True),
    shell:
        "exec python -m mars evaluate --config {params.config:q} --seed {wildcards.seed}"
        " --scale {wildcards.scale} --variant {wildcards.variant}"
        " --checkpoint {params.checkpoint:q} --out {params.out:q} &> {log:q}"


rule chance:
    """What each benchmark gives for nothing: the best constant answer, or a random one."""
    input:
        sources(ROOT, "mars/evaluation/chance.py"),
    output:
        f"{RESULTS}/chance.csv",
    log:
        f"{RESULTS}/logs/chance.log",
    benchmark:
        f"{RESULTS}/benchmarks/chance.tsv"
    group:
        "presentation"
    conda:
        "../envs/mars.yaml"
    resources:
        **SMALL,
    params:
        config=CONFIG,
        benchmarks=sorted(study.evaluation.benchmarks),
    shell:
        "exec python -m mars chance --config {params.config:q} --out {output:q} &> {log:q}"
