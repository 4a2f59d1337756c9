#!/usr/bin/env bash
# Runs all tests. Installs Rust or a C compiler if there is none; arguments go to `cargo test`.
set -euo pipefail
cd "$(dirname "$0")"
. .ci/setup
# If Cargo was used here before, its incremental state exists, and is used.
[[ -n $(ls -A "${CARGO_TARGET_DIR:-target}/debug/incremental" 2>/dev/null) ]] || build_once
# By itself, Cargo links every example too. Their text is in a test program, and clippy checks them.
for argument in "$@"; do
  case $argument in
    --) break ;;
    --lib | --bin* | --test* | --doc | --example* | --bench* | --all-targets) exec cargo test --workspace "$@" ;;
  esac
done
cargo test --workspace --tests --no-run "$@"
# Many tests wait for a disk, another process or a time, so two test programs run at once, in two lanes. The first lane begins with the engine's
# program, which takes the longest; then each lane takes programs that the other has not taken. The second lane's output is printed at the end.
taken=$(mktemp -d)
lane() { cargo test --workspace --tests --config "target.'cfg(all())'.runner = ['$PWD/.ci/lane', '$taken', '$1']" "${@:2}"; }
lane others "$@" >"$taken.printed" 2>&1 &
trap 'kill $! 2>/dev/null || true; rm -rf "$taken" "$taken.printed"' EXIT
trap 'exit 130' INT TERM
failed=
{ lane engine "$@" && lane any "$@"; } || failed=1
wait $! || failed=1
cat "$taken.printed"
[[ -z $failed ]] || exit 1
cargo test --workspace --doc "$@"
