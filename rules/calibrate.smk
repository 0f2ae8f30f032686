"""Records of the fine-tuning data, rendered and tokenised (the article's step V.1).

Reads the model's data and results/{model}/checkpoint/. Writes results/{model}/c{ctx}/calibration/:
the records for calibration, the ones held out for verification, and where they come from.
"""


rule select_records:
    input:
        program=program("select_records", "export"),
        checkpoint=CHECKPOINT,
        data=lambda wildcards: BUILD.models[wildcards.model].data_files,
    output:
        calibration="results/{model}/c{ctx}/calibration/calibration.json",
        heldout="results/{model}/c{ctx}/calibration/heldout.json",
        manifest="results/{model}/c{ctx}/calibration/manifest.json",
    log:
        "logs/select_records/{model}/c{ctx}.log",
    benchmark:
        "benchmarks/select_records/{model}/c{ctx}.tsv"
    conda:
        "../envs/export.yaml"
    threads: 1
    resources:
        mem_mb=memory(2000),
        runtime=minutes(15),
        disk_mb=100,
    params:
        dataset=lambda wildcards: option(
            "--dataset", BUILD.models[wildcards.model].dataset
        ),
        records=BUILD.calibration["records"],
        held_out=BUILD.calibration["held_out"],
        seed=BUILD.calibration["seed"],
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --data {input.data[0]:q} \
            {params.dataset:q} \
            --checkpoint results/{wildcards.model}/checkpoint \
            --context {wildcards.ctx} \
            --records {params.records} \
            --held-out {params.held_out} \
            --seed {params.seed} \
            --output-dir results/{wildcards.model}/c{wildcards.ctx}/calibration
        """
