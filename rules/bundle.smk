"""What goes to the phone, and the proof that the phone's runtime can run it.

Reads the proven binaries, the graphs and the checkpoint. Writes results/{model}/chat/, the prompt
template as plain strings and the questions that are asked; per chip emulator/genie.json, what Genie
answers on the emulator beside the CPU and the float model; and, of an accepted binary, bundle/ for
Genie on a phone, bundle-ort/ for programs with ONNX Runtime and bundle.tar.zst, both on demand.
"""

# What is in them besides the manifest and the metadata.
BUNDLE = [
    f"{TARGET}/bundle/{name}"
    for name in [
        "context.bin",
        "genie_config.json",
        "htp_backend_ext_config.json",
        "tokenizer.json",
        "prompt_template.json",
        "run_on_phone.sh",
        "README.md",
        "LICENSES",
    ]
]
ORT_BUNDLE = [
    f"{TARGET}/bundle-ort/{name}"
    for name in [
        "prefill.onnx",
        "prefill.bin",
        "decode.onnx",
        "decode.bin",
        "tables.npz",
        "tokenizer.json",
        "prompt_template.json",
        "run_with_onnxruntime.py",
    ]
]


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
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --checkpoint results/{wildcards.model}/checkpoint \
            --questions {params.questions:q} \
            --tokens {params.answer} \
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
        outputs="results/{model}/c{ctx}/{recipe}/{soc}/emulator/outputs.npz",
        cpu_outputs="results/{model}/c{ctx}/{recipe}/cpu_outputs.npz",
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
            --outputs {input.outputs:q} \
            --cpu-outputs {input.cpu_outputs:q} \
            --tokens {params.tokens} \
            --context {wildcards.ctx} \
            --soc-model {params.soc_model} \
            --arch {params.arch} \
            --count {params.answer} \
            --threads {threads} \
            --output {output.result:q}
        """


rule make_bundle:
    input:
        program=program("make_bundle", "bundle"),
        accepted="results/{model}/c{ctx}/{recipe}/{soc}/emulator/accepted.txt",
        binary="results/{model}/c{ctx}/{recipe}/{soc}/context.bin",
        description="results/{model}/c{ctx}/{recipe}/{soc}/context.json",
        checkpoint=[
            "results/{model}/checkpoint/config.json",
            "results/{model}/checkpoint/tokenizer.json",
        ],
        summary="results/{model}/checkpoint.json",
        template="results/{model}/chat/prompt_template.json",
        calibration="results/{model}/c{ctx}/calibration/manifest.json",
        verdict="results/{model}/c{ctx}/{recipe}/{soc}/emulator/verify.json",
        genie="results/{model}/c{ctx}/{recipe}/{soc}/emulator/genie.json",
        requirements=workflow_file("requirements.txt"),
        readme=workflow_file("bundle/README.md"),
        script=workflow_file("bundle/run_on_phone.sh"),
    output:
        manifest="results/{model}/c{ctx}/{recipe}/{soc}/bundle/MANIFEST.json",
        files=BUNDLE,
    log:
        "logs/make_bundle/{model}/c{ctx}/{recipe}/{soc}.log",
    benchmark:
        "benchmarks/make_bundle/{model}/c{ctx}/{recipe}/{soc}.tsv"
    conda:
        "../envs/bundle.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=minutes(5, 5),
        disk_mb=disk(1),
    params:
        tokens=BUILD.chunk,
        part=lambda wildcards: BUILD.targets[wildcards.soc].part,
        chip=lambda wildcards: BUILD.targets[wildcards.soc].title,
        settings=lambda wildcards: json.dumps(
            {
                "model": vars(BUILD.models[wildcards.model]),
                "recipe": vars(BUILD.recipes[wildcards.recipe]),
                "target": vars(BUILD.targets[wildcards.soc]),
                "calibration": BUILD.calibration,
                "emulator": BUILD.emulator,
                "genie": BUILD.genie,
            },
            sort_keys=True,
        ),
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --binary {input.binary:q} \
            --description {input.description:q} \
            --checkpoint results/{wildcards.model}/checkpoint \
            --summary {input.summary:q} \
            --template {input.template:q} \
            --calibration {input.calibration:q} \
            --verdict {input.verdict:q} \
            --genie {input.genie:q} \
            --requirements {input.requirements:q} \
            --model {wildcards.model:q} \
            --recipe {wildcards.recipe} \
            --context {wildcards.ctx} \
            --tokens {params.tokens} \
            --part {params.part:q} \
            --chip {params.chip:q} \
            --settings {params.settings:q} \
            --readme {input.readme:q} \
            --script {input.script:q} \
            --output-dir results/{wildcards.model}/c{wildcards.ctx}/{wildcards.recipe}/{wildcards.soc}/bundle
        """


rule pack_bundle:
    input:
        program=program("pack_bundle", "bundle"),
        manifest="results/{model}/c{ctx}/{recipe}/{soc}/bundle/MANIFEST.json",
        files=BUNDLE,
    output:
        archive="results/{model}/c{ctx}/{recipe}/{soc}/bundle.tar.zst",
    log:
        "logs/pack_bundle/{model}/c{ctx}/{recipe}/{soc}.log",
    benchmark:
        "benchmarks/pack_bundle/{model}/c{ctx}/{recipe}/{soc}.tsv"
    conda:
        "../envs/bundle.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=minutes(5, 10),
        disk_mb=disk(1),
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --bundle results/{wildcards.model}/c{wildcards.ctx}/{wildcards.recipe}/{wildcards.soc}/bundle \
            --output {output.archive:q}
        """


rule make_ort_bundle:
    input:
        program=program("make_ort_bundle", "bundle"),
        accepted="results/{model}/c{ctx}/{recipe}/{soc}/emulator/accepted.txt",
        prefill="results/{model}/c{ctx}/{recipe}/{soc}/prefill.bin",
        decode="results/{model}/c{ctx}/{recipe}/{soc}/decode.bin",
        manifest="results/{model}/c{ctx}/{recipe}/{soc}/bundle/MANIFEST.json",
        checkpoint=[
            "results/{model}/checkpoint/config.json",
            "results/{model}/checkpoint/tokenizer.json",
        ],
        encodings="results/{model}/c{ctx}/{recipe}/encodings.json",
        template="results/{model}/chat/prompt_template.json",
        example=workflow_file("bundle/run_with_onnxruntime.py"),
    output:
        metadata="results/{model}/c{ctx}/{recipe}/{soc}/bundle-ort/metadata.json",
        files=ORT_BUNDLE,
    log:
        "logs/make_ort_bundle/{model}/c{ctx}/{recipe}/{soc}.log",
    benchmark:
        "benchmarks/make_ort_bundle/{model}/c{ctx}/{recipe}/{soc}.tsv"
    conda:
        "../envs/bundle.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=minutes(5, 5),
        disk_mb=disk(1),
    params:
        tokens=BUILD.chunk,
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --prefill {input.prefill:q} \
            --decode {input.decode:q} \
            --manifest {input.manifest:q} \
            --checkpoint results/{wildcards.model}/checkpoint \
            --encodings {input.encodings:q} \
            --template {input.template:q} \
            --example {input.example:q} \
            --tokens {params.tokens} \
            --context {wildcards.ctx} \
            --output-dir results/{wildcards.model}/c{wildcards.ctx}/{wildcards.recipe}/{wildcards.soc}/bundle-ort
        """
