"""Do settings keep their promise? A cluster is hurt under load, and what came of it is judged.

Read `promises` (what settings promise, a pure function), `scenarios` (how the cluster is hurt),
`load` and `program` (what clients do meanwhile: ours, or a user's own program), `evidence` (what is
known in the end), `judge` (what it came to), and `trial`, which puts them together.
"""
