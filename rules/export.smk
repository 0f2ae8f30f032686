"""Optimum's export to ONNX (the article's step II.2).

Reads results/{model}/checkpoint/. Writes results/{model}/onnx/model.onnx and the data file that
holds its weights; both are a target and a reference, and graph.smk rewrites the graph only.
"""


rule export_onnx:
    input:
        program=program("export_onnx", "export"),
        checkpoint=CHECKPOINT,
    output:
        model="results/{model}/onnx/model.onnx",
        data="results/{model}/onnx/model.onnx_data",
    log:
        "logs/export_onnx/{model}.log",
    benchmark:
        "benchmarks/export_onnx/{model}.tsv"
    conda:
        "../envs/export.yaml"
    threads: 2
    resources:
        mem_mb=memory(2000, 5),
        runtime=minutes(10, 10),
        disk_mb=disk(5),
    params:
        opset=18,
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --checkpoint results/{wildcards.model}/checkpoint \
            --opset {params.opset} \
            --output-dir results/{wildcards.model}/onnx
        """
