# Models small enough to be solved, in which the papers' claims can be proved or refuted.


rule unconstrained_model:
    output:
        table="results/theory/unconstrained_jacobians.csv",
        per_block="results/theory/unconstrained_jacobians_per_block.csv",
    log:
        "results/logs/theory/unconstrained_jacobians.log",
    benchmark:
        "results/benchmarks/theory/unconstrained_jacobians.tsv"
    conda:
        "../../envs/measure.yaml"
    threads: 1
    resources:
        mem_mb=megabytes(2000),
        runtime=60,
    params:
        script=command("unconstrained_jacobians.py"),
        code=code_of("unconstrained_jacobians.py"),
        settings=to_json(STUDY.unconstrained_jacobians),
    message:
        "Minimising the unconstrained Jacobians model"
    shell:
        "python {params.script:q} --settings {params.settings:q} --threads {threads}"
        " --table {output.table:q} --per-block {output.per_block:q} 2> {log:q}"


rule theory:
    input:
        rules.unconstrained_model.output,
