"""The proven binaries on the HTP emulator (the article's step VI).

Reads results/{model}/c{ctx}/{recipe}/{soc}/{graph}.bin and the recipe's subset of held-out text.
Writes results/{model}/c{ctx}/{recipe}/{soc}/emulator/ in qnn-net-run's layout, listed in run.json.
"""


rule run_emulator:
    input:
        program=program("run_emulator", "graph"),
        prefill="results/{model}/c{ctx}/{recipe}/{soc}/prefill.bin",
        decode="results/{model}/c{ctx}/{recipe}/{soc}/decode.bin",
        encodings="results/{model}/c{ctx}/{recipe}/encodings.json",
        subset="results/{model}/c{ctx}/{recipe}/subset.npz",
    output:
        run="results/{model}/c{ctx}/{recipe}/{soc}/emulator/run.json",
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
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --prefill {input.prefill:q} \
            --decode {input.decode:q} \
            --encodings {input.encodings:q} \
            --subset {input.subset:q} \
            --output {output.run:q}
        """
