"""The C++ programs for a phone, built by an Android NDK, on demand or for the bundles.

The bundles ask for them where the environment variable ANDROID_NDK_ROOT is set. Reads android/ and
that variable. Writes results/android/ with the program over QNN, the JNI library over Genie, and
build.json, which names the NDK's version.
"""


rule build_android:
    input:
        program=program("build_android", "report"),
        sources=[
            os.path.relpath(path)
            for pattern in ["CMakeLists.txt", "*.cpp", "*.h"]
            for path in sorted((ROOT / "android").glob(pattern))
        ],
    output:
        runner="results/android/qnn_runner",
        library="results/android/libsnapbake_genie.so",
        description="results/android/build.json",
    log:
        "logs/build_android.log",
    benchmark:
        "benchmarks/build_android.tsv"
    conda:
        "../envs/report.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
        disk_mb=100,
    params:
        sources=lambda wildcards, input: os.path.dirname(input.sources[0]),
        ndk=option("--ndk", os.environ.get("ANDROID_NDK_ROOT")),
    shell:
        r"""
        exec &> >(tee {log:q})

        python {input.program[0]:q} \
            --sources {params.sources:q} \
            {params.ndk:q} \
            --output-dir results/android
        """
