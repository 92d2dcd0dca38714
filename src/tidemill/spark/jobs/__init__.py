"""Pipelines that users have: one TOML file each, to begin with by `tidemill pipeline init`.

`tidemill pipeline init NAME --from site-activity` writes a copy to edit. What a TOML file cannot
say is Python beside it: `site_report` makes a page from the tables of `site-activity`.
"""
