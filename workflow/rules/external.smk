# Networks of the user's own, measured like those of the grids: results/spectra/external/NAME/spectra.nc


rule measure_external:
    input:
        data=lambda wildcards: f"results/data/{data_name(STUDY.external[wildcards.external])}.npz",
        own=lambda wildcards: files_of_external(wildcards.external),
    output:
        spectra="results/spectra/external/{external}/spectra.nc",
        rows="results/spectra/external/{external}/residual_alignment.csv",
        per_block="results/spectra/external/{external}/spectra_per_block.csv",
    log:
        "results/logs/spectra/external/{external}.log",
    benchmark:
        "results/benchmarks/spectra/external/{external}.tsv"
    conda:
        "../../envs/measure.yaml"
    threads: STUDY.threads
    resources:
        **ON_DEVICE,
        mem_mb=megabytes(6000),
        runtime=lambda wildcards, attempt: 120 * attempt,
    params:
        script=command("external.py"),
        code=code_of("external.py"),
        network=lambda wildcards: to_json(STUDY.external[wildcards.external]),
        measure=to_json(
            {**STUDY.measure, "inputs": {"external": STUDY.measure["inputs"]["external"]}}
        ),
    message:
        "Measuring external/{wildcards.external}"
    shell:
        "python {params.script:q} --name {wildcards.external} --network {params.network:q}"
        " --data {input.data:q} --measure {params.measure:q}"
        + DEVICE_OPTIONS
        + "--spectra {output.spectra:q} --rows {output.rows:q} --per-block {output.per_block:q} 2> {log:q}"


rule external:
    input:
        expand("results/spectra/external/{external}/spectra.nc", external=STUDY.external),
        expand(
            "results/figures/external/{external}/{name}.{kind}",
            external=STUDY.external,
            name=OF_ONE_NETWORK,
            kind=["pdf", "png"],
        ),
