# Figures, one rule each, named like its figure. A figure depends on what it shows and on its own code.

OF_ONE_NETWORK = [name for name, shows in FIGURES.items() if shows == "network"]
# Other figures are drawn from files of the networks they show, or from files of the study.
SCORES = "results/spectra/{network}/residual_alignment.csv"
HISTORY = "results/networks/{network}/history.csv"
LAYERS = "results/gradients/{network}/layers.csv"
FIGURE_INPUTS = {
    **dict.fromkeys(FIGURES, SCORES),
    **dict.fromkeys([*OF_ONE_NETWORK, "ra_no_skip"], "results/spectra/{network}/spectra.nc"),
    "ra_stochastic_depth": [SCORES, "results/spectra/{network}/spectra_per_block.csv"],
    "he1_degradation": HISTORY,
    "he7_layer_responses": LAYERS,
    "he_gradient_norms": LAYERS,
    "mechanisms": [SCORES, HISTORY, "results/gradients/{network}/covariance.csv"],
    "sg6_looks_linear": HISTORY,
    "sg_momentum": [HISTORY, "results/gradients/{network}/similarity.csv"],
    "sg5_effective_rank": made_by(rules.effective_rank),
    "sg_theorems": "results/gradients/gradient_covariance.csv",
    "sg1_gradients": "results/gradients/toy_gradients.npz",
    "sg3_coactivation": "results/gradients/coactivation.csv",
    "sg4_activation_patterns": [
        "results/gradients/activation_patterns.csv",
        "results/gradients/activation_patterns.npz",
    ],
    "sg_paths": ["results/gradients/path_counts.csv", "results/gradients/path_lengths.csv"],
    "sg_linear_regions": "results/gradients/linear_regions.csv",
    "sg2_autocorrelation": "results/gradients/autocorrelation.csv",
    "unconstrained_jacobians": made_by(rules.unconstrained_model),
    "claims": name_of(rules.claims_table.output.table),
}
# Tables name recipes; these figures have values of them on an axis.
RECIPE_KEYS = {
    "ra_stochastic_depth": ("stochastic_depth", "stochastic_depth_per"),
    "ra_weight_decay": ("weight_decay", "weight_decay_batch_norm"),
    "sg6_looks_linear": ("initialisation", "learning_rate"),
    "sg_momentum": ("learning_rate", "momentum"),
}


for name in STUDY.figures:

    rule:
        name:
            name
        input:
            files=partial(of_figure, name),
        output:
            pdf=f"results/figures/{name}.pdf",
            png=report(
                f"results/figures/{name}.png",
                caption=f"../report/{name}.rst",
                category=category_of(name),
                labels={"figure": f"{name}: {about_figure(name)}"},
            ),
        log:
            f"results/logs/figures/{name}.log",
        localrule: True
        conda:
            "../../envs/figures.yaml"
        threads: 1
        resources:
            mem_mb=megabytes(1000),
            runtime=10,
        params:
            script=command("figure.py"),
            code=code_of("figure.py", f"figures/{name}"),
            figure=name,
            recipes=recipe_option(STUDY.figures[name], RECIPE_KEYS.get(name)),
            shows=grid_text.shows(STUDY, name),
        message:
            "Drawing {output.pdf}"
        shell:
            "python {params.script:q} {params.figure} --input {input.files:q}"
            " {params.recipes:q} --pdf {output.pdf:q} --png {output.png:q} 2> {log:q}"


# The figures of one network, for any network of the study, by its path: external/NAME as well.
for name in OF_ONE_NETWORK:

    rule:
        name:
            f"{name}_of_network"
        input:
            files=FIGURE_INPUTS[name],
        output:
            pdf=f"results/figures/{{network}}/{name}.pdf",
            png=report(
                f"results/figures/{{network}}/{name}.png",
                caption=f"../report/{name}.rst",
                category="6. Networks one by one",
                labels={"figure": f"{name} of {{network}}"},
            ),
        log:
            f"results/logs/figures/{{network}}/{name}.log",
        wildcard_constraints:
            network=f"{NETWORK_PATH}|external/(?:{one_of(STUDY.external)})",
        localrule: True
        conda:
            "../../envs/figures.yaml"
        threads: 1
        resources:
            mem_mb=megabytes(1000),
            runtime=10,
        params:
            script=command("figure.py"),
            code=code_of("figure.py", f"figures/{name}"),
            figure=name,
            shows=lambda wildcards: grid_text.networks(STUDY, [wildcards.network]),
        message:
            "Drawing {output.pdf}"
        shell:
            "python {params.script:q} {params.figure} --input {input.files:q}"
            " --pdf {output.pdf:q} --png {output.png:q} 2> {log:q}"


rule figures:
    input:
        expand("results/figures/{name}.{kind}", name=STUDY.figures, kind=["pdf", "png"]),
