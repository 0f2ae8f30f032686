"""From graphs to what the chip loads (the article's steps V.2 and V.3).

Reads results/{model}/c{ctx}/{recipe}/. Writes {soc}/prefill.bin and {soc}/decode.bin, which the
emulator can load and which prove the graphs; {soc}/context.bin, which holds both graphs with
shared weights and ships; {soc}/context.json about it; and on demand {graph}.dlc.
"""


rule compile_graph:
    input:
        toolchain,
        program=program("compile_graph", "graph"),
        graph="results/{model}/c{ctx}/{recipe}/{graph}.onnx",
        data="results/{model}/c{ctx}/{recipe}/weights.data",
    output:
        binary="results/{model}/c{ctx}/{recipe}/{soc}/{graph}.bin",
    log:
        "logs/compile_graph/{model}/c{ctx}/{recipe}/{soc}/{graph}.log",
    benchmark:
        "benchmarks/compile_graph/{model}/c{ctx}/{recipe}/{soc}/{graph}.tsv"
    conda:
        "../envs/graph.yaml"
    threads: 1
    resources:
        mem_mb=memory(2000, 4),
        runtime=minutes(10, 10),
        disk_mb=disk(2),
    params:
        soc_model=lambda wildcards: BUILD.targets[wildcards.soc].soc_model,
        arch=lambda wildcards: BUILD.targets[wildcards.soc].arch,
        vtcm_mb=lambda wildcards: BUILD.targets[wildcards.soc].vtcm_mb,
        graph_limit=lambda wildcards: option(
            "--graph-limit-mb", BUILD.targets[wildcards.soc].graph_limit_mb
        ),
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --model {input.graph:q} \
            --graph-name {wildcards.graph} \
            --soc-model {params.soc_model} \
            --arch {params.arch} \
            --vtcm-mb {params.vtcm_mb} \
            {params.graph_limit:q} \
            --output {output.binary:q}
        """


rule share_weights:
    input:
        program=program("share_weights", "graph"),
        prefill="results/{model}/c{ctx}/{recipe}/prefill.onnx",
        decode="results/{model}/c{ctx}/{recipe}/decode.onnx",
        data="results/{model}/c{ctx}/{recipe}/weights.data",
        proven=expand(
            "results/{{model}}/c{{ctx}}/{{recipe}}/{{soc}}/{graph}.bin", graph=GRAPHS
        ),
        made_from=[
            *CHECKPOINT,
            "results/{model}/c{ctx}/calibration/manifest.json",
            "results/{model}/c{ctx}/{recipe}/encodings.json",
        ],
    output:
        binary="results/{model}/c{ctx}/{recipe}/{soc}/context.bin",
        manifest="results/{model}/c{ctx}/{recipe}/{soc}/context.json",
    log:
        "logs/share_weights/{model}/c{ctx}/{recipe}/{soc}.log",
    benchmark:
        "benchmarks/share_weights/{model}/c{ctx}/{recipe}/{soc}.tsv"
    conda:
        "../envs/graph.yaml"
    threads: 1
    resources:
        mem_mb=memory(2000, 3),
        runtime=minutes(15, 10),
        disk_mb=disk(1),
    params:
        soc_model=lambda wildcards: BUILD.targets[wildcards.soc].soc_model,
        arch=lambda wildcards: BUILD.targets[wildcards.soc].arch,
        vtcm_mb=lambda wildcards: BUILD.targets[wildcards.soc].vtcm_mb,
        graph_limit=lambda wildcards: option(
            "--graph-limit-mb", BUILD.targets[wildcards.soc].graph_limit_mb
        ),
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --prefill {input.prefill:q} \
            --decode {input.decode:q} \
            --proven {input.proven:q} \
            --soc {wildcards.soc} \
            --soc-model {params.soc_model} \
            --arch {params.arch} \
            --vtcm-mb {params.vtcm_mb} \
            {params.graph_limit:q} \
            --made-from {input.made_from:q} \
            --output {output.binary:q} \
            --manifest {output.manifest:q}
        """


rule write_dlc:
    input:
        toolchain,
        program=program("write_dlc", "graph"),
        graph="results/{model}/c{ctx}/{recipe}/{graph}.onnx",
        data="results/{model}/c{ctx}/{recipe}/weights.data",
    output:
        dlc="results/{model}/c{ctx}/{recipe}/{graph}.dlc",
    log:
        "logs/write_dlc/{model}/c{ctx}/{recipe}/{graph}.log",
    benchmark:
        "benchmarks/write_dlc/{model}/c{ctx}/{recipe}/{graph}.tsv"
    conda:
        "../envs/graph.yaml"
    threads: 1
    resources:
        mem_mb=memory(2000, 4),
        runtime=minutes(10, 10),
        disk_mb=disk(2),
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --model {input.graph:q} \
            --graph-name {wildcards.graph} \
            --output {output.dlc:q}
        """
