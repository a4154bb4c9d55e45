# One job trains one network configuration from all its seeds. What is finished, and the last epoch of
# what is not, lies in the state folder, which is no output: an output would be deleted at a restart.


rule train:
    input:
        script=command("train.py"),
        sources=sources("train.py"),
        data=data_of,
    output:
        checkpoints="results/networks/{network}/checkpoints.pt",
        history="results/networks/{network}/history.csv",
    log:
        "results/logs/networks/{network}.log",
    benchmark:
        "results/benchmarks/networks/{network}.tsv"
    priority: train_seconds
    conda:
        "../../envs/measure.yaml"
    # One thread, always: the order of a sum, and with it the weights, depends on their number.
    threads: 1
    resources:
        mem_mb=megabytes(2000),
        runtime=minutes(train_seconds),
        device=STUDY.device,
    params:
        network=network_json,
        recipe=recipe_json,
        state=lambda wildcards: f"results/state/{wildcards.network}",
    message:
        "Training {wildcards.network}"
    shell:
        "python {input.script:q} --network {params.network:q} --recipe {params.recipe:q}"
        " --data {input.data:q} --state {params.state:q} --threads {threads} --device {resources.device}"
        " --checkpoints {output.checkpoints:q} --history {output.history:q} 2> {log:q}"


rule networks:
    input:
        of_networks("results/networks/{network}/checkpoints.pt"),
        of_networks("results/networks/{network}/history.csv"),
