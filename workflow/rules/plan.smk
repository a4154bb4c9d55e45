# What the study takes, before any of it runs: snakemake --cores 1 plan


rule plan:
    log:
        "results/logs/plan.log",
    localrule: True
    conda:
        "../../envs/figures.yaml"
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        script=command("plan.py"),
        config=to_json(config),
        jobs=to_json(
            {
                "prepare_data": len(DATA),
                "measure_external": len(EXTERNAL),
                **dict.fromkeys(RANDOM_NETWORKS, 1),
                "effective_rank": 1 if RANKS else 0,
                "unconstrained_model": 1,
                "table": len(TABLES),
                "finished_table": len(FINISHED_TABLES),
                "claims_table": 1,
                "explorer": 1,
                "figures": len(STUDY.figures) + len(EXTERNAL) * len(OF_ONE_NETWORK),
            }
        ),
        gpu=ON_DEVICE["gpu"],
    message:
        "What the study takes"
    shell:
        "python {params.script:q} --config {params.config:q} --jobs {params.jobs:q} --gpu {params.gpu}"
        " 2> {log:q}"
