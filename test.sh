#!/usr/bin/env bash
# Runs all tests. Installs Rust or a C compiler if there is none; arguments go to `cargo test`.
set -euo pipefail
cd "$(dirname "$0")"
. .ci/setup
# A first build takes a seventh less time, and 1.2 GiB instead of 3, without what later builds of the same files would use. If Cargo was used
# here before, that is there, and stays.
[[ -n $(ls -A "${CARGO_TARGET_DIR:-target}/debug/incremental" 2>/dev/null) ]] || export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
# By itself, Cargo links every example too. Their text is in a test program, and clippy checks them.
for argument in "$@"; do
  case $argument in
    --) break ;;
    --lib | --bin* | --test* | --doc | --example* | --bench* | --all-targets) exec cargo test --workspace "$@" ;;
  esac
done
cargo test --workspace --tests --no-run "$@"
# Many tests wait: for a disk, another process, a time. Two programs at once keep the processors busy: the engine's, and one of the others,
# whose output comes when all of them have ended.
half() { cargo test --workspace --tests --config "target.'cfg(all())'.runner = ['$PWD/.ci/half', '$1']" "${@:2}"; }
printed=$(mktemp)
half others "$@" >"$printed" 2>&1 &
trap 'kill $! 2>/dev/null || true; rm -f "$printed"' EXIT
trap 'exit 130' INT TERM
failed=
half engine "$@" || failed=1
wait $! || failed=1
cat "$printed"
[[ -z $failed ]] || exit 1
cargo test --workspace --doc "$@"
