# One job trains one network configuration from all its seeds. What is finished, and the last epoch of
# what is not, lies in the state folder, which is no output: an output would be deleted at a restart.


rule train:
    input:
        data=data_of,
    output:
        checkpoints="results/networks/{network}/checkpoints.pt",
        history="results/networks/{network}/history.csv",
    log:
        "results/logs/networks/{network}.log",
    benchmark:
        "results/benchmarks/networks/{network}.tsv"
    priority: priority_of(train_cost)
    conda:
        "../../envs/measure.yaml"
    threads: STUDY.threads
    resources:
        **ON_DEVICE,
        mem_mb=megabytes_of(train_cost),
        runtime=minutes_of(train_cost),
    params:
        script=command("train.py"),
        code=code_of("train.py"),
        network=network_json,
        recipe=recipe_json,
    message:
        "Training {wildcards.network}"
    shell:
        "python {params.script:q} --network {params.network:q} --recipe {params.recipe:q}"
        " --data {input.data:q} --state results/state"
        + DEVICE_OPTIONS
        + "--checkpoints {output.checkpoints:q} --history {output.history:q} 2> {log:q}"


rule networks:
    input:
        lambda wildcards: of_networks(made_by(rules.train)),
