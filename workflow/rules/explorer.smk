# One page to look at networks side by side, and at what each claim was judged on: results/explorer.html


rule explorer:
    input:
        spectra=of_networks("results/spectra/{network}/spectra.nc", MEASURED + EXTERNAL),
        claims=local(os.path.relpath(WORKFLOW / "claims.yaml")),
        tables=rules.claims_table.input.tables,
    output:
        page="results/explorer.html",
        data=directory("results/explorer"),
    log:
        "results/logs/explorer.log",
    localrule: True
    conda:
        "../../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=megabytes(2000),
        runtime=30,
    params:
        script=command("explorer.py"),
        code=code_of("explorer.py"),
        page=digest_of("resnet_mechanisms/explorer/page.*"),
        tables=lambda wildcards, input: os.path.dirname(input.tables[0]),
        figures=sorted(STUDY.figures),
    message:
        "Writing {output.page}"
    shell:
        "python {params.script:q} --spectra {input.spectra:q} --claims {input.claims:q}"
        " --tables {params.tables:q} --figures {params.figures:q}"
        " --page {output.page:q} --folder {output.data:q} 2> {log:q}"
