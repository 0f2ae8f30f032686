#!/bin/sh
# Runs @name@ on a phone: checks phone and SDK, copies what is needed, asks, fetches the answer.
#
#   export QNN_SDK_ROOT=/path/to/qairt/@qairt@
#   ./run_on_phone.sh "your question"
#   ./run_on_phone.sh --qnn-runner ids.txt --count 64
#
# The first asks Genie, the second qnn_runner, the C++ program of android/: token ids in, token ids
# out, and its options may follow; README.md says more. QNN_RUNNER names it where it was built by
# hand. ANDROID_SERIAL chooses among several phones. The answer is also written to answer.txt here.
set -eu

part=@part@
arch=@arch@
qairt=@qairt@
prefix=@prefix@
suffix=@suffix@
# What the model's template takes away around a question: characters in octal bytes.
spaces='@spaces@'
folder=/data/local/tmp/@folder@

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

# Takes the characters of $spaces away at both ends of $question.
trim() {
    before=
    while [ "$question" != "$before" ]; do
        before=$question
        for octal in $spaces; do
            space=$(printf '%b.' "$octal") # the dot keeps a line break
            space=${space%.}
            question=${question#"$space"}
            question=${question%"$space"}
        done
    done
}

# SHA-256 of a file here; macOS has shasum.
digest() {
    if command -v sha256sum >/dev/null; then sha256sum "$1"; else shasum -a 256 "$1"; fi |
        cut -d ' ' -f 1
}

here=$(cd "$(dirname "$0")" && pwd)
prompt=$(mktemp)
trap 'rm -f "$prompt"' EXIT
if [ "${1:-}" = --qnn-runner ]; then
    program=qnn_runner
    runner=${QNN_RUNNER:-$here/android/arm64-v8a/qnn_runner}
    [ -f "$runner" ] || fail "$runner does not exist; build it with an Android NDK: ANDROID_NDK_ROOT=/path/to/ndk cmake -S '$here/android' -B build && cmake --build build, then set QNN_RUNNER=build/qnn_runner"
    [ -f "${2:-}" ] || fail "'${2:-}' is no file; give a file of token ids, README.md says how to make one: $0 --qnn-runner ids.txt"
    cat "$2" >"$prompt"
    shift 2
    case $* in
    *[!A-Za-z0-9.\ -]*) fail "qnn_runner takes no such options: $*; see README.md" ;;
    esac
    options="--parameters runner.json --binary context.bin --tokens prompt.txt $*"
else
    program=genie-t2t-run
    [ $# -eq 1 ] || fail "give one question, in quotes: $0 \"your question\", or a file of token ids: $0 --qnn-runner ids.txt"
    question=$1
    trim
    printf '%s%s%s' "$prefix" "$question" "$suffix" >"$prompt"
    options="-c genie_config.json --prompt_file prompt.txt"
fi

# The SDK: all libraries of one release, and none older than the compiler.
sdk=${QNN_SDK_ROOT:-${QAIRT_SDK_ROOT:-}}
[ -n "$sdk" ] || fail "QNN_SDK_ROOT is not set; set it to the folder of the QAIRT SDK $qairt or later"
[ -d "$sdk" ] || fail "QNN_SDK_ROOT, $sdk, is not a folder"
version=
if [ -f "$sdk/sdk.yaml" ]; then
    version=$(sed -n 's/^ *version: *["'\'']\{0,1\}v\{0,1\}\([0-9][0-9.]*\).*/\1/p' "$sdk/sdk.yaml" | head -n 1)
fi
if [ -z "$version" ]; then
    version=$(basename "$sdk")
fi
case $version in
[0-9]*.[0-9]*) ;;
*) fail "the version of the SDK in $sdk is not known: no sdk.yaml, and the folder has no version for a name" ;;
esac
oldest=$(printf '%s\n%s\n' "$qairt" "$version" | sort -V | head -n 1)
[ "$oldest" = "$qairt" ] || fail "the SDK in $sdk is $version and this model was compiled by $qairt; take that or a later one"

android=$sdk/lib/aarch64-android
stub=libQnnHtpV${arch}Stub.so
skel=libQnnHtpV${arch}Skel.so
set -- \
    "$android/libQnnHtp.so" \
    "$android/libQnnSystem.so" \
    "$android/$stub" \
    "$sdk/lib/hexagon-v${arch}/unsigned/$skel"
if [ $program = genie-t2t-run ]; then
    set -- "$@" \
        "$sdk/bin/aarch64-android/genie-t2t-run" \
        "$android/libGenie.so" \
        "$android/libQnnHtpNetRunExtensions.so"
fi
for file in "$@"; do
    [ -f "$file" ] || fail "$file is missing in the SDK $version; it must know Hexagon v$arch"
done

# The phone.
command -v adb >/dev/null || fail "adb is not installed; it comes with Android's platform tools"
state=$(adb get-state 2>/dev/null </dev/null) || state=none
[ "$state" = device ] || fail "adb sees no phone (state: $state); connect one and allow USB debugging"
model=$(adb shell getprop ro.soc.model </dev/null | tr -d '\r')
# Some phones add a letter or a suffix to the part: SM8650-AB, SM8750P.
case $model in
"$part" | "$part"[!0-9]*) ;;
*) fail "the phone's chip is '$model' and this model was compiled for $part; build it for that chip" ;;
esac

# Copy. A cut-off file would only show as error 5005 when it is loaded.
adb shell "mkdir -p $folder" </dev/null
if [ $program = genie-t2t-run ]; then
    for file in genie_config.json htp_backend_ext_config.json tokenizer.json; do
        set -- "$@" "$here/$file"
    done
else
    set -- "$@" "$here/android/runner.json"
    adb push "$runner" "$folder/qnn_runner" </dev/null >&2
fi
adb push "$@" "$here/context.bin" "$folder/" </dev/null >&2
adb push "$prompt" "$folder/prompt.txt" </dev/null >&2
wanted=$(digest "$here/context.bin")
found=$(adb shell "sha256sum $folder/context.bin" </dev/null | tr -d '\r' | cut -d ' ' -f 1)
[ "$found" = "$wanted" ] || fail "context.bin did not arrive whole on the phone; is there space in $folder?"

# Ask. The Skel library is found through ADSP_LIBRARY_PATH, one folder.
adb shell "cd $folder && chmod +x $program && rm -f answer.txt && \
    LD_LIBRARY_PATH=$folder ADSP_LIBRARY_PATH=$folder ./$program $options >answer.txt" </dev/null ||
    fail "$program failed; see: adb logcat -d | grep -iE 'adsprpc|cdsp|qnn'"
adb pull "$folder/answer.txt" answer.txt </dev/null >&2
[ $program = qnn_runner ] || grep -q BEGIN answer.txt || fail "genie-t2t-run gave no answer; see answer.txt"
cat answer.txt
