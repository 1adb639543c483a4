#!/usr/bin/env bash
# Checks the structure of the code against crates/structure/floors.toml.
cd "$(dirname "$0")/.." && exec cargo run --quiet --package canopy-structure
