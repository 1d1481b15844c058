# base → ar_sft → every variant: one job for each trained run.


# One variant. A killed job goes on from trainer/, which is no output and so is kept.
rule train:
    input:
        training_inputs,
        training_sources,
        data=study.data.files,
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
    threads: study.training.threads * study.training.processes
    resources:
        **NEEDS["train"],
        # no parameter: another launcher, or that of another machine, shapes no model
        launcher=training_launcher(),
    params:
        config=config_file,
        settings=training_settings,
        parent=training_parent,
        out=subpath(output.curve, parent=True),
    shell:
        "exec {resources.launcher} -m mars train --config {params.config:q} --seed {wildcards.seed}"
        " --scale {wildcards.scale} --variant {wildcards.variant}"
        " --parent {params.parent:q} --out {params.out:q} &> {log:q}"
