"""Pipelines that are declared in a TOML file instead of programmed.

Start with `model` (what a file may say), then `load` (from text to that model, every mistake with
its line), `check` (what only shows when the parts are taken together) and `graph` (who feeds whom).
`compile` turns the model into Spark's frames, `run` keeps their queries running, `state` remembers
them. Only `compile` and what it is made of import Spark; they are imported when a pipeline runs.
"""
