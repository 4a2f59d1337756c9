#!/usr/bin/env bash
# Runs all tests. Installs Rust or a C compiler if there is none; arguments go to `cargo test`.
set -euo pipefail
cd "$(dirname "$0")"
. .ci/setup
# Many tests wait: for a disk, another process, a time. With few processors, more tests at once keep them busy.
processors=$(getconf _NPROCESSORS_ONLN)
((processors > 4)) || export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * processors))}
# By itself, Cargo links every example too. Their text is in a test program, and clippy checks them.
for argument in "$@"; do
  case $argument in
    --) break ;;
    --lib | --bin* | --test* | --doc | --example* | --bench* | --all-targets) exec cargo test --workspace "$@" ;;
  esac
done
cargo test --workspace --tests "$@"
exec cargo test --workspace --doc "$@"
