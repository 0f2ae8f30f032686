"""Is the binary as good as the recipe promises (the article's step VI)?

Reads the held-out text, the graphs and the emulator's run. Writes reference.npz, what PyTorch makes
of the text; per recipe evaluation.json, onnxruntime on the CPU against PyTorch; per chip
verify.json, which measures and judges and never fails, so that the report can show a bad result;
and accepted.txt, which is only written when no limit is exceeded and Genie answers as the CPU does,
so that the build fails otherwise.
"""


rule compute_reference:
    input:
        program=program("compute_reference", "export"),
        checkpoint=CHECKPOINT,
        heldout="results/{model}/c{ctx}/calibration/heldout.json",
    output:
        reference="results/{model}/c{ctx}/reference.npz",
    log:
        "logs/compute_reference/{model}/c{ctx}.log",
    benchmark:
        "benchmarks/compute_reference/{model}/c{ctx}.tsv"
    conda:
        "../envs/export.yaml"
    threads: 2
    resources:
        mem_mb=memory(2000, 2.5),
        runtime=minutes(10, 10),
        disk_mb=500,
    params:
        tokens=BUILD.chunk,
        records=BUILD.emulator["records"],
        generated=BUILD.emulator["generated_tokens"],
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --checkpoint results/{wildcards.model}/checkpoint \
            --held-out {input.heldout:q} \
            --tokens {params.tokens} \
            --readings {params.records} \
            --generate {params.generated} \
            --threads {threads} \
            --output {output.reference:q}
        """


rule evaluate_recipe:
    input:
        program=program("evaluate_recipe", "export"),
        checkpoint=CHECKPOINT,
        prefill="results/{model}/c{ctx}/{recipe}/prefill.onnx",
        decode="results/{model}/c{ctx}/{recipe}/decode.onnx",
        data="results/{model}/c{ctx}/{recipe}/weights.data",
        encodings="results/{model}/c{ctx}/{recipe}/encodings.json",
        heldout="results/{model}/c{ctx}/calibration/heldout.json",
        reference="results/{model}/c{ctx}/reference.npz",
    output:
        evaluation="results/{model}/c{ctx}/{recipe}/evaluation.json",
        cpu_outputs="results/{model}/c{ctx}/{recipe}/cpu_outputs.npz",
    log:
        "logs/evaluate_recipe/{model}/c{ctx}/{recipe}.log",
    benchmark:
        "benchmarks/evaluate_recipe/{model}/c{ctx}/{recipe}.tsv"
    conda:
        "../envs/export.yaml"
    threads: 2
    resources:
        mem_mb=memory(2000, 2.5),
        runtime=minutes(20, 20),
        disk_mb=500,
    params:
        tokens=BUILD.chunk,
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --checkpoint results/{wildcards.model}/checkpoint \
            --prefill {input.prefill:q} \
            --decode {input.decode:q} \
            --encodings {input.encodings:q} \
            --held-out {input.heldout:q} \
            --reference {input.reference:q} \
            --tokens {params.tokens} \
            --threads {threads} \
            --output {output.evaluation:q} \
            --cpu-output {output.cpu_outputs:q}
        """


rule verify_target:
    input:
        program=program("verify_target", "graph"),
        run="results/{model}/c{ctx}/{recipe}/{soc}/emulator/run.json",
        outputs="results/{model}/c{ctx}/{recipe}/{soc}/emulator/outputs.npz",
        evaluation="results/{model}/c{ctx}/{recipe}/evaluation.json",
        cpu_outputs="results/{model}/c{ctx}/{recipe}/cpu_outputs.npz",
        reference="results/{model}/c{ctx}/reference.npz",
        genie="results/{model}/c{ctx}/{recipe}/{soc}/emulator/genie.json",
    output:
        verdict="results/{model}/c{ctx}/{recipe}/{soc}/emulator/verify.json",
    log:
        "logs/verify_target/{model}/c{ctx}/{recipe}/{soc}.log",
    benchmark:
        "benchmarks/verify_target/{model}/c{ctx}/{recipe}/{soc}.tsv"
    conda:
        "../envs/graph.yaml"
    threads: 1
    resources:
        mem_mb=memory(2000),
        runtime=minutes(10),
        disk_mb=100,
    params:
        limits=lambda wildcards: [
            f"{name}={value}"
            for name, value in sorted(BUILD.recipes[wildcards.recipe].limits.items())
        ],
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --run {input.run:q} \
            --outputs {input.outputs:q} \
            --evaluation {input.evaluation:q} \
            --cpu-outputs {input.cpu_outputs:q} \
            --reference {input.reference:q} \
            --genie {input.genie:q} \
            --limits {params.limits:q} \
            --output {output.verdict:q}
        """


rule accept_target:
    input:
        program=program("accept_target", "graph"),
        verdict="results/{model}/c{ctx}/{recipe}/{soc}/emulator/verify.json",
    output:
        accepted="results/{model}/c{ctx}/{recipe}/{soc}/emulator/accepted.txt",
    log:
        "logs/accept_target/{model}/c{ctx}/{recipe}/{soc}.log",
    localrule: True
    conda:
        "../envs/graph.yaml"
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --verdict {input.verdict:q} \
            --output {output.accepted:q}
        """
