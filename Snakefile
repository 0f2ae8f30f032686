"""snapbake: from a fine-tuned language model to a verified Qualcomm HTP context binary.

    snakemake --cores 4 all

builds what config/config.yaml names, into results/, where any file can be asked for by its path.
"""

from snakemake.utils import min_version

min_version("9.27")


configfile: f"{workflow.basedir}/config/config.yaml"


include: "rules/common.smk"
include: "rules/checkpoint.smk"
include: "rules/export.smk"
include: "rules/graph.smk"
include: "rules/calibrate.smk"
include: "rules/quantize.smk"
include: "rules/compile.smk"
include: "rules/net_run.smk"
include: "rules/genie.smk"
include: "rules/verify.smk"
include: "rules/bundle.smk"
include: "rules/android.smk"
include: "rules/report.smk"


rule all:
    default_target: True
    input:
        checks=expand("results/{model}/c{ctx}/onnx_check.json", **MATRIX),
        contexts=expand(f"{TARGET}/context.bin", **MATRIX),
        bundles=expand(f"{TARGET}/bundle/MANIFEST.json", **MATRIX),
        report="results/report.html",


onerror:
    print_errors_last()
