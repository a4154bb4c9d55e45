# Residual Jacobians of one network configuration: singular values, alignment, trajectories, scores.


rule measure_spectra:
    input:
        script=command("spectra.py"),
        sources=sources("spectra.py"),
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
    wildcard_constraints:
        network=one_of(MEASURED),
    priority: spectra_seconds
    conda:
        "../../envs/measure.yaml"
    threads: 1
    resources:
        mem_mb=spectra_megabytes,
        runtime=spectra_minutes,
        device=STUDY.device,
    params:
        network=network_json,
        recipe=recipe_json,
        measure=measure_json,
    message:
        "Measuring {wildcards.network}"
    shell:
        "python {input.script:q} --network {params.network:q} --recipe {params.recipe:q}"
        " --data {input.data:q} --checkpoints {input.checkpoints:q} --history {input.history:q}"
        " --measure {params.measure:q} --threads {threads} --device {resources.device}"
        " --spectra {output.spectra:q} --rows {output.rows:q} --per-block {output.per_block:q} 2> {log:q}"


rule spectra:
    input:
        of_networks("results/spectra/{network}/spectra.nc", MEASURED),
        of_networks("results/spectra/{network}/residual_alignment.csv", MEASURED),
        of_networks("results/spectra/{network}/spectra_per_block.csv", MEASURED),
