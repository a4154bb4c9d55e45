# Gradients of networks at initialisation, against theory and as shown in the paper.


rule gradient_theorems:
    output:
        "results/gradients/gradient_covariance.csv",
    log:
        "results/logs/gradients/theorems.log",
    benchmark:
        "results/benchmarks/gradients/theorems.tsv"
    priority: 100000  # few and long: first
    conda:
        "../../envs/measure.yaml"
    threads: STUDY.threads
    resources:
        **ON_DEVICE,
        mem_mb=megabytes(3000),
        runtime=60,
    params:
        script=command("gradients.py"),
        code=code_of("gradients.py"),
        settings=to_json(STUDY.gradients["theorems"]),
    message:
        "Measuring gradient covariances against the theorems"
    shell:
        "python {params.script:q} theorems --settings {params.settings:q}"
        + DEVICE_OPTIONS
        + "--table {output:q} 2> {log:q}"


rule gradient_toy:
    output:
        gradients="results/gradients/toy_gradients.npz",
        autocorrelation="results/gradients/autocorrelation.csv",
    log:
        "results/logs/gradients/toy.log",
    benchmark:
        "results/benchmarks/gradients/toy.tsv"
    priority: 100000  # few and long: first
    conda:
        "../../envs/measure.yaml"
    threads: STUDY.threads
    resources:
        **ON_DEVICE,
        mem_mb=megabytes(3000),
        runtime=60,
    params:
        script=command("gradients.py"),
        code=code_of("gradients.py"),
        settings=to_json(STUDY.gradients["toy"]),
    message:
        "Measuring gradients on a line of inputs"
    shell:
        "python {params.script:q} toy --settings {params.settings:q}"
        + DEVICE_OPTIONS
        + "--gradients {output.gradients:q}"
        " --autocorrelation {output.autocorrelation:q} 2> {log:q}"


rule gradient_activations:
    output:
        coactivation="results/gradients/coactivation.csv",
        patterns="results/gradients/activation_patterns.csv",
        rasters="results/gradients/activation_patterns.npz",
    log:
        "results/logs/gradients/activations.log",
    benchmark:
        "results/benchmarks/gradients/activations.tsv"
    priority: 100000  # few and long: first
    conda:
        "../../envs/measure.yaml"
    threads: STUDY.threads
    resources:
        **ON_DEVICE,
        mem_mb=megabytes(2000),
        runtime=60,
    params:
        script=command("gradients.py"),
        code=code_of("gradients.py", "activations"),
        settings=to_json(STUDY.gradients["activations"]),
    message:
        "Measuring which rectifiers are active"
    shell:
        "python {params.script:q} activations --settings {params.settings:q}"
        + DEVICE_OPTIONS
        + "--coactivation {output.coactivation:q} --patterns {output.patterns:q} --rasters {output.rasters:q} 2> {log:q}"


rule gradient_paths:
    output:
        counts="results/gradients/path_counts.csv",
        lengths="results/gradients/path_lengths.csv",
    log:
        "results/logs/gradients/paths.log",
    benchmark:
        "results/benchmarks/gradients/paths.tsv"
    priority: 100000  # few and long: first
    conda:
        "../../envs/measure.yaml"
    threads: STUDY.threads
    resources:
        **ON_DEVICE,
        mem_mb=megabytes(2000),
        runtime=60,
    params:
        script=command("gradients.py"),
        code=code_of("gradients.py", "paths"),
        settings=to_json(STUDY.gradients["paths"]),
    message:
        "Counting paths"
    shell:
        "python {params.script:q} paths --settings {params.settings:q}"
        + DEVICE_OPTIONS
        + "--counts {output.counts:q} --lengths {output.lengths:q} 2> {log:q}"


rule gradient_linear_regions:
    output:
        table="results/gradients/linear_regions.csv",
    log:
        "results/logs/gradients/linear_regions.log",
    benchmark:
        "results/benchmarks/gradients/linear_regions.tsv"
    priority: 100000  # few and long: first
    conda:
        "../../envs/measure.yaml"
    threads: STUDY.threads
    resources:
        **ON_DEVICE,
        mem_mb=megabytes(2000),
        runtime=60,
    params:
        script=command("gradients.py"),
        code=code_of("gradients.py", "linear_regions"),
        settings=to_json(STUDY.gradients["linear_regions"]),
    message:
        "Counting linear regions along a line"
    shell:
        "python {params.script:q} linear_regions --settings {params.settings:q}"
        + DEVICE_OPTIONS
        + "--table {output.table:q} 2> {log:q}"


RANDOM_NETWORKS = [each.name for each in workflow.rules if each.name.startswith("gradient_")]


rule gradients:
    input:
        rules.gradient_theorems.output,
        rules.gradient_toy.output,
        rules.gradient_activations.output,
        rules.gradient_paths.output,
        rules.gradient_linear_regions.output,
