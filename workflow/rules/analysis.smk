# Tables, figures and the report: one rule for each figure, whose script is one of its inputs.


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
    conda:
        "../envs/mars.yaml"
    resources:
        slots=1,
    shell:
        "exec python -m mars environment --out {output:q} &> {log:q}"


rule table:
    input:
        table_inputs,
    output:
        csv=f"{RESULTS}/tables/{{table}}.csv",
        markdown=f"{RESULTS}/tables/{{table}}.md",
    log:
        f"{RESULTS}/logs/table/{{table}}.log",
    benchmark:
        f"{RESULTS}/benchmarks/table/{{table}}.tsv"
    wildcard_constraints:
        table="|".join(TABLES),
    conda:
        "../envs/mars.yaml"
    resources:
        slots=1,
    params:
        config=CONFIG,
        settings=presentation(),
        results=lambda wildcards: RESULTS,
        out=subpath(output.csv, parent=True),
    shell:
        "exec python -m mars table {wildcards.table} --config {params.config:q}"
        " --results {params.results:q} --out {params.out:q} &> {log:q}"


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
        conda:
            "../envs/mars.yaml"
        resources:
            slots=1,
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
        expand(f"{RESULTS}/tables/{{table}}.{{kind}}", table=TABLES, kind=["csv", "md"]),
        expand(f"{FIGURES}/{{figure}}.{{kind}}", figure=DRAWN, kind=["png", "pdf"]),
        f"{RESULTS}/environment.json",
        throughput_files("environment.json"),
        training_cost_files("environment.json"),
        sources(ROOT, "mars/analysis/report.py"),
        data_files(ROOT, "mars/analysis"),
    output:
        f"{REPORTS}/index.html",
    log:
        f"{RESULTS}/logs/report.log",
    benchmark:
        f"{RESULTS}/benchmarks/report.tsv"
    conda:
        "../envs/mars.yaml"
    resources:
        slots=1,
    params:
        config=CONFIG,
        settings=presentation(),
        results=lambda wildcards: RESULTS,
        figures=lambda wildcards: FIGURES,
    shell:
        "exec python -m mars report --config {params.config:q} --results {params.results:q}"
        " --figures {params.figures:q} --out {output:q} &> {log:q}"
