# Why do residual networks work? From images to figures, tables and the verdict on each claim.
#
#   snakemake --cores all                                          everything
#   snakemake --cores all networks                                 one stage: data, networks,
#                                                                  spectra, gradients, network_gradients,
#                                                                  theory, tables, figures, external
#   snakemake --cores 1 plan                                       what it takes, before it runs
#   snakemake --cores all results/figures/ra_depth.pdf             one file and what it needs
#   snakemake --report results/report.html                         after a run: all figures in one file

from snakemake.utils import min_version

min_version("9.27")


report: "workflow/report/workflow.rst"


# The study: config.yaml and files given with --configfile, checked.
include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/networks.smk"
include: "workflow/rules/spectra.smk"
include: "workflow/rules/gradients.smk"
include: "workflow/rules/network_gradients.smk"
include: "workflow/rules/theory.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/external.smk"
include: "workflow/rules/explorer.smk"
include: "workflow/rules/plan.smk"


localrules:
    all,
    data,
    networks,
    spectra,
    gradients,
    network_gradients,
    theory,
    tables,
    figures,
    external,


# The stages one by one: Snakemake does not miss a file that only others need.
rule all:
    default_target: True
    input:
        rules.data.input,
        rules.networks.input,
        rules.spectra.input,
        rules.gradients.input,
        rules.network_gradients.input,
        rules.theory.input,
        rules.tables.input,
        rules.figures.input,
        rules.external.input,
        rules.explorer.output.page,


onstart:
    hold_study()
    record_run("running")
    watch_run()


onsuccess:
    unwatch_run()
    record_run("finished")


onerror:
    unwatch_run()
    record_run("failed")


check_targets()
