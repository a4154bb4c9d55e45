# Gradients of networks at initialisation, against theory and as shown in the paper.


rule gradient_theorems:
    input:
        script=command("gradients.py"),
        sources=sources("gradients.py"),
    output:
        "results/gradients/gradient_covariance.csv",
    log:
        "results/logs/gradients/theorems.log",
    benchmark:
        "results/benchmarks/gradients/theorems.tsv"
    priority: 100000  # few and long: first
    conda:
        "../../envs/measure.yaml"
    threads: 1
    resources:
        mem_mb=megabytes(3000),
        runtime=60,
        device=STUDY.device,
    params:
        settings=to_json(STUDY.gradients["theorems"]),
    message:
        "Measuring gradient covariances against the theorems"
    shell:
        "python {input.script:q} theorems --settings {params.settings:q} --threads {threads}"
        " --device {resources.device} --table {output:q} 2> {log:q}"


rule gradient_toy:
    input:
        script=command("gradients.py"),
        sources=sources("gradients.py"),
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
    threads: 1
    resources:
        mem_mb=megabytes(3000),
        runtime=60,
        device=STUDY.device,
    params:
        settings=to_json(STUDY.gradients["toy"]),
    message:
        "Measuring gradients on a line of inputs"
    shell:
        "python {input.script:q} toy --settings {params.settings:q} --threads {threads}"
        " --device {resources.device} --gradients {output.gradients:q}"
        " --autocorrelation {output.autocorrelation:q} 2> {log:q}"


rule gradients:
    input:
        rules.gradient_theorems.output,
        rules.gradient_toy.output,
