#!/bin/sh
# The first tokens of an installation: one for whoever runs it, and one for Prometheus. Made once, into files that only
# their owner reads; where there is a file, nothing is done.
set -eu
tokens=${HEADRACE_TOKENS:-/tokens}

if [ ! -s "$tokens/root" ]; then
  python -m state.tokens create root --scope read --scope operate --scope approve --scope admin --expires 30d --file "$tokens/root"
fi
if [ ! -s "$tokens/prometheus" ]; then
  python -m state.tokens create prometheus --scope read --expires 366d --file "$tokens/prometheus"
fi
