# A variant of your own, held against variants of the study: just what is missing is made.

if compared is None:

    rule compare:
        """Without a variant there is nothing to compare; its input says what to do."""
        input:
            no_variant,

else:

    rule compare:
        """Paired differences, frontiers and a verdict for each baseline, on one page."""
        input:
            compare_inputs,
            sources(ROOT, "mars/analysis/compare/page.py"),
            data_files(ROOT, "mars/analysis"),
        output:
            f"{REPORTS}/compare-{compared.name}.html",
        log:
            f"{RESULTS}/logs/compare-{compared.name}.log",
        conda:
            "../envs/mars.yaml"
        resources:
            **SMALL,
        params:
            config=f"{COMPARE}.config.yaml",
            settings=settings(compared=compared.model_dump(mode="json")),
            results=lambda wildcards: RESULTS,
            variant=compared.name,
            baselines=compared.baselines,
            margin=compared.margin,
        shell:
            "exec python -m mars compare --config {params.config:q} --results {params.results:q}"
            " --variant {params.variant:q} --baselines {params.baselines:q}"
            " --margin {params.margin} --out {output:q} &> {log:q}"
