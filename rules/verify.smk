"""Is the binary as good as the recipe promises (the article's step VI)?

Reads the emulator's run and the recipe's evaluation. Writes verify.json, which measures and judges
and never fails, so that the report can show a bad result; and accepted.txt, which is only written
when no limit is exceeded, so that the build fails otherwise.
"""


rule verify_target:
    input:
        program=program("verify_target", "graph"),
        run="results/{model}/c{ctx}/{recipe}/{soc}/emulator/run.json",
        outputs="results/{model}/c{ctx}/{recipe}/{soc}/emulator/outputs.npz",
        evaluation="results/{model}/c{ctx}/{recipe}/evaluation.json",
        subset="results/{model}/c{ctx}/{recipe}/subset.npz",
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
        mem_mb=2000,
        runtime=10,
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
            --subset {input.subset:q} \
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
