#!/usr/bin/env bash
# Builds both images, lists the content and the labels of each image, and runs the binaries with the image as root
# directory.
#
#   tests/deploy/image.sh BINARY TOOLS-BINARY RUNTIME-BINARY
set -euo pipefail
cd "$(dirname "$0")/../.."

binary=$1 tools=$2 runtime=$3
command -v buildah >/dev/null || { echo "image.sh: no buildah: apt-get install buildah" >&2; exit 1; }
work=$(mktemp -d)
images() { buildah --root "$work/root" --runroot "$work/run" --storage-driver vfs "$@"; }
clean() {
    [ -z "${container:-}" ] || images umount "$container" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap clean EXIT

# An error keeps its message and its exit code, whatever the environment asks for.
for program in "$binary" "$tools"; do
    code=0
    RUST_BACKTRACE=1 "$program" config --config /nowhere.yaml 2>"$work/error" || code=$?
    [ "$code" = 2 ] && grep -q 'nowhere.yaml' "$work/error" || {
        echo "image.sh: an error of $program ended with the exit code $code:" >&2
        cat "$work/error" >&2
        exit 1
    }
done

mkdir "$work/context"
cp "$binary" "$work/context/pinfold"
cp "$tools" "$work/context/pinfold-tools"
cp "$runtime" "$work/context/pinfold-runtime"
format='user={{.OCIv1.Config.User}} entrypoint={{.OCIv1.Config.Entrypoint}} cmd={{.OCIv1.Config.Cmd}}'
labels='{{range $name, $value := .OCIv1.Config.Labels}}label: {{$name}}={{$value}}{{"\n"}}{{end}}'
for image in pinfold pinfold-tools; do
    # The images are made from scratch, so buildah pulls nothing.
    images build --isolation chroot --pull-never --identity-label=false -f deploy/Dockerfile.prebuilt \
        --target "$image" --build-arg COMMIT=0123abc --build-arg SOURCE=https://git.example/pinfold -t "$image:test" \
        "$work/context" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    printf 'image: %s ' "$image"
    images inspect --type image --format "$format" "$image:test"
    echo
    images inspect --type image --format "$labels" "$image:test"
    container=$(images from --pull-never "$image:test")
    root=$(images mount "$container")
    (cd "$root" && find . -mindepth 1 -printf 'content: /%P %M\n' | sort)
    printf 'size: %s bytes\n' "$(stat -c %s "$root/pinfold")"
    # The root directory has only the binary, so a missing library would show.
    chroot "$root" /pinfold --version
    [ "$image" = pinfold-tools ] || chroot "$root" /pinfold-runtime install --help | sed -n 1p
    images umount "$container" >/dev/null
    container=
done
