"""The adapted graphs in the numbers of a recipe (the article's step V.1).

Reads results/{model}/htp/ and the calibration records. Writes results/{model}/c{ctx}/{recipe}/:
both graphs, the weights that they share and their encodings.
Nothing is made of graphs that the check refused, so a new check is a reason to make them again.
With `ancient` it would be none, but Snakemake then also overlooks every other reason that a job
has, a changed program say, whenever the check itself runs again.
"""


rule convert_fp16:
    input:
        program=program("convert_fp16", "graph"),
        check="results/{model}/c{ctx}/onnx_check.json",
        prefill="results/{model}/htp/c{ctx}.prefill.onnx",
        decode="results/{model}/htp/c{ctx}.decode.onnx",
        data="results/{model}/htp/weights.data",
    output:
        prefill="results/{model}/c{ctx}/{recipe}/prefill.onnx",
        decode="results/{model}/c{ctx}/{recipe}/decode.onnx",
        data="results/{model}/c{ctx}/{recipe}/weights.data",
        encodings="results/{model}/c{ctx}/{recipe}/encodings.json",
    log:
        "logs/convert_fp16/{model}/c{ctx}/{recipe}.log",
    benchmark:
        "benchmarks/convert_fp16/{model}/c{ctx}/{recipe}.tsv"
    wildcard_constraints:
        recipe=one_of(FLOAT_RECIPES),
    conda:
        "../envs/graph.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000, 1),
        runtime=minutes(5, 3),
        disk_mb=disk(0.6),
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --prefill {input.prefill:q} \
            --decode {input.decode:q} \
            --output-dir results/{wildcards.model}/c{wildcards.ctx}/{wildcards.recipe}
        """


rule quantize_graphs:
    input:
        program=program("quantize_graphs", "graph"),
        check="results/{model}/c{ctx}/onnx_check.json",
        prefill="results/{model}/htp/c{ctx}.prefill.onnx",
        decode="results/{model}/htp/c{ctx}.decode.onnx",
        data="results/{model}/htp/weights.data",
        checkpoint=CHECKPOINT,
        calibration="results/{model}/c{ctx}/calibration/calibration.json",
    output:
        prefill="results/{model}/c{ctx}/{recipe}/prefill.onnx",
        decode="results/{model}/c{ctx}/{recipe}/decode.onnx",
        data="results/{model}/c{ctx}/{recipe}/weights.data",
        encodings="results/{model}/c{ctx}/{recipe}/encodings.json",
    log:
        "logs/quantize_graphs/{model}/c{ctx}/{recipe}.log",
    benchmark:
        "benchmarks/quantize_graphs/{model}/c{ctx}/{recipe}.tsv"
    wildcard_constraints:
        recipe=one_of(QUANTIZED_RECIPES),
    conda:
        "../envs/graph.yaml"
    threads: 2
    resources:
        mem_mb=memory(2000, 2.5),
        runtime=minutes(15, 15),
        disk_mb=disk(1),
    params:
        tokens=BUILD.chunk,
        weight_bits=lambda wildcards: BUILD.recipes[wildcards.recipe].weight_bits,
        activation_bits=lambda wildcards: BUILD.recipes[
            wildcards.recipe
        ].activation_bits,
        kv_bits=lambda wildcards: BUILD.recipes[wildcards.recipe].kv_bits,
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --prefill {input.prefill:q} \
            --decode {input.decode:q} \
            --checkpoint results/{wildcards.model}/checkpoint \
            --calibration {input.calibration:q} \
            --tokens {params.tokens} \
            --context {wildcards.ctx} \
            --weight-bits {params.weight_bits} \
            --activation-bits {params.activation_bits} \
            --kv-bits {params.kv_bits} \
            --threads {threads} \
            --output-dir results/{wildcards.model}/c{wildcards.ctx}/{wildcards.recipe}
        """
