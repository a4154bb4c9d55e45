# Residual Jacobians of one network configuration: singular values, alignment, trajectories, scores.


rule measure_spectra:
    input:
        data=data_of,
        checkpoints=rules.train.output.checkpoints,
        history=rules.train.output.history,
    output:
        spectra="results/spectra/{network}/spectra.nc",
        rows="results/spectra/{network}/residual_alignment.csv",
        per_block="results/spectra/{network}/spectra_per_block.csv",
    log:
        "results/logs/spectra/{network}.log",
    benchmark:
        "results/benchmarks/spectra/{network}.tsv"
    priority: priority_of(spectra_cost)
    conda:
        "../../envs/measure.yaml"
    threads: STUDY.threads
    resources:
        **ON_DEVICE,
        mem_mb=megabytes_of(spectra_cost),
        runtime=minutes_of(spectra_cost),
    params:
        script=command("spectra.py"),
        code=code_of("spectra.py"),
        network=network_json,
        recipe=recipe_json,
        measure=measure_json,
    message:
        "Measuring {wildcards.network}"
    shell:
        "python {params.script:q} --network {params.network:q} --recipe {params.recipe:q}"
        " --data {input.data:q} --checkpoints {input.checkpoints:q} --history {input.history:q}"
        " --measure {params.measure:q}"
        + DEVICE_OPTIONS
        + "--spectra {output.spectra:q} --rows {output.rows:q} --per-block {output.per_block:q} 2> {log:q}"


rule spectra:
    input:
        lambda wildcards: of_networks(made_by(rules.measure_spectra), MEASURED),
