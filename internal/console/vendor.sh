#!/usr/bin/env bash
# Fetches the libraries of the console from npm's registry into web/vendor, each by its name and
# version, and writes their checksums, which a test compares; then it compresses what the program embeds. The files are those of the
# packages, unchanged; .txt files are licences. Run it in this directory to renew them.
set -euo pipefail
cd "$(dirname "$0")"
out=$PWD/web/vendor
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

# take PACKAGE@VERSION: the files of a package are then in $work/package
take() {
  rm -rf "$work/package"
  (cd "$work" && tar -xzf "$(npm pack --silent "$1")")
}

take htm@3.1.1 # htm with Preact 10 and its hooks, as one module
cp "$work/package/preact/standalone.module.js" "$out/preact-htm.js"
cp "$work/package/LICENSE" "$out/htm.LICENSE.txt"
take preact@10.26.9 # its licence; the code is in the file above
cp "$work/package/LICENSE" "$out/preact.LICENSE.txt"
take uplot@1.6.32
cp "$work/package/dist/uPlot.iife.min.js" "$out/uplot.js"
cp "$work/package/dist/uPlot.min.css" "$out/uplot.css"
cp "$work/package/LICENSE" "$out/uplot.LICENSE.txt"
take mqtt@5.16.0
cp "$work/package/dist/mqtt.esm.js" "$out/mqtt.js"
cp "$work/package/LICENSE.md" "$out/mqtt.LICENSE.txt"

cd "$out"
LC_ALL=C sha256sum -- *.js *.css *.txt >../../SHA256SUMS
cd ../.. && go generate .
