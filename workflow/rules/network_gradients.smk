# Gradients and responses of the study's own networks, before training and at every checkpoint: of
# those that a figure of them shows, and of any other by its path.


rule measure_gradients:
    input:
        data=data_of,
        checkpoints=rules.train.output.checkpoints,
    output:
        covariance="results/gradients/{network}/covariance.csv",
        layers="results/gradients/{network}/layers.csv",
        similarity="results/gradients/{network}/similarity.csv",
    log:
        "results/logs/gradients/{network}.log",
    benchmark:
        "results/benchmarks/gradients/{network}.tsv"
    conda:
        "../../envs/measure.yaml"
    threads: STUDY.threads
    resources:
        **ON_DEVICE,
        mem_mb=megabytes_of(gradients_cost),
        runtime=minutes_of(gradients_cost),
    params:
        script=command("network_gradients.py"),
        code=code_of("network_gradients.py"),
        network=network_json,
        recipe=recipe_json,
        settings=to_json(STUDY.gradients["networks"]),
    message:
        "Measuring gradients of {wildcards.network}"
    shell:
        "python {params.script:q} --network {params.network:q} --recipe {params.recipe:q}"
        " --data {input.data:q} --checkpoints {input.checkpoints:q} --settings {params.settings:q}"
        + DEVICE_OPTIONS
        + "--covariance {output.covariance:q}"
        " --layers {output.layers:q} --similarity {output.similarity:q} 2> {log:q}"


# Random convolutional networks at the images of one data set.
rule effective_rank:
    input:
        data=f"results/data/{data_name(OF_RANK)}.npz",
    output:
        table="results/gradients/effective_rank.csv",
        pictures="results/gradients/effective_rank.npz",
    log:
        "results/logs/gradients/effective_rank.log",
    benchmark:
        "results/benchmarks/gradients/effective_rank.tsv"
    priority: 100000  # one and long: first
    conda:
        "../../envs/measure.yaml"
    threads: STUDY.threads
    resources:
        **ON_DEVICE,
        mem_mb=megabytes(4000),
        runtime=60,
    params:
        script=command("effective_rank.py"),
        code=code_of("effective_rank.py"),
        settings=to_json(OF_RANK),
    message:
        "Measuring the effective rank of gradients of random networks"
    shell:
        "python {params.script:q} --data {input.data:q} --settings {params.settings:q}"
        + DEVICE_OPTIONS
        + "--table {output.table:q}"
        " --pictures {output.pictures:q} 2> {log:q}"


RANKS = made_by(rules.effective_rank) if "sg5_effective_rank" in STUDY.figures else []


rule network_gradients:
    input:
        lambda wildcards: of_networks(made_by(rules.measure_gradients), FOLLOWED),
        RANKS,
