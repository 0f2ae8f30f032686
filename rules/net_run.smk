"""The proven binaries on the HTP emulator (the article's step VI).

Reads results/{model}/c{ctx}/{recipe}/{soc}/{graph}.bin and results/{model}/c{ctx}/reference.npz.
Writes results/{model}/c{ctx}/{recipe}/{soc}/emulator/: what every step computed, and the first step
of each graph in qnn-net-run's layout.
"""


rule run_emulator:
    input:
        program=program("run_emulator", "graph"),
        prefill="results/{model}/c{ctx}/{recipe}/{soc}/prefill.bin",
        decode="results/{model}/c{ctx}/{recipe}/{soc}/decode.bin",
        checkpoint="results/{model}/checkpoint/config.json",
        encodings="results/{model}/c{ctx}/{recipe}/encodings.json",
        reference="results/{model}/c{ctx}/reference.npz",
    output:
        run="results/{model}/c{ctx}/{recipe}/{soc}/emulator/run.json",
        outputs="results/{model}/c{ctx}/{recipe}/{soc}/emulator/outputs.npz",
        lists=expand(
            "results/{{model}}/c{{ctx}}/{{recipe}}/{{soc}}/emulator/{graph}/input_list.txt",
            graph=GRAPHS,
        ),
        logits=expand(
            "results/{{model}}/c{{ctx}}/{{recipe}}/{{soc}}/emulator/{graph}/Result_0/logits.raw",
            graph=GRAPHS,
        ),
    log:
        "logs/run_emulator/{model}/c{ctx}/{recipe}/{soc}.log",
    benchmark:
        "benchmarks/run_emulator/{model}/c{ctx}/{recipe}/{soc}.tsv"
    conda:
        "../envs/graph.yaml"
    threads: 1
    resources:
        mem_mb=memory(2000, 4),
        runtime=minutes(60, 120),
        disk_mb=2000,
    params:
        tokens=BUILD.chunk,
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --prefill {input.prefill:q} \
            --decode {input.decode:q} \
            --checkpoint results/{wildcards.model}/checkpoint \
            --encodings {input.encodings:q} \
            --reference {input.reference:q} \
            --tokens {params.tokens} \
            --context {wildcards.ctx} \
            --output-dir results/{wildcards.model}/c{wildcards.ctx}/{wildcards.recipe}/{wildcards.soc}/emulator
        """
