"""What goes to the phone.

Reads an accepted binary and everything that says what it is. Writes, per chip, bundle/ for Genie
and C++ on a phone and, on demand, bundle-ort/ for programs with ONNX Runtime and bundle.tar.zst.
"""

from snapbake.android_build import ABI, FILES as PROGRAMS
from snapbake.android_sources import android_sources

try:
    ANDROID_SOURCES = android_sources(ROOT / "android")
except SnapbakeError as error:
    stop(error)
# With an NDK on the machine the programs are built for the phone and go along.
ANDROID_PROGRAMS = PROGRAMS if os.environ.get("ANDROID_NDK_ROOT") else []
# What is in the bundles besides the manifest and the metadata.
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
        "android/runner.json",
        *(f"android/{name}" for name in ANDROID_SOURCES),
        *(f"android/{ABI}/{name}" for name in ANDROID_PROGRAMS),
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
        encodings="results/{model}/c{ctx}/{recipe}/encodings.json",
        android=[workflow_file(f"android/{name}") for name in ANDROID_SOURCES],
        programs=[f"results/android/{name}" for name in ANDROID_PROGRAMS],
        built=["results/android/build.json"] if ANDROID_PROGRAMS else [],
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
        mem_mb=memory(1000),
        runtime=minutes(5, 5),
        disk_mb=disk(1),
    params:
        tokens=BUILD.chunk,
        android=lambda wildcards, input: os.path.dirname(input.android[0]),
        programs=option("--programs", "results/android" if ANDROID_PROGRAMS else None),
        part=lambda wildcards: BUILD.targets[wildcards.soc].part,
        chip=lambda wildcards: BUILD.targets[wildcards.soc].title,
        settings=lambda wildcards: json.dumps(
            BUILD.settings(wildcards.model, wildcards.recipe, wildcards.soc),
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
            --encodings {input.encodings:q} \
            --android {params.android:q} \
            {params.programs:q} \
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
        mem_mb=memory(1000),
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
        mem_mb=memory(1000),
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
