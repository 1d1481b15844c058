# Tables, figures and the report: one rule for each figure, whose script is one of its inputs.
# They are small, so on a cluster all of them are one submission (their group).


rule environment:
    """Hardware and versions, written anew whenever something was measured anew."""
    input:
        every_run("evaluation.csv"),
        throughput_files(),
        arrivals_files(),
        training_cost_files(),
        sources(ROOT, "mars/analysis/environment.py"),
    output:
        f"{RESULTS}/environment.json",
    log:
        f"{RESULTS}/logs/environment.log",
    benchmark:
        f"{RESULTS}/benchmarks/environment.tsv"
    group:
        "presentation"
    conda:
        "../envs/mars.yaml"
    resources:
        **SMALL,
    shell:
        "exec python -m mars environment --out {output:q} &> {log:q}"


rule tidy:
    """Every record in two Parquet files, which tables, figures and notebooks read."""
    input:
        every_run("evaluation.csv"),
        sources(ROOT, "mars/analysis/tidy.py"),
    output:
        records=f"{RESULTS}/records.parquet",
        generations=f"{RESULTS}/generations.parquet",
    log:
        f"{RESULTS}/logs/tidy.log",
    benchmark:
        f"{RESULTS}/benchmarks/tidy.tsv"
    group:
        "presentation"
    conda:
        "../envs/mars.yaml"
    resources:
        **SMALL,
    params:
        config=CONFIG,
        results=lambda wildcards: RESULTS,
        out=subpath(output.records, parent=True),
    shell:
        "exec python -m mars tidy --config {params.config:q} --results {params.results:q}"
        " --out {params.out:q} &> {log:q}"


rule tidy_throughput:
    """Every run of the wall-clock grid in a Parquet file; records do not wait for it."""
    input:
        throughput_files(),
        sources(ROOT, "mars/analysis/tidy.py"),
    output:
        f"{RESULTS}/throughput.parquet",
    log:
        f"{RESULTS}/logs/tidy_throughput.log",
    benchmark:
        f"{RESULTS}/benchmarks/tidy_throughput.tsv"
    group:
        "presentation"
    conda:
        "../envs/mars.yaml"
    resources:
        **SMALL,
    params:
        config=CONFIG,
        results=lambda wildcards: RESULTS,
    shell:
        "exec python -m mars tidy-throughput --config {params.config:q}"
        " --results {params.results:q} --out {output:q} &> {log:q}"


rule table:
    input:
        table_inputs,
    output:
        **{kind: f"{RESULTS}/tables/{{table}}.{end}" for kind, end in TABLE_KINDS.items()},
    log:
        f"{RESULTS}/logs/table/{{table}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/table/{{table}}.tsv"
    wildcard_constraints:
        table="|".join(name for name in TABLES if name not in COMPARED),
    group:
        "presentation"
    conda:
        "../envs/mars.yaml"
    resources:
        **SMALL,
    params:
        config=CONFIG,
        settings=presentation(),
        results=lambda wildcards: RESULTS,
        out=subpath(output.csv, parent=True),
    shell:
        "exec python -m mars table {wildcards.table} --config {params.config:q}"
        " --results {params.results:q} --out {params.out:q} &> {log:q}"


use rule table as compared_table with:
    output:
        **{kind: f"{RESULTS}/tables/{{table}}.{end}" for kind, end in TABLE_KINDS.items()},
        forms=expand(
            f"{RESULTS}/tables/{{{{table}}}}.{{form}}.{{end}}",
            form=FORMS,
            end=TABLE_KINDS.values(),
        ),
    wildcard_constraints:
        table="|".join(COMPARED),


for name in DRAWN:

    rule:
        name:
            f"figure_{name}"
        input:
            measurements(name),
            sources(ROOT, FIGURE_FILES[name]),
            data_files(ROOT, "mars/analysis/figures"),
            data_files(ROOT, "mars/analysis/paper"),
        output:
            png=report(
                f"{FIGURES}/{name}.png",
                caption=f"../captions/{name}.rst",
                category="Figures",
            ),
            pdf=f"{FIGURES}/{name}.pdf",
        log:
            f"{RESULTS}/logs/figure/{name}.log",
        benchmark:
            f"{RESULTS}/benchmarks/figure/{name}.tsv"
        group:
            "presentation"
        conda:
            "../envs/mars.yaml"
        resources:
            **SMALL,
        params:
            config=CONFIG,
            settings=presentation(),
            name=name,
            results=lambda wildcards: RESULTS,
            stem=subpath(output.pdf, strip_suffix=".pdf"),
        shell:
            "exec python -m mars figure {params.name} --config {params.config:q}"
            " --results {params.results:q} --out {params.stem:q} &> {log:q}"


rule report:
    """Everything on one page that needs no other file."""
    input:
        expand(f"{RESULTS}/tables/{{table}}.{{end}}", table=TABLES, end=TABLE_KINDS.values()),
        expand(f"{FIGURES}/{{figure}}.{{kind}}", figure=DRAWN, kind=["png", "pdf"]),
        f"{RESULTS}/environment.json",
        throughput_files("environment.json"),
        training_cost_files("environment.json"),
        sources(ROOT, "mars/analysis/report/__init__.py"),
        data_files(ROOT, "mars/analysis"),
    output:
        report(
            f"{REPORTS}/index.html",
            caption="../captions/report.rst",
            category="Report",
        ),
    log:
        f"{RESULTS}/logs/report.log",
    benchmark:
        f"{RESULTS}/benchmarks/report.tsv"
    group:
        "presentation"
    conda:
        "../envs/mars.yaml"
    resources:
        **SMALL,
    params:
        config=CONFIG,
        settings=presentation(),
        results=lambda wildcards: RESULTS,
        figures=lambda wildcards: FIGURES,
    shell:
        "exec python -m mars report --config {params.config:q} --results {params.results:q}"
        " --figures {params.figures:q} --out {output:q} &> {log:q}"


rule notebook:
    """A notebook on the finished results, as a page. The file in the sources stays as it is.

    Figures' own code is no input: a change of one redraws that figure, and not what quotes it.
    """
    input:
        records(),
        every_run("training.csv", trained_only=True),
        every_run("training.json", trained_only=True),
        throughput_files(),
        sources(ROOT, "mars/analysis/notebooks.py"),
        sources(ROOT, "mars/analysis/differences.py", "mars/analysis/generations.py"),
        sources(ROOT, "mars/analysis/missing.py", "mars/analysis/speed.py"),
        notebook="workflow/notebooks/{notebook}.ipynb",
    output:
        f"{REPORTS}/notebooks/{{notebook}}.html",
    log:
        f"{RESULTS}/logs/notebook/{{notebook}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/notebook/{{notebook}}.tsv"
    wildcard_constraints:
        notebook="|".join(NOTEBOOKS),
    group:
        "presentation"
    conda:
        "../envs/mars.yaml"
    resources:
        **SMALL,
    params:
        settings=presentation(),
        results=lambda wildcards: RESULTS,
    shell:
        "exec python -m mars notebook {input.notebook:q} --results {params.results:q}"
        " --out {output:q} &> {log:q}"
