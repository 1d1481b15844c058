# From base checkpoints to the report. What runs is set by a study file: config/embedded.yaml by
# default, another with --configfile, which replaces it whole.
from snakemake.utils import min_version

min_version("9.8")

if not workflow.configfiles:

    configfile: "config/embedded.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/resources.smk"
include: "workflow/rules/inputs.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/evaluation.smk"
include: "workflow/rules/throughput.smk"
include: "workflow/rules/arrivals.smk"
include: "workflow/rules/training_cost.smk"
include: "workflow/rules/analysis.smk"
include: "workflow/rules/compare.smk"


onstart:
    write_config()
    check_inputs()


rule all:
    default_target: True
    input:
        f"{REPORTS}/index.html",
        expand(f"{REPORTS}/notebooks/{{notebook}}.html", notebook=NOTEBOOKS),
        f"{RESULTS}/throughput.parquet" if study.throughput else [],
