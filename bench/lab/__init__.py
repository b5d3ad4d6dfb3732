"""The lab: real training in emulated nodes on one machine. `bench/compare` is its command."""
