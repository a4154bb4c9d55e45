# Gradients and responses of the study's own networks, before training and at every checkpoint: of
# those that a figure of them shows, and of any other by its path.

OF_GRADIENTS = ("he7_layer_responses", "he_gradient_norms", "mechanisms", "sg_momentum")
FOLLOWED = list(
    dict.fromkeys(network for name in OF_GRADIENTS for network in STUDY.figures.get(name, []))
)


rule measure_gradients:
    input:
        script=command("network_gradients.py"),
        sources=sources("network_gradients.py"),
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
    threads: 1
    resources:
        mem_mb=megabytes(2000),
        runtime=minutes(train_seconds),
        device=STUDY.device,
    params:
        network=network_json,
        recipe=recipe_json,
        settings=to_json(STUDY.gradients["networks"]),
    message:
        "Measuring gradients of {wildcards.network}"
    shell:
        "python {input.script:q} --network {params.network:q} --recipe {params.recipe:q}"
        " --data {input.data:q} --checkpoints {input.checkpoints:q} --settings {params.settings:q}"
        " --threads {threads} --device {resources.device} --covariance {output.covariance:q}"
        " --layers {output.layers:q} --similarity {output.similarity:q} 2> {log:q}"


# Random convolutional networks at the images of one data set.
rule effective_rank:
    input:
        script=command("effective_rank.py"),
        sources=sources("effective_rank.py"),
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
    threads: 1
    resources:
        mem_mb=megabytes(4000),
        runtime=60,
        device=STUDY.device,
    params:
        settings=to_json(OF_RANK),
    message:
        "Measuring the effective rank of gradients of random networks"
    shell:
        "python {input.script:q} --data {input.data:q} --settings {params.settings:q}"
        " --threads {threads} --device {resources.device} --table {output.table:q}"
        " --pictures {output.pictures:q} 2> {log:q}"


RANKS = list(rules.effective_rank.output) if "sg5_effective_rank" in STUDY.figures else []


rule network_gradients:
    input:
        of_networks(list(rules.measure_gradients.output), FOLLOWED),
        RANKS,
