"""From the export to the two graphs that HTP takes, and the proof of each step (III and IV).

Reads results/{model}/onnx/ and results/{model}/checkpoint/. Writes beside them the frozen and the
simplified graphs, results/{model}/htp/ with the adapted graphs and their weights, and
results/{model}/c{ctx}/onnx_check.json. Only write_htp_weights writes weights; the graphs are about
1 MB each and share a data file.
"""


rule freeze_shapes:
    input:
        program=program("freeze_shapes", "graph"),
        model="results/{model}/onnx/model.onnx",
        data="results/{model}/onnx/model.onnx_data",
    output:
        graph="results/{model}/onnx/c{ctx}.static.{graph}.onnx",
    log:
        "logs/freeze_shapes/{model}/c{ctx}/{graph}.log",
    benchmark:
        "benchmarks/freeze_shapes/{model}/c{ctx}/{graph}.tsv"
    conda:
        "../envs/graph.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(5),
        disk_mb=100,
    params:
        tokens=tokens,
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --model {input.model:q} \
            --tokens {params.tokens} \
            --context {wildcards.ctx} \
            --output {output.graph:q}
        """


rule simplify_graph:
    input:
        program=program("simplify_graph", "graph"),
        graph="results/{model}/onnx/c{ctx}.static.{graph}.onnx",
        data="results/{model}/onnx/model.onnx_data",
    output:
        graph="results/{model}/onnx/c{ctx}.simplified.{graph}.onnx",
    log:
        "logs/simplify_graph/{model}/c{ctx}/{graph}.log",
    benchmark:
        "benchmarks/simplify_graph/{model}/c{ctx}/{graph}.tsv"
    conda:
        "../envs/graph.yaml"
    threads: 1
    resources:
        mem_mb=memory(2000),
        runtime=minutes(10),
        disk_mb=100,
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --model {input.graph:q} \
            --output {output.graph:q}
        """


rule write_htp_weights:
    input:
        program=program("write_htp_weights", "export"),
        checkpoint=CHECKPOINT,
    output:
        data="results/{model}/htp/weights.data",
        index="results/{model}/htp/weights.json",
    log:
        "logs/write_htp_weights/{model}.log",
    benchmark:
        "benchmarks/write_htp_weights/{model}.tsv"
    conda:
        "../envs/export.yaml"
    threads: 2
    resources:
        mem_mb=memory(1500, 2),
        runtime=minutes(10, 5),
        disk_mb=disk(2.5),
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --checkpoint results/{wildcards.model}/checkpoint \
            --data {output.data:q} \
            --index {output.index:q}
        """


rule adapt_graph:
    input:
        program=program("adapt_graph", "graph"),
        checkpoint=CHECKPOINT,
        index="results/{model}/htp/weights.json",
    output:
        graph="results/{model}/htp/c{ctx}.{graph}.onnx",
    log:
        "logs/adapt_graph/{model}/c{ctx}/{graph}.log",
    benchmark:
        "benchmarks/adapt_graph/{model}/c{ctx}/{graph}.tsv"
    conda:
        "../envs/graph.yaml"
    threads: 1
    resources:
        mem_mb=memory(1000),
        runtime=minutes(5),
        disk_mb=100,
    params:
        tokens=tokens,
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --checkpoint results/{wildcards.model}/checkpoint \
            --index {input.index:q} \
            --tokens {params.tokens} \
            --context {wildcards.ctx} \
            --output {output.graph:q}
        """


rule check_onnx:
    input:
        program=program("check_onnx", "export"),
        checkpoint=CHECKPOINT,
        records="results/{model}/c{ctx}/calibration/calibration.json",
        exported="results/{model}/onnx/model.onnx",
        exported_data="results/{model}/onnx/model.onnx_data",
        static=expand(
            "results/{{model}}/onnx/c{{ctx}}.static.{graph}.onnx", graph=GRAPHS
        ),
        simplified=expand(
            "results/{{model}}/onnx/c{{ctx}}.simplified.{graph}.onnx", graph=GRAPHS
        ),
        adapted=expand("results/{{model}}/htp/c{{ctx}}.{graph}.onnx", graph=GRAPHS),
        adapted_data="results/{model}/htp/weights.data",
    output:
        report="results/{model}/c{ctx}/onnx_check.json",
    log:
        "logs/check_onnx/{model}/c{ctx}.log",
    benchmark:
        "benchmarks/check_onnx/{model}/c{ctx}.tsv"
    conda:
        "../envs/export.yaml"
    threads: 2
    resources:
        mem_mb=memory(2000, 1.5),
        runtime=minutes(10, 5),
        disk_mb=100,
    params:
        tokens=BUILD.chunk,
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --checkpoint results/{wildcards.model}/checkpoint \
            --records {input.records:q} \
            --exported {input.exported:q} \
            --static {input.static:q} \
            --simplified {input.simplified:q} \
            --adapted {input.adapted:q} \
            --tokens {params.tokens} \
            --context {wildcards.ctx} \
            --threads {threads} \
            --output {output.report:q}
        """
