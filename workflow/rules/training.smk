# base → ar_sft → every variant: one job for each trained run.


rule study_config:
    """The configuration as it is run, every default written out."""
    output:
        f"{RESULTS}/config.yaml",
    log:
        f"{RESULTS}/logs/study_config.log",
    benchmark:
        f"{RESULTS}/benchmarks/study_config.tsv"
    conda:
        "../envs/mars.yaml"
    resources:
        slots=1,
    params:
        study=study.model_dump_json(),
    shell:
        "printf '%s' {params.study:q} | python -m mars config - --out {output:q} &> {log:q}"


# One variant. A killed job goes on from trainer/, which is no output and so is kept.
rule train:
    input:
        training_inputs,
        training_sources,
        data=[] if study.data.source == "embedded" else study.data.source,
        config=ancient(f"{RESULTS}/config.yaml"),
    output:
        model=directory(f"{RESULTS}/{RUN}/model"),
        curve=f"{RESULTS}/{RUN}/training.csv",
        summary=f"{RESULTS}/{RUN}/training.json",
    log:
        f"{RESULTS}/logs/train/{RUN}.log",
    benchmark:
        f"{RESULTS}/benchmarks/train/{RUN}.tsv"
    wildcard_constraints:
        variant="|".join(map(re.escape, TRAINED)),
    priority: 10
    conda:
        "../envs/mars.yaml"
    threads: study.training.threads
    resources:
        slots=study.training.threads,
        mem_mb=JOB_MB,
        gpu=GPU,
    params:
        settings=training_settings,
        parent=training_parent,
        out=subpath(output.curve, parent=True),
    shell:
        "exec python -m mars train --config {input.config:q} --seed {wildcards.seed}"
        " --scale {wildcards.scale} --variant {wildcards.variant}"
        " --parent {params.parent:q} --out {params.out:q} &> {log:q}"
