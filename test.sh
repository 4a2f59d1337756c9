#!/usr/bin/env bash
# Runs all tests. Installs Rust or a C compiler if there is none; arguments go to `cargo test`.
set -euo pipefail
cd "$(dirname "$0")"
. .ci/setup
exec cargo test --workspace "$@"
