"""The report: is the model fit for the phone?

Reads every verify.json, genie.json, evaluation.json, context.json and the benchmarks. Writes
results/report/ with the figures, and results/report.html, which is Snakemake's own report around
them. It does not wait for acceptance, so a build that missed a limit has its report as well.
"""


report: "../report/workflow.rst"


rule draw_report:
    input:
        program=program("draw_report", "report"),
        verdicts=expand(f"{TARGET}/emulator/verify.json", **MATRIX),
        chats=expand(f"{TARGET}/emulator/genie.json", **MATRIX),
        contexts=expand(f"{TARGET}/context.json", **MATRIX),
        evaluations=expand("results/{model}/c{ctx}/{recipe}/evaluation.json", **MATRIX),
        checks=expand("results/{model}/c{ctx}/onnx_check.json", **MATRIX),
        summaries=expand("results/{model}/checkpoint.json", **MATRIX),
    output:
        verdict=report(
            "results/report/verdict.html",
            caption="../report/captions/verdict.rst",
            category="1. Verdict",
            labels={"result": "Is each binary accepted?"},
        ),
        accuracy=report(
            "results/report/accuracy.svg",
            caption="../report/captions/accuracy.rst",
            category="2. Quality",
            labels={"result": "Accuracy by recipe, cache by layer"},
        ),
        answers=report(
            "results/report/answers.html",
            caption="../report/captions/answers.rst",
            category="2. Quality",
            labels={"result": "Answers, float and quantised"},
        ),
        genie=report(
            "results/report/genie.html",
            caption="../report/captions/genie.rst",
            category="2. Quality",
            labels={"result": "Answers of the phone's runtime"},
        ),
        size=report(
            "results/report/size.svg",
            caption="../report/captions/size.rst",
            category="3. Size",
            labels={"result": "Size by recipe"},
        ),
        cost=report(
            "results/report/cost.svg",
            caption="../report/captions/cost.rst",
            category="4. Cost of the build",
            labels={"result": "Time and memory by rule"},
        ),
    log:
        "logs/draw_report.log",
    benchmark:
        "benchmarks/draw_report.tsv"
    conda:
        "../envs/report.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(5),
        disk_mb=100,
    params:
        weight_bits=[
            f"{recipe.name}={recipe.weight_bits or 16}"
            for recipe in BUILD.recipes.values()
        ],
        chips=[f"{soc.name}={soc.title}" for soc in BUILD.targets.values()],
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --verdicts {input.verdicts:q} \
            --chats {input.chats:q} \
            --contexts {input.contexts:q} \
            --evaluations {input.evaluations:q} \
            --checks {input.checks:q} \
            --summaries {input.summaries:q} \
            --weight-bits {params.weight_bits:q} \
            --chips {params.chips:q} \
            --benchmarks benchmarks \
            --output-dir results/report
        """


# Snakemake writes its report in a run of its own. As a job it is made again when a figure changed
# and also when another job failed, which --report-after-run and onsuccess are not. That run has
# the same configuration, sees only what the figures are made of, and takes no lock.
rule write_report:
    input:
        figures=rules.draw_report.output,
        text=workflow_file("report/workflow.rst"),
        style=workflow_file("report/style.css"),
        captions=[
            workflow_file(f"report/captions/{name}.rst")
            for name in rules.draw_report.output.keys()
        ],
    output:
        report="results/report.html",
    log:
        "logs/write_report.log",
    localrule: True
    conda:
        "../envs/report.yaml"
    params:
        snakefile=workflow_file("Snakefile"),
        config=[f"{key}={json.dumps(value)}" for key, value in sorted(config.items())],
    shell:
        r"""
        exec &> >(tee {log:q})

        snakemake \
            --snakefile {params.snakefile:q} \
            --cores 1 \
            --report {output.report:q} \
            --report-stylesheet {input.style:q} \
            --config {params.config:q} \
            -- {input.figures:q}
        """
