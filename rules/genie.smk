"""The phone's runtime, Genie, on the HTP emulator.

Reads the checkpoint, the single-graph binaries and the graphs that they were compiled from. Writes
results/{model}/chat/, the prompt template as plain strings and the questions with the float model's
answers; and per chip emulator/genie.json, what Genie answers beside the CPU, which verify.smk
judges.
"""


rule prepare_chat:
    input:
        program=program("prepare_chat", "export"),
        checkpoint=CHECKPOINT,
    output:
        template="results/{model}/chat/prompt_template.json",
        prompts="results/{model}/chat/prompts.json",
    log:
        "logs/prepare_chat/{model}.log",
    benchmark:
        "benchmarks/prepare_chat/{model}.tsv"
    # It refuses in seconds what Genie could not take after everything was compiled.
    priority: 1
    conda:
        "../envs/export.yaml"
    threads: 1
    resources:
        mem_mb=memory(2000, 2.5),
        runtime=minutes(10, 10),
        disk_mb=100,
    params:
        questions=BUILD.genie["prompts"],
        answer=BUILD.genie["tokens"],
        context=min(BUILD.contexts),
        chunk=BUILD.chunk,
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --checkpoint results/{wildcards.model}/checkpoint \
            --questions {params.questions:q} \
            --count {params.answer} \
            --context {params.context} \
            --tokens {params.chunk} \
            --threads {threads} \
            --template {output.template:q} \
            --prompts {output.prompts:q}
        """


rule run_genie:
    input:
        program=program("run_genie", "graph"),
        binaries=expand(
            "results/{{model}}/c{{ctx}}/{{recipe}}/{{soc}}/{graph}.bin", graph=GRAPHS
        ),
        graphs=expand(
            "results/{{model}}/c{{ctx}}/{{recipe}}/{graph}.onnx", graph=GRAPHS
        ),
        data="results/{model}/c{ctx}/{recipe}/weights.data",
        encodings="results/{model}/c{ctx}/{recipe}/encodings.json",
        checkpoint=[
            "results/{model}/checkpoint/config.json",
            "results/{model}/checkpoint/tokenizer.json",
        ],
        template="results/{model}/chat/prompt_template.json",
        prompts="results/{model}/chat/prompts.json",
    output:
        result="results/{model}/c{ctx}/{recipe}/{soc}/emulator/genie.json",
    log:
        "logs/run_genie/{model}/c{ctx}/{recipe}/{soc}.log",
    benchmark:
        "benchmarks/run_genie/{model}/c{ctx}/{recipe}/{soc}.tsv"
    conda:
        "../envs/graph.yaml"
    threads: 1
    resources:
        mem_mb=memory(2000, 4),
        runtime=minutes(60, 120),
        disk_mb=100,
    params:
        tokens=BUILD.chunk,
        answer=BUILD.genie["tokens"],
        soc_model=lambda wildcards: BUILD.targets[wildcards.soc].soc_model,
        arch=lambda wildcards: BUILD.targets[wildcards.soc].arch,
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --binaries {input.binaries:q} \
            --graphs {input.graphs:q} \
            --checkpoint results/{wildcards.model}/checkpoint \
            --encodings {input.encodings:q} \
            --template {input.template:q} \
            --prompts {input.prompts:q} \
            --tokens {params.tokens} \
            --context {wildcards.ctx} \
            --soc-model {params.soc_model} \
            --arch {params.arch} \
            --count {params.answer} \
            --threads {threads} \
            --output {output.result:q}
        """
