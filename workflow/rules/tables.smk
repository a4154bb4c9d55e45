# Tables of the whole study, one row an observation, and the verdict on each claim.

# The files whose rows make up a table; one without networks is not made.
TABLES = {
    "residual_alignment": of_networks(
        "results/spectra/{network}/residual_alignment.csv", MEASURED + EXTERNAL
    ),
    "spectra_per_block": of_networks(
        "results/spectra/{network}/spectra_per_block.csv", MEASURED + EXTERNAL
    ),
    "degradation": of_networks("results/networks/{network}/history.csv"),
    "gradient_covariance_networks": of_networks(
        "results/gradients/{network}/covariance.csv", FOLLOWED
    ),
    "layer_responses": of_networks("results/gradients/{network}/layers.csv", FOLLOWED),
    "gradient_similarity": of_networks("results/gradients/{network}/similarity.csv", FOLLOWED),
}
TABLES = {table: files for table, files in TABLES.items() if files}

# Tables that one job has written whole.
FINISHED_TABLES = {
    "gradient_covariance": made_by(rules.gradient_theorems)[0],
    "coactivation": name_of(rules.gradient_activations.output.coactivation),
    "activation_patterns": name_of(rules.gradient_activations.output.patterns),
    "path_counts": name_of(rules.gradient_paths.output.counts),
    "path_lengths": name_of(rules.gradient_paths.output.lengths),
    "linear_regions": made_by(rules.gradient_linear_regions)[0],
    "unconstrained_jacobians": name_of(rules.unconstrained_model.output.table),
    **({"effective_rank": RANKS[0]} if RANKS else {}),
}


localrules:
    table,
    finished_table,
    claims_table,


rule table:
    input:
        rows=lambda wildcards: TABLES[wildcards.table],
    output:
        "results/tables/{table}.csv",
    log:
        "results/logs/tables/{table}.log",
    wildcard_constraints:
        table=one_of(TABLES),
    conda:
        "../../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=megabytes(1000),
        runtime=10,
    params:
        script=command("table.py"),
        code=code_of("table.py"),
    message:
        "Writing {output}"
    shell:
        "python {params.script:q} {wildcards.table} --input {input.rows:q} --out {output:q} 2> {log:q}"


rule finished_table:
    input:
        lambda wildcards: FINISHED_TABLES[wildcards.table],
    output:
        "results/tables/{table}.csv",
    log:
        "results/logs/tables/{table}.log",
    wildcard_constraints:
        table=one_of(FINISHED_TABLES),
    conda:
        "../../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=100,
        runtime=5,
    params:
        tables=subpath(output[0], parent=True),
    message:
        "Writing {output}"
    shell:
        "cp {input:q}* {params.tables:q} 2> {log:q}"  # with the provenance that lies beside it


rule claims_table:
    input:
        claims=local(os.path.relpath(WORKFLOW / "claims.yaml")),
        tables=expand("results/tables/{table}.csv", table=[*TABLES, *FINISHED_TABLES]),
    output:
        table="results/tables/claims.csv",
        page=report(
            "results/tables/claims.html",
            caption="../report/claims.rst",
            category=CLAIMS,
            labels={"figure": "claims as a table"},
        ),
    log:
        "results/logs/tables/claims.log",
    conda:
        "../../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=megabytes(1000),
        runtime=10,
    params:
        script=command("claims.py"),
        code=code_of("claims.py"),
        tables=lambda wildcards, input: os.path.dirname(input.tables[0]),
        shows=grid_text.networks(STUDY, NETWORKS),
    message:
        "Judging the claims"
    shell:
        "python {params.script:q} --claims {input.claims:q} --tables {params.tables:q}"
        " --out {output.table:q} --page {output.page:q} 2> {log:q}"


rule tables:
    input:
        rules.claims_table.input.tables,
        rules.claims_table.output,
