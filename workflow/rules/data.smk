# Images, cut to the classes of a study: results/data/digits-c10.npz


rule prepare_data:
    input:
        own=lambda wildcards: STUDY.data_file(wildcards.data.rpartition("-c")[0]) or [],
    output:
        "results/data/{data}.npz",
    log:
        "results/logs/data/{data}.log",
    priority: 1000000
    conda:
        "../../envs/measure.yaml"
    threads: 1
    resources:
        mem_mb=megabytes(2000),
        runtime=lambda wildcards: 120 if data_entry(wildcards).get("download") else 10,
        download=lambda wildcards: "--download" if data_entry(wildcards).get("download") else "",
    params:
        script=command("data.py"),
        code=code_of("data.py"),
        dataset=data_json,
        name=lambda wildcards: wildcards.data.rpartition("-c")[0],
        classes=lambda wildcards: wildcards.data.rpartition("-c")[2],
        root=lambda wildcards: (
            "." if data_entry(wildcards)["source"] == "digits" else STUDY.data_root
        ),
    message:
        "Preparing {wildcards.data}"
    shell:
        "python {params.script:q} --dataset {params.dataset:q} --name {params.name:q}"
        " --classes {params.classes} --data-root {params.root:q} {resources.download}"
        " --out {output:q} 2> {log:q}"


rule data:
    input:
        expand("results/data/{data}.npz", data=DATA),
